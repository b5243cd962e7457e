package scripts_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// each has each of some keys decided on for itself.
func (s *scriptKeys) each(t *testing.T, n, once int, keys []string, charges ...any) ([]int64, error) {
	return s.call(t, "each", n, once, keys, charges...)
}

// across is each by the script for keys in several slots. miniredis does not know its first line, so it is a comment.
func (s *scriptKeys) across(t *testing.T, n, once int, keys []string, charges ...any) ([]int64, error) {
	alone := s.source
	defer func() { s.source = alone }()
	s.source = "--" + strings.TrimPrefix(s.ofNode, "#!")
	for _, key := range keys[1:] {
		charges = append(charges[:len(charges):len(charges)], key)
	}
	return s.each(t, n, once, keys[:1], charges...)
}

// TestEachKeyOfANodeThatMayBeUsed is charged. The reply is -1 of one that is on another node by
// now, or not for this user.
func TestEachKeyOfANodeThatMayBeUsed(t *testing.T) {
	t.Parallel()
	keys, twins := []string{"a", "b", "c"}, []string{"A", "B", "C"}
	for kind, s := range faultKinds(t) {
		for refused := range keys {
			for _, commands := range [][]string{{"GET", "LRANGE", "PTTL"}, {"PTTL"},
				append([]string{"PEXPIRE"}, needMemory...)} {
				what := fmt.Sprintf("%s: %v of %s", kind, commands, keys[refused])
				require.NoError(t, s.rdb.Del(t.Context(), append(twins, keys...)...).Err())
				for _, call := range []func() ([]int64, error){
					func() ([]int64, error) { return s.across(t, 1, 1, keys) },
					func() ([]int64, error) { return s.each(t, 1, 1, twins) },
				} {
					reply, err := call()
					require.NoError(t, err, what)
					require.Equal(t, []int64{0, 0, 0}, firsts(reply, 3), what)
				}
				before := s.state(t, keys[refused])
				s.refuse(keys[refused], commands...)
				got, err := s.across(t, 2, 0, keys, 1, 2, 3)
				s.noFault()
				require.NoError(t, err, what)
				require.EqualValues(t, -1, firsts(got, 3)[refused], what)
				require.Equal(t, before, s.state(t, keys[refused]), what)
				want, err := s.each(t, 2, 0, twins, 1, 2, 3)
				require.NoError(t, err, what)
				size := len(want) / 3
				for i, key := range keys {
					if i != refused {
						require.Equal(t, want[size*i:size*(i+1)], got[size*i:size*(i+1)], what)
						require.Equal(t, s.state(t, twins[i]), s.state(t, key), what)
					}
				}
			}
		}
	}
}

// firsts returns the first integer in a reply for each of n keys.
func firsts(reply []int64, n int) (all []int64) {
	for of := range slices.Chunk(reply, len(reply)/n) {
		all = append(all, of[0])
	}
	return all
}

// leaseTrace takes tokens ahead in Redis and in the process.
type leaseTrace struct {
	mini    *miniredis.Miniredis
	rdb     *redis.Client
	r       *rand.Rand
	source  string
	buckets []bucket.Bucket // the limits, and then the lease bucket
	store   *memory.Store
}

const leaseKey = "{k}:lease"

// keys returns the names of the limits' keys and of the lease bucket's.
func (l *leaseTrace) keys() (keys []string) {
	for i := range l.buckets[:len(l.buckets)-1] {
		keys = append(keys, fmt.Sprintf("{k}:%d", i))
	}
	return append(keys, leaseKey)
}

// take has the script decide.
func (l *leaseTrace) take(t *testing.T, own, ahead, held, n int64) ([]int64, error) {
	args := []any{"take", n, own}
	last := len(l.buckets) - 1
	for i := range l.buckets[:last] {
		args = append(args, l.buckets[i].Args[:]...)
	}
	lease := &l.buckets[last]
	args = append(args, lease.Drain, lease.Cost, lease.Capacity, ahead, held)
	return eval(t.Context(), l.rdb, l.source, l.keys(), args...).Int64Slice()
}

// model has the process decide.
func (l *leaseTrace) model(own, ahead, held, n int64) (found []int64) {
	last := len(l.buckets) - 1
	limits, lease := l.buckets[:last], l.buckets[last:]
	// what the lease bucket is in the process: a token bucket of another key
	second := []bucket.Bucket{lease[0]}
	second[0].Kind = bucket.Token
	states, of := make([]bucket.State, last), make([]bucket.State, 1)
	l.store.Do([]byte("lease"), second, bucket.Peek(1), of)
	l.store.Do([]byte("k"), limits, bucket.Peek(n), states)
	for i := range limits {
		if states[i].Level > limits[i].Capacity {
			held = 0
		}
	}
	room := second[0].Remaining(of[0].Level)
	held = min(held, room)
	charges := own + min(ahead, (room-held)/n)
	made := charges
	for i := range limits {
		made = limits[i].Fits(bucket.State{Level: states[i].Level}, made, n)
	}
	l.store.Do([]byte("k"), limits, bucket.Op{Verb: bucket.Take, Charges: charges, N: n}, states)
	if taken := held + max(0, made-own)*n; taken > 0 {
		l.store.Do([]byte("lease"), second, bucket.Op{Verb: bucket.Take, Charges: 1, N: taken}, make([]bucket.State, 1))
	}
	for i := range states {
		found = append(found, states[i].Level)
	}
	return append(found, of[0].Level)
}

// change blocks the limits or charges them into debt, as is done without leases.
func (l *leaseTrace) change(t *testing.T) {
	op, verb := bucket.Op{Verb: bucket.Charge, N: 1 + l.r.Int64N(40)}, "charge"
	if l.r.IntN(2) == 0 {
		op, verb = bucket.Op{Verb: bucket.Block, N: 1 + l.r.Int64N(60)}, "block"
	}
	last := len(l.buckets) - 1
	limits := l.buckets[:last]
	args := []any{verb, op.N, 0}
	for i := range limits {
		args = append(args, limits[i].Drain, limits[i].Cost, limits[i].Capacity+limits[i].Floor)
	}
	plain := testkit.ScriptSource(t, wire.Tokens)
	require.NoError(t, eval(t.Context(), l.rdb, plain, l.keys()[:last], args...).Err())
	l.store.Do([]byte("k"), limits, op, make([]bucket.State, last))
}

// TestScriptOfLeasesEqualsTheProcess at every step of calls drawn at random.
func TestScriptOfLeasesEqualsTheProcess(t *testing.T) {
	t.Parallel()
	source := testkit.ScriptSource(t, wire.Lease)
	for seed := range uint64(12) {
		testkit.RunInBubble(t, fmt.Sprintf("seed %d", seed), func(t *testing.T, b *testkit.Bubble) {
			l := &leaseTrace{mini: b.Mini, rdb: b.Redis, source: source,
				r: rand.New(rand.NewPCG(seed, 9)), store: memory.New(memory.MaxBuckets)}
			for i := range 1 + l.r.IntN(3) {
				burst := 20 + l.r.Int64N(200)
				one, ok := bucket.New(bucket.Token, fmt.Sprint(i), 1+l.r.Int64N(300), burst, 1+l.r.Int64N(300))
				require.True(t, ok)
				one.Leave(burst / 2)
				l.buckets = append(l.buckets, one)
			}
			l.buckets = append(l.buckets, bucket.NewAhead(&l.buckets[0], 2+l.r.Int64N(30)))
			for step := range testkit.Steps(300) {
				time.Sleep(time.Duration(l.r.Int64N(40)) * time.Millisecond * time.Duration(l.r.Int64N(2)))
				l.mini.SetTime(time.Now())
				if l.r.IntN(12) == 0 {
					l.change(t)
				}
				own, ahead, held, n := l.r.Int64N(4), l.r.Int64N(30), l.r.Int64N(3)*l.r.Int64N(20), 1+l.r.Int64N(3)
				what := fmt.Sprintf("step %d: own %d, ahead %d, held %d, n %d", step, own, ahead, held, n)
				got, err := l.take(t, own, ahead, held, n)
				require.NoError(t, err, what)
				require.Equal(t, l.model(own, ahead, held, n), got, what)
			}
		})
	}
}

// newLeaseTrace returns a bucket of 100 tokens, 40 of which processes may hold, in a Redis of its own.
func newLeaseTrace(t *testing.T) *leaseTrace {
	limit, ok := bucket.New(bucket.Token, "0", 1, 100, 1000)
	require.True(t, ok)
	limit.Leave(40)
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1))
	return &leaseTrace{mini: s.mini, rdb: s.rdb, source: testkit.ScriptSource(t, wire.Lease),
		buckets: []bucket.Bucket{limit, bucket.NewAhead(&limit, 20)}}
}

// TestLeasesWhereMemoryIsFull are not made, and the callers' own charges fail or are made as ever.
func TestLeasesWhereMemoryIsFull(t *testing.T) {
	t.Parallel()
	l := newLeaseTrace(t)
	l.rdb.Set(t.Context(), leaseKey, "not a bucket", 0)
	require.ErrorContains(t, testkit.Err(l.take(t, 1, 10, 0, 1)), "no expiry")
	require.Equal(t, []string{leaseKey}, l.mini.Keys(), "a limit is charged, though the call failed")
	l.rdb.Del(t.Context(), leaseKey)

	// The write of the lease bucket fails, and nothing is held for longer.
	source := l.source
	l.source = strings.Replace(source, "pcall(token.take, lease, taken)", "pcall(error, 'OOM')", 1)
	require.NotEqual(t, source, l.source)
	require.Equal(t, []int64{0, 20 * 1000}, testkit.Must(l.take(t, 1, 0, 10, 1)), "there is no room to hold anything")
	require.Equal(t, []string{"{k}:0"}, l.mini.Keys())
}

// TestEachBucketIsReadOnce, as Redis' clock goes on: a block may end while the script runs. The process
// decides from the level in the reply whether it holds tokens for longer, and so must the script.
func TestEachBucketIsReadOnce(t *testing.T) {
	t.Parallel()
	l := newLeaseTrace(t)
	limit := &l.buckets[0]
	plain := testkit.ScriptSource(t, wire.Tokens)
	require.NoError(t, eval(t.Context(), l.rdb, plain, l.keys()[:1], "block", 200, 0,
		limit.Drain, limit.Cost, limit.Capacity+limit.Floor).Err())
	const last = "held = min(held, room)\n"
	require.Contains(t, l.source, last)
	l.source = strings.Replace(l.source, last, last+"call('DEL', KEYS[1])\n", 1) // the block has ended
	require.Greater(t, testkit.Must(l.take(t, 1, 5, 9, 1))[0], limit.Capacity)
	require.Empty(t, l.mini.Keys(), "nothing is taken, ahead or for longer")
}
