package wire

import (
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// Join makes c the call that takes for all of the calls or for none. Each of them takes once, and one may have a
// ban. They are copied: they may be used again before c is answered.
func Join(c *dispatch.Call, calls []*dispatch.Call) {
	op, differ, size := calls[0].Op, false, 0
	for _, single := range calls {
		differ, size = differ || single.Op.N != op.N, size+len(single.Buckets)
		op.Charges = min(op.Charges, single.Op.Charges)
		op.Bans, op.Waits = max(op.Bans, single.Op.Bans), max(op.Waits, single.Op.Waits)
	}
	if differ {
		op.N, op.Each = 1, make([]int64, 0, size)
	}
	c.Key, c.Others = c.Key[:0], c.Others[:0]
	all := make([]bucket.Bucket, 0, size)
	for n := range callParts * len(calls) {
		single, from, to := piece(calls, n)
		own := single.Buckets[from:to]
		switch {
		case len(own) == 0:
			continue
		case len(all) == 0:
			c.Key, c.Hash, c.Attempt = append(c.Key, single.Key...), single.Hash, single.Attempt
		default:
			c.AddKey(single, len(all))
		}
		all = append(all, own...)
		for range own {
			if differ {
				op.Each = append(op.Each, single.Op.N)
			}
		}
	}
	c.Set(op, all, bucket.NewLayout(all))
}

// Split copies the states that were found of a joint call to the calls that it was made of.
func Split(c *dispatch.Call, calls []*dispatch.Call) {
	done := 0
	for n := range callParts * len(calls) {
		single, from, to := piece(calls, n)
		done += copy(single.States[from:to], c.States[done:])
	}
}

// callParts is how many parts the buckets of a call have: limits, a ban, and slots.
const callParts = 3

// piece returns what is the n-th in a joint call, as guards.lua wants it: the limits of each call, the ban, the
// slots of each. The call with the ban is the first in each part. The buckets are those from one to another.
func piece(calls []*dispatch.Call, n int) (c *dispatch.Call, from, to int) {
	i, banned := n%len(calls), slices.IndexFunc(calls, hasBan)
	switch {
	case i == 0:
		i = max(0, banned)
	case i <= banned:
		i--
	}
	limits := calls[i].Layout.Limits
	ends := [...]int{0, limits, limits, len(calls[i].Buckets)}
	if hasBan(calls[i]) {
		ends[2]++
	}
	return calls[i], ends[n/len(calls)], ends[n/len(calls)+1]
}

// hasBan reports whether a call has a ban, which follows the limits.
func hasBan(c *dispatch.Call) bool { return c.Layout.Ban >= 0 }
