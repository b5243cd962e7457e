// Package receipt remembers how the tokens of a charge are found again, so that a process gives
// back these tokens and no others. It owns a copy of the states that the charge found. It never knows the key,
// nor who keeps the buckets.
package receipt

import (
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// minLate is how late Redis may do what it is asked, at least, where a short period bounds that.
const minLate = 100 * time.Millisecond

// Receipt is what is known of a charge: of a window the mark that it left, of a token bucket the
// level that it found, and when. A nil Receipt keeps nothing.
type Receipt struct {
	late  time.Duration // how late the store may do what it is asked
	sent  time.Time     // when the store was asked, at the earliest
	known time.Time     // when it had answered, at the latest
	found []bucket.State
}

// New returns a receipt for a charge of a store that answers within a timeout.
func New(timeout time.Duration) *Receipt {
	return &Receipt{late: 2 * timeout} // it may be queued, and then in flight
}

// Fill keeps when a charge was sent, and what it found.
func (r *Receipt) Fill(sent time.Time, found []bucket.State) {
	if r != nil {
		r.sent, r.known, r.found = sent, time.Now(), slices.Clone(found)
	}
}

// Claims returns what a charge of n tokens has left in buckets. Own reports whether their store is
// in this process.
//
// A reset voids the claim. Redis does not say whether it came before or after a charge of about the
// same time, so it voids the charges soon after it, too.
func (r *Receipt) Claims(buckets []bucket.Bucket, n int64, own bool) []bucket.Claim {
	claims, age := make([]bucket.Claim, bucket.Counted(buckets)), time.Since(r.sent)
	for i := range claims {
		b := &buckets[i]
		late := r.lateFor(b)
		claims[i] = b.NewClaim(r.found[i].Level, b.Charge(n), age.Nanoseconds(), late.Nanoseconds())
		claims[i].Made = max(0, time.Since(r.known).Milliseconds()-1)
		claims[i].Mark, claims[i].Era = r.found[i].Mark, r.found[i].Era
		if !b.Flows() && (own && n > b.Burst || !own && r.over(b, age)) {
			claims[i].Mark = bucket.NoMark // of more than the window holds, nobody knows which are gone
		}
	}
	return claims
}

// ClaimsAtOnce is Claims of tokens that a denied decision has just taken: all of them are left.
// What has flowed back of them meanwhile would have flowed back of others.
func (r *Receipt) ClaimsAtOnce(buckets []bucket.Bucket, n int64, own bool) []bucket.Claim {
	claims := r.Claims(buckets, n, own)
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
	return b.Ends == 0 && age+age/1024+r.lateFor(b) >= period(b)
}

// lateFor returns how late Redis may do what it is asked about a bucket. Half a period bounds it for
// windows: else a long timeout would leave nothing of a short one to give back.
func (r *Receipt) lateFor(b *bucket.Bucket) time.Duration {
	if b.Flows() {
		return r.late
	}
	return min(r.late, max(minLate, period(b)/2))
}

// period returns the period of a bucket.
func period(b *bucket.Bucket) time.Duration {
	return time.Duration(min(b.Period, int64(1<<62)/1e6)) * time.Millisecond
}
