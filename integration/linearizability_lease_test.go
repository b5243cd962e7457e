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
//	taken     tokens that are missing from the bucket, among them those that processes hold
//	ahead     tokens that were taken ahead, or held for longer, by all processes
//	held[p]   tokens that process p has taken ahead and not used
//	back      tokens that a process gives back, before they have arrived
//
// A decision by Redis is that of a bucket without leases that holds H fewer: n tokens are granted if
// taken + n ≤ burst − H, else the call is refused, whoever holds tokens. Remaining is burst − H −
// taken, less what was granted to the caller: what it also leases counts as left. Then it may take a
// tokens ahead, in whole charges, as many as there are, and hold k of those that it held for longer:
// ahead rises by both, to H/2 at most. Taken rises by n and a. The others that it held go back.
//
// A decision from a lease grants all n, and n ≤ held[p], which falls by n; taken stays as it is.
// Remaining is at most what is left of held[p]. If a process makes one call at a time, Remaining is
// all that is left, and Redis is asked only if held[p] < n.
//
// What goes back arrives at any time later, and lowers taken. Peek changes nothing, and Remaining is
// burst − H − taken. Refund lowers taken by n, down to 0. The end of a process gives back what it
// holds: taken falls by held[p].
//
// So each token that is granted was taken first, once: who is admitted never passes the burst, and
// what is refunded on top of it. Nor does taken pass burst − H, and what all processes hold H/2, as
// nothing is taken ahead a second time while a test runs.
//
// A call without an answer may charge what it would have been granted, and go on without its caller.
// If a process makes several calls at a time, the model keeps only the most that all processes hold,
// in held[0], of which any part may go back and arrive at any time.

// leasedSlowLimit is one whose buckets regain no token while a test runs, and twelve while a lease lasts.
var leasedSlowLimit = ginlimit.PerDay(288).WithBurst(60)

const (
	longLease = time.Hour
	perLease  = 12
	slowHolds = 60 - 2*perLease
)

// leasedBucket is the state of that specification.
type leasedBucket struct {
	taken, ahead, back int
	held               [processes]int
}

// leasedBuckets is the model of that specification. It is alone if each process makes one call at a
// time, and none is lost.
func leasedBuckets(alone bool) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{leasedBucket{}} },
		Step: func(state, input, output any) (next []any) {
			in, out := input.(operation), output.(outcome)
			if !alone {
				in.process = 0
			}
			known := map[leasedBucket]bool{}
			for _, before := range state.(leasedBucket).before(alone) {
				for _, after := range before.step(in, out, alone) {
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
}

// before returns what the bucket may be before an operation, as tokens go back.
func (b leasedBucket) before(alone bool) (all []leasedBucket) {
	from := &b.back
	if !alone {
		from = &b.held[0]
	}
	all = append(all, b)
	for *from > 0 {
		*from--
		b.taken = max(0, b.taken-1)
		all = append(all, b)
	}
	return all
}

// step returns what the bucket may be after an operation, nothing if the operation cannot have been told that.
func (b leasedBucket) step(in operation, out outcome, alone bool) []leasedBucket {
	p, r := in.process, out.result
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
		b.taken, b.held[p] = max(0, b.taken-b.held[p]), 0
		return []leasedBucket{b}
	case r.Source == ginlimit.FromLease:
		b.held[p] -= in.n
		if r.Granted != in.n || r.Remaining < 0 || b.held[p] < r.Remaining || alone && b.held[p] > r.Remaining {
			return nil
		}
		return []leasedBucket{b}
	}
	return b.asked(in, out, alone)
}

// asked returns what the bucket may be after Redis was asked for tokens.
func (b leasedBucket) asked(in operation, out outcome, alone bool) (next []leasedBucket) {
	p, r, left := in.process, out.result, slowHolds-b.taken
	granted, charge := max(0, min(in.n, left)), 1
	if in.verb == allowN {
		charge = in.n
		if in.n > left {
			granted = 0
		}
	}
	switch {
	case out.lost:
		next = append(next, b) // it may have charged nothing
	case r.Source != ginlimit.FromRedis || r.Granted != granted || r.Remaining != left-granted:
		return nil
	case alone && b.held[p] >= in.n:
		return nil
	}
	plain := b // a call that takes nothing ahead leaves the lease as it is
	plain.taken += granted
	next = append(next, plain)
	for kept := 0; kept <= min(b.held[p], perLease-b.ahead); kept++ {
		most := 0
		if granted > 0 {
			most = min(perLease-b.ahead-kept, left-granted)
		}
		for ahead := 0; ahead <= most; ahead += charge {
			after := plain
			after.taken += ahead
			after.ahead += kept + ahead
			after.held[p] = kept + ahead
			after.back += b.held[p] - kept
			if !alone { // some may be used before they go back
				after.held[p], after.back = b.held[p]+ahead, 0
			}
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
				h.check(t, leasedBuckets(row.alone))
			})
		}
	}
}
