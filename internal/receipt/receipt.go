// Package receipt remembers how the tokens of a charge are found again, so that a process gives
// back these tokens and no others.
package receipt

import (
	"slices"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	// resetMargin is how long before a charge a reset may be that seems to be after it.
	resetMargin = 20 * time.Millisecond
	// resetSlack is how far a store may round the time of a reset, and more.
	resetSlack = 4 * time.Millisecond
	// maxResets is how many resets of keys of one stripe a process remembers.
	maxResets = 64
	// minLate is how long before its end a window gets nothing back, at least.
	minLate = 100 * time.Millisecond
	// stripes is over how many locks the keys are spread.
	stripes = 1024
)

// Resets are the latest resets by this process. The zero Resets is empty.
type Resets struct{ stripes [stripes]stripe }

// stripe has the resets of some keys. Its mutex guards it.
type stripe struct {
	mu   sync.Mutex
	all  []reset // at most maxResets
	made int64   // how many there were
}

// reset is a reset by this process.
type reset struct {
	number       int64 // in its stripe, from 1 on
	began, ended time.Time
	where        string   // the store
	ids          []string // of the buckets in whose records it is, with the tenant; there is no record of a full one
}

// Add notes that a store has reset buckets, which it found in these states, since a time.
func (r *Resets) Add(hash uint64, began time.Time, where string, buckets []bucket.Bucket, found []bucket.State) {
	one := reset{began: began, ended: time.Now(), where: where}
	for i := range buckets[:bucket.Counted(buckets)] {
		if found[i].Level > 0 {
			one.ids = append(one.ids, buckets[i].ID)
		}
	}
	r.add(hash, one)
}

// AddTenant notes that a store has reset a tenant of buckets since a time.
func (r *Resets) AddTenant(hash uint64, began time.Time, where, tenant string, buckets []bucket.Bucket) {
	one := reset{began: began, ended: time.Now(), where: where}
	for i := range buckets[:bucket.Counted(buckets)] {
		one.ids = append(one.ids, buckets[i].ID+tenant)
	}
	r.add(hash, one)
}

func (r *Resets) add(hash uint64, one reset) {
	s := &r.stripes[hash%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == maxResets {
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.made++
	one.number = s.made
	s.all = append(s.all, one)
}

// list returns the latest resets, and how many there were.
func (r *Resets) list(hash uint64) ([]reset, int64) {
	s := &r.stripes[hash%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all), s.made
}

// Receipt is what is known of a charge: of a window the mark that it left, of a token bucket the
// level that it found, and when. A nil Receipt keeps nothing.
type Receipt struct {
	late   time.Duration // how late the store may do what it is asked
	resets *Resets
	hash   uint64    // of the key
	before []reset   // of the key, or of one of its stripe, before the charge
	made   int64     // how many resets of the stripe there were before the charge
	sent   time.Time // when the store was asked, at the earliest
	known  time.Time // when it had answered, at the latest
	found  []bucket.State
	tenant string // that charged; "" if the buckets are not shared
}

// New returns a receipt for a charge of a store that answers within a timeout.
func New(timeout time.Duration) *Receipt {
	return &Receipt{late: 2 * timeout} // it may be queued, and then in flight
}

// Begin notes that the charge is about to be sent: earlier resets by this process were before it.
func (r *Receipt) Begin(resets *Resets, hash uint64, tenant string) {
	if r != nil {
		r.before, r.made = resets.list(hash)
		r.resets, r.hash, r.tenant = resets, hash, tenant
	}
}

// Fill keeps when a charge was sent, and what it found.
func (r *Receipt) Fill(sent time.Time, found []bucket.State) {
	if r != nil {
		r.sent, r.known, r.found = sent, time.Now(), slices.Clone(found)
	}
}

// resetsSince returns how many resets of a bucket by this process were before the charge and may
// have been made after a time, and since when all of these were made.
func (r *Receipt) resetsSince(since time.Time, where, id string) (n int64, began time.Time) {
	for i := len(r.before) - 1; i >= 0; i-- {
		one := &r.before[i]
		if one.ended.Before(since.Add(-resetSlack)) || one.where != where || !slices.Contains(one.ids, id) {
			continue
		}
		if n++; one.began.Before(since) {
			since = one.began
		}
	}
	return n, since
}

// resetAfter reports whether this process has reset a bucket, or a tenant of it, since the charge.
func (r *Receipt) resetAfter(where, id string) bool {
	all, _ := r.resets.list(r.hash)
	return slices.ContainsFunc(all, func(one reset) bool {
		return one.number > r.made && one.where == where && slices.Contains(one.ids, id)
	})
}

// Claims returns what a charge of n tokens has left in the buckets of a store, which is called
// where among the resets. Own reports whether the store is in this process.
func (r *Receipt) Claims(buckets []bucket.Bucket, n int64, own bool, where string) []bucket.Claim {
	claims, age := make([]bucket.Claim, bucket.Counted(buckets)), time.Since(r.sent)
	// Redis rounds the time of a reset to milliseconds, and the way to it may take as long as the
	// charge took. So it counts resets from somewhat before the charge on, and the claim says how
	// many of these were made by this process before.
	margin := r.known.Sub(r.sent) + resetMargin
	for i := range claims {
		b := &buckets[i]
		known, since := r.resetsSince(r.sent.Add(-margin), where, b.ID)
		late := r.sent.Sub(since) + resetSlack/2
		claims[i] = b.NewClaim(r.found[i].Level, b.Charge(n), age.Nanoseconds(), late.Nanoseconds())
		claims[i].Made, claims[i].Known = max(0, time.Since(r.known).Milliseconds()-1), known
		if r.tenant != "" {
			ofTenant, _ := r.resetsSince(r.sent.Add(-margin), where, b.ID+r.tenant)
			claims[i].KnownOfTenant = ofTenant > 0 && !r.resetAfter(where, b.ID+r.tenant)
		}
		if claims[i].Mark = r.found[i].Mark; b.Kind != bucket.Token && (own && n > b.Burst || !own && r.over(b, age)) {
			claims[i].Mark = bucket.NoMark // of more than the window holds, nobody knows which are gone
		}
	}
	return claims
}

// ClaimsAtOnce is Claims of tokens that a denied decision has just taken: all of them are left.
// What has flowed back of them meanwhile would have flowed back of others.
func (r *Receipt) ClaimsAtOnce(buckets []bucket.Bucket, n int64, own bool, where string) []bucket.Claim {
	claims := r.Claims(buckets, n, own, where)
	for i := range claims {
		units := buckets[i].Charge(n)
		claims[i].Sure, claims[i].Behind = units, units
	}
	return claims
}

// over reports whether a window may be over before Redis gives back, which may be late, and whose
// clock may be a little faster: by then the charge has left by itself. Until then no other window
// has the same mark. A calendar period has a key of its own, so its mark always serves.
func (r *Receipt) over(b *bucket.Bucket, age time.Duration) bool {
	whole := time.Duration(min(b.Period, int64(1<<62)/1e6)) * time.Millisecond
	return b.Ends == 0 && age+age/1024+min(r.late, max(minLate, whole/2)) >= whole
}
