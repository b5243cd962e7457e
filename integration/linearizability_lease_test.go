package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Histories of several processes with leases are linearizable too. The sequential specification of
// a bucket from which processes take tokens ahead, where no token comes back by itself:
//
//	taken   tokens that are missing from the bucket, among them those that processes hold
//	ahead   tokens that were taken ahead, or held for longer, by all processes
//	held    the most tokens that all processes hold: taken ahead, and neither used nor given back
//
// A decision by Redis is that of a bucket without leases that holds H fewer. It takes n tokens if
// taken + n ≤ burst − H. Remaining is burst − H − taken, less what was granted to the caller: what it
// also leases counts as left. Then it may take a tokens ahead, in whole charges, as many as there are,
// and hold k of those that it held for longer: ahead rises by both, to H/2 at most. Taken rises by n
// and a, and held by a.
//
// A decision from a lease takes n tokens of held, and taken stays as it is. Remaining is at most what
// is left of held. If Redis has fewer tokens than the caller wants, it may use others that are held.
//
// Tokens of held go back at any time, and lower taken. Peek changes nothing, and Remaining is
// burst − H − taken. Refund lowers taken by n, down to 0.
//
// So each token that is granted was taken first, once: who is admitted never passes the burst, and
// what is refunded on top of it. Nor does taken pass burst − H, and what all processes hold H/2, as
// nothing is taken ahead a second time while a test runs.
//
// A call without an answer may take what it would have been granted, and go on without its caller.

// leasedSlowLimit is one whose buckets regain no token while a test runs, and twelve while a lease lasts.
var leasedSlowLimit = ginlimit.PerDay(288).WithBurst(60)

const (
	longLease = time.Hour
	perLease  = 12
	slowHolds = 60 - 2*perLease
)

// leasedBucket is the state of that specification.
type leasedBucket struct{ taken, ahead, held int }

// leasedBuckets is the model of that specification.
var leasedBuckets = porcupine.NondeterministicModel{
	Partition: byKey,
	Init:      func() []any { return []any{leasedBucket{}} },
	Step: func(state, input, output any) (next []any) {
		known := map[leasedBucket]bool{}
		for _, before := range state.(leasedBucket).before() {
			for _, after := range before.step(input.(operation), output.(outcome)) {
				known[after] = true
			}
		}
		for after := range known {
			next = append(next, after)
		}
		return next
	},
	DescribeOperation: describe,
}

// before returns what the bucket may be before an operation, as tokens go back.
func (b leasedBucket) before() (all []leasedBucket) {
	all = append(all, b)
	for b.held > 0 {
		b.held, b.taken = b.held-1, max(0, b.taken-1)
		all = append(all, b)
	}
	return all
}

// step returns what the bucket may be after an operation, nothing if the operation cannot have been told that.
func (b leasedBucket) step(in operation, out outcome) []leasedBucket {
	r := out.result
	switch {
	case in.verb == peek:
		if out.lost || r.Granted == 0 && r.Source == ginlimit.FromRedis && r.Remaining == slowHolds-b.taken {
			return []leasedBucket{b}
		}
		return nil
	case in.verb == refund:
		after := b
		after.taken = max(0, b.taken-in.n)
		if out.lost {
			return []leasedBucket{b, after}
		}
		return []leasedBucket{after}
	case in.verb == end:
		return []leasedBucket{b}
	case out.lost:
		return b.lost(in)
	case r.Source == ginlimit.FromLease:
		b.held -= r.Granted
		whole := r.Granted == in.n || in.verb == allowUpTo && r.Granted > 0
		if !whole || b.held < 0 || r.Remaining < 0 || r.Remaining > b.held {
			return nil
		}
		return []leasedBucket{b}
	case r.Source != ginlimit.FromRedis:
		return nil
	}
	left := slowHolds - b.taken
	own := left - r.Remaining // taken from Redis
	used := r.Granted - own   // that were held
	switch {
	case own < 0 || used < 0 || used > b.held:
		return nil
	case used > 0 && in.verb == allowN && r.Granted == in.n && own > 0:
	case used > 0 && in.verb == allowUpTo && r.Granted <= in.n && own == left && own > 0:
	case used == 0 && own == in.wants(left):
	default:
		return nil
	}
	b.held -= used
	return b.asked(in, own)
}

// wants returns how many of the tokens that are left a call takes from Redis.
func (in operation) wants(left int) int {
	if in.verb == allowN && in.n > left {
		return 0
	}
	return max(0, min(in.n, left))
}

// lost returns what the bucket may be after a call without an answer.
func (b leasedBucket) lost(in operation) []leasedBucket {
	left := slowHolds - b.taken
	next := append(b.asked(in, in.wants(left)), b)
	for own := 1; own <= min(in.n-1, left); own++ { // others were held
		next = append(next, b.asked(in, own)...)
	}
	return next
}

// asked returns what the bucket may be after Redis gave tokens to the caller, and others ahead.
func (b leasedBucket) asked(in operation, own int) (next []leasedBucket) {
	charge := 1
	if in.verb == allowN {
		charge = in.n
	}
	b.taken += own
	for kept := 0; kept <= min(b.held, perLease-b.ahead); kept++ {
		most := 0
		if own > 0 {
			most = min(perLease-b.ahead-kept, slowHolds-b.taken)
		}
		for ahead := 0; ahead <= most; ahead += charge {
			after := b
			after.taken, after.ahead, after.held = b.taken+ahead, b.ahead+kept+ahead, b.held+ahead
			next = append(next, after)
		}
	}
	return next
}

func TestConcurrentCallsWithLeasesAreLinearizable(t *testing.T) {
	t.Parallel()
	takes := slices.Repeat([]verb{allowN, allowN, allowUpTo, allowN, peek}, 6)
	changes := append(slices.Clone(takes), refund, refund)
	for name, row := range map[string]struct {
		disturb disturbance
		verbs   []verb
		alone   bool // a process makes one call at a time
	}{
		"one call at a time":                        {undisturbed, takes, true},
		"one call at a time, processes come and go": {undisturbed, append(slices.Clone(takes), end), true},
		"several calls at a time":                   {undisturbed, takes, false},
		"refunds":                                   {undisturbed, changes, false},
		"connections cut":                           {cutConnections, changes, false},
		"slow Redis":                                {delayReplies, changes, false},
		"frozen Redis":                              {freezeServer, changes, false},
		"replies swallowed":                         {swallowReplies, changes, false},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				t.Parallel()
				opts := []ginlimit.LimiterOption{ginlimit.WithLease(longLease)}
				if row.alone {
					opts = append(opts, testkit.Patient())
				}
				h := newHistory(t, direct, opts...)
				h.limit, h.verbs, h.keys, h.leases = leasedSlowLimit, row.verbs, 2, true
				if row.alone { // the server is not disturbed, but a busy machine may answer late
					h.callers, h.read = 1, time.Minute
				}
				h.record(t, row.disturb)
				if row.alone {
					require.Zero(t, h.lost.Load())
				}
				h.check(t, leasedBuckets)
			})
		}
	}
}
