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
//	held[p]   tokens that process p has taken ahead and not used
//	used[p]   tokens that process p has admitted
//	room[p]   tokens that were left when process p last asked
//
// A decision by Redis is that of a bucket without leases: n tokens are granted if taken + n ≤
// burst, else the call is refused, whoever holds tokens, its own process included. So a refusal may
// be owed to tokens that another process holds, of which there are at most held. Remaining is burst
// − taken, less what was granted to the caller: what it also leases counts as left. Then it may
// take a tokens ahead, in whole charges: a ≤ used[p], a ≤ rate × d, a ≤ half of room[p] without the
// caller's own, and as many as there are. Taken rises by all of them, and held[p] by a.
//
// A decision from a lease grants all n, and n ≤ held[p], which falls by n; taken stays as it is.
// Remaining is at most what is left of held[p]. If a process makes one call at a time, Remaining is
// all that is left, and Redis is asked only if held[p] < n.
//
// Peek changes nothing, and Remaining is burst − taken. Refund lowers taken by n, down to 0, and
// ends the lease of its own process: held[p] is 0. It takes nothing from others. The end of a
// process gives back what it holds: taken falls by held[p].
//
// So each token that is granted was taken first, once: who is admitted never passes the burst, and
// what is refunded on top of it. A call without an answer may charge what it would have been
// granted, and what it takes ahead; nobody holds that. A lease may be lost at any time, by such a
// call about any key or by a change of another key of its stripe, so held[p] is the most that p may
// hold.

// leasedSlowLimit is one whose buckets regain no token while a test runs, and twelve while a lease lasts.
var leasedSlowLimit = ginlimit.PerDay(288).WithBurst(60)

const (
	longLease = time.Hour
	perLease  = 12
)

// leasedBucket is the state of that specification.
type leasedBucket struct {
	taken            int
	held, used, room [processes]int
}

// leasedBuckets is the model of that specification. It is alone if each process makes one call at a
// time, and none is lost.
func leasedBuckets(alone bool) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{leasedBucket{}} },
		Step: func(state, input, output any) (next []any) {
			for _, b := range state.(leasedBucket).step(input.(operation), output.(outcome), alone) {
				next = append(next, b)
			}
			return next
		},
		DescribeOperation: describe,
	}
}

// step returns what the bucket may be after an operation, nothing if the operation cannot have been told that.
func (b leasedBucket) step(in operation, out outcome, alone bool) []leasedBucket {
	p, r, left := in.process, out.result, leasedSlowLimit.Burst-b.taken
	switch {
	case in.verb == peek:
		if out.lost || r.Granted == 0 && r.Source == ginlimit.FromRedis && r.Remaining == left {
			return []leasedBucket{b}
		}
		return nil
	case in.verb == refund:
		after := b
		after.taken, after.held[p] = max(0, b.taken-in.n), 0
		if out.lost {
			return []leasedBucket{b, after}
		}
		return []leasedBucket{after}
	case in.verb == end:
		b.taken -= b.held[p]
		b.held[p], b.used[p], b.room[p] = 0, 0, 0
		return []leasedBucket{b}
	case r.Source == ginlimit.FromLease:
		b.held[p] -= in.n
		b.used[p] += in.n
		if r.Granted != in.n || r.Remaining < 0 || b.held[p] < r.Remaining || alone && b.held[p] > r.Remaining {
			return nil
		}
		return []leasedBucket{b}
	}
	return b.asked(in, out, alone)
}

// asked returns what the bucket may be after Redis was asked for tokens.
func (b leasedBucket) asked(in operation, out outcome, alone bool) (next []leasedBucket) {
	p, r, left := in.process, out.result, leasedSlowLimit.Burst-b.taken
	granted, charge := min(in.n, left), 1
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
	room := leasedSlowLimit.Burst
	if alone { // else another call may have been answered meanwhile
		room = b.room[p]
	}
	most := 0
	if granted > 0 {
		most = max(0, min(b.used[p], perLease, (room-in.n)/2, left-granted))
	}
	for ahead := 0; ahead <= most; ahead += charge {
		after := b
		after.taken += granted + ahead
		if !out.lost {
			after.used[p] += granted
			after.held[p] += ahead
			after.room[p] = leasedSlowLimit.Burst - after.taken
		}
		next = append(next, after)
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
