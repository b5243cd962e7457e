package ginlimit

import (
	"slices"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// receipt tells how the tokens that a charge took are found again, to give back these and no others: of a window by a mark, of
// a token bucket by the level at a time.
type receipt struct {
	sent   time.Time     // when the store was asked for them, at the earliest
	known  time.Time     // when it had answered, at the latest
	late   time.Duration // how late Redis may do what it is asked
	marks  []int64       // of each window, once the charge is made
	levels []int64       // of each bucket, before the charge

	before []ownReset // of the key, or of one like it, before the charge
}

// newReceipt returns a receipt for what may be given back.
func (l *Limiter) newReceipt() *receipt {
	return &receipt{late: 2 * l.defaults.timeout} // it may be queued, and then in flight
}

// resetMargin is how long before a charge a reset may be that seems to be after it.
const resetMargin = 20 * time.Millisecond

// inOutage begins the IDs of buckets that decide without Redis, in the records of this process.
const inOutage = "outage:"

// maxResets is how many resets of keys of one stripe a process remembers.
const maxResets = 64

// resets are the last resets of some keys by this process. Its mutex guards them.
type resets struct {
	mu  sync.Mutex
	all []ownReset // at most maxResets
}

// ownReset is a reset by this process.
type ownReset struct {
	began, ended time.Time
	ids          []string // of the buckets in whose records it is: there is nothing to write of a full one
}

// add notes that buckets, which were found in these states, were reset since a time.
func (r *resets) add(began time.Time, where string, buckets []bucket.Bucket, found []bucket.State) {
	one := ownReset{began: began, ended: time.Now()}
	for i := range buckets[:bucket.Counted(buckets)] {
		if found[i].Level > 0 {
			one.ids = append(one.ids, where+buckets[i].ID)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == maxResets {
		r.all = slices.Delete(r.all, 0, 1)
	}
	r.all = append(r.all, one)
}

// list returns them.
func (r *resets) list() []ownReset {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// resetsOf returns the resets of a key, by its hash.
func (l *Limiter) resetsOf(hash uint64) *resets { return &l.resets[hash%uint64(len(l.resets))] }

// begin notes that the charge is about to be sent, if that is wanted: what this process has reset until now was before.
func (r *receipt) begin(l *Limiter, hash uint64) {
	if r != nil {
		r.before = l.resetsOf(hash).list()
	}
}

// resetSlack is how far a store may round the time of a reset, and more.
const resetSlack = 4 * time.Millisecond

// resetsSince returns how many resets of a bucket by this process were before the charge and may have been made after a time, and
// since when all of these were made.
func (r *receipt) resetsSince(since time.Time, id string) (n int64, began time.Time) {
	for i := len(r.before) - 1; i >= 0; i-- {
		one := &r.before[i]
		if one.ended.Before(since.Add(-resetSlack)) || !slices.Contains(one.ids, id) {
			continue
		}
		if n++; one.began.Before(since) {
			since = one.began
		}
	}
	return n, since
}

// fill keeps when a charge was sent and what was found, if that is wanted.
func (r *receipt) fill(sent time.Time, found []bucket.State) {
	if r == nil {
		return
	}
	r.sent, r.known, r.marks, r.levels = sent, time.Now(), make([]int64, len(found)), make([]int64, len(found))
	for i := range found {
		r.marks[i], r.levels[i] = found[i].Mark, found[i].Level
	}
}

// claims returns what a charge of n tokens has left in the buckets, in this process or in Redis. Where begins their IDs in what
// this process knows of its resets.
func (r *receipt) claims(buckets []bucket.Bucket, n int64, here bool, where string) []bucket.Claim {
	claims, age := make([]bucket.Claim, len(buckets)), time.Since(r.sent)
	// Redis tells the time of a reset by milliseconds, and the way to it may be as long as that of the charge. So it counts resets from
	// somewhat before the charge on, but for those that this process has made before.
	margin := r.known.Sub(r.sent) + resetMargin
	for i := range claims {
		b := &buckets[i]
		known, since := r.resetsSince(r.sent.Add(-margin), where+b.ID)
		claims[i] = b.NewClaim(r.levels[i], b.Charge(n), age.Nanoseconds(), (r.sent.Sub(since) + 2*time.Millisecond).Nanoseconds())
		claims[i].Made, claims[i].Known = max(0, time.Since(r.known).Milliseconds()-1), known
		if claims[i].Mark = r.marks[i]; b.Kind != bucket.Token && (here && n > b.Burst || !here && r.over(b, age)) {
			claims[i].Mark = bucket.NoMark // of more than the window holds it is not known which of them are gone
		}
	}
	return claims
}

// over reports whether a window may be over before Redis gives back, which may be late, and whose clock may be a little faster:
// what was charged has left by itself then, or is about to. Until then no other window has the same mark. A calendar
// period has a key of its own, so its mark always serves.
func (r *receipt) over(b *bucket.Bucket, age time.Duration) bool {
	whole := millis(b.Period)
	return b.Ends == 0 && age+age/1024+min(r.late, max(2*DefaultTimeout, whole/2)) >= whole
}

// takenNow has claims be of tokens that were taken just now, by a decision that is denied: all are left. What has flowed back of
// them within the decision's time would have flowed back of others.
func takenNow(claims []bucket.Claim, buckets []bucket.Bucket, n int64) {
	for i := range claims {
		units := buckets[i].Charge(n)
		claims[i].Sure, claims[i].Behind = units, units
	}
}
