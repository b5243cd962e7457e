package integration

import (
	"fmt"
	"hash/maphash"
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
// burst − H − taken. If that is 0 and Peek is answered from a lease, Remaining is what this process holds
// of held, 1 at least. Refund lowers taken by n, down to 0.
//
// So each token that is granted was taken first, once: who is admitted never passes the burst, and
// what is refunded on top of it. Nor does taken pass burst − H, and what all processes hold H/2, as
// nothing is taken ahead a second time while a test runs.
//
// A call of several tokens that is denied may have taken some of them to add to those that are held, and
// gives them back. The history has a second operation for that, attempt: until they are back, they are
// tokens of held. A Peek that is answered from a lease asked Redis first, at another moment, and Redis had
// none: that is a second operation too, a Peek.
//
// A call without an answer may take what it would have been granted, and go on without its caller.

// leasedSlowLimit is one whose buckets regain no token while a test runs, and twelve while a lease lasts.
var leasedSlowLimit = ginlimit.PerDay(288).WithBurst(60)

const (
	longLease = time.Hour
	perLease  = 12
	slowHolds = 60 - 2*perLease
)

// leasedBucket is the set of states that a bucket may have after some operations, also after tokens of
// held have gone back. The first index is taken and the second one ahead. Bit h says that held may be h.
type leasedBucket [slowHolds + 1][perLease + 1]uint32

// leasedBuckets is the model of that specification.
var leasedBuckets = porcupine.Model{
	Partition: byKey,
	Init:      func() any { return leasedBucket{{1}} },
	Step: func(state, input, output any) (bool, any) {
		before := state.(leasedBucket)
		after := before.step(input.(operation), output.(outcome))
		after.goBack()
		return after != leasedBucket{}, after
	},
	Hash:              func(state any) uint64 { return maphash.Comparable(hashSeed, state.(leasedBucket)) },
	DescribeOperation: describe,
}

var hashSeed = maphash.MakeSeed()

// goBack adds what the bucket may be if tokens of held go back.
func (b *leasedBucket) goBack() {
	for taken := slowHolds; taken > 0; taken-- {
		for ahead, held := range b[taken] {
			b[taken-1][ahead] |= held >> 1
		}
	}
	for ahead := range b[0] { // the bucket is full
		for held := b[0][ahead] >> 1; held != 0; held >>= 1 {
			b[0][ahead] |= held
		}
	}
}

// step returns what the bucket may be after an operation, nothing if the operation cannot have been told that.
func (b *leasedBucket) step(in operation, out outcome) (next leasedBucket) {
	if in.verb == end || out.lost {
		next = *b
	}
	for taken := range b {
		for ahead, held := range b[taken] {
			if held != 0 && in.verb != end {
				next.add(taken, ahead, held, in, out)
			}
		}
	}
	return next
}

// add adds what the bucket may be after an operation, if taken and ahead were these numbers before it.
func (b *leasedBucket) add(taken, ahead int, held uint32, in operation, out outcome) {
	r, left := out.result, slowHolds-taken
	own := left - r.Remaining // taken from Redis
	used := r.Granted - own   // that were held
	switch {
	case in.verb == refund:
		b[max(0, taken-in.n)][ahead] |= held
	case in.verb == attempt:
		b[taken][ahead] |= held
		for own := 1; own <= min(in.n-1, left); own++ {
			b[taken+own][ahead] |= held << own
		}
	case in.verb == peek:
		switch {
		case out.lost || r.Granted != 0:
		case r.Source == ginlimit.FromRedis && own == 0:
			b[taken][ahead] |= held
		case r.Source == ginlimit.FromLease && r.Remaining > 0:
			b[taken][ahead] |= atLeast(held, r.Remaining)
		}
	case out.lost:
		b.ask(taken, ahead, held, in, in.wants(left))
		for own := 1; own <= min(in.n-1, left); own++ { // others were held
			b.ask(taken, ahead, held, in, own)
		}
	case r.Source == ginlimit.FromLease:
		whole := r.Granted == in.n || in.verb == allowUpTo && r.Granted > 0
		if whole && r.Remaining >= 0 {
			b[taken][ahead] |= atLeast(held>>r.Granted, r.Remaining)
		}
	case r.Source != ginlimit.FromRedis || own < 0 || own > left || used < 0:
	case used > 0 && in.verb == allowN && r.Granted == in.n && own > 0,
		used > 0 && in.verb == allowUpTo && r.Granted <= in.n && own == left && own > 0,
		used == 0 && own == in.wants(left):
		b.ask(taken, ahead, held>>used, in, own)
	}
}

// wants returns how many of the tokens that are left a call takes from Redis.
func (in operation) wants(left int) int {
	if in.verb == allowN && in.n > left {
		return 0
	}
	return max(0, min(in.n, left))
}

// ask adds what the bucket may be after Redis gave tokens to the caller, and others ahead.
func (b *leasedBucket) ask(taken, ahead int, held uint32, in operation, own int) {
	charge := 1
	if in.verb == allowN {
		charge = in.n
	}
	taken += own
	for kept := 0; kept <= perLease-ahead; kept++ {
		most := 0
		if own > 0 {
			most = min(perLease-ahead-kept, slowHolds-taken)
		}
		for more := 0; more <= most; more += charge {
			b[taken+more][ahead+kept+more] |= atLeast(held, kept) << more
		}
	}
}

// atLeast returns what held may be if it is n at least.
func atLeast(held uint32, n int) uint32 { return held &^ (1<<n - 1) }

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
				h.addCallsToRedis()
				h.check(t, leasedBuckets)
			})
		}
	}
}

// addCallsToRedis adds the second operations: the attempt of each call that may have made one, and what Redis
// said to each Peek that a lease answered.
func (h *history) addCallsToRedis() {
	for _, o := range h.operations {
		in, out := o.Input.(operation), o.Output.(outcome)
		switch {
		case in.verb == allowN && in.n > 1 && !out.lost && out.result.Granted == 0:
			in.verb = attempt
		case in.verb == peek && out.result.Source == ginlimit.FromLease:
			out.result = ginlimit.Result{Source: ginlimit.FromRedis}
		default:
			continue
		}
		o.Input, o.Output = in, out
		h.operations = append(h.operations, o)
	}
}
