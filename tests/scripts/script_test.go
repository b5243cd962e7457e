package scripts_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// scriptKeys calls a script on keys of a Redis whose clock is set.
type scriptKeys struct {
	mini   *miniredis.Miniredis
	rdb    *redis.Client
	now    time.Time
	source string
	ofNode string // the source of the same script for a node of a cluster
	args   []any  // of the limit
}

func newScriptKeys(t *testing.T, a ginlimit.Algorithm, l ginlimit.Limit) *scriptKeys {
	s := &scriptKeys{mini: miniredis.NewMiniRedis(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.mini.SetTime(s.now)
	s.mini.ClockTTL(true)
	require.NoError(t, s.mini.Start())
	t.Cleanup(s.mini.Close)
	s.rdb = redis.NewClient(&redis.Options{Addr: s.mini.Addr(), MaxRetries: -1, ReadTimeout: -1}) // a call is made once
	t.Cleanup(func() { _ = s.rdb.Close() })
	s.source, s.args = testkit.ScriptOfLimit(t, a, l)
	s.ofNode = testkit.ScriptSource(t, wire.Node+int(testkit.Kinds[a]))
	return s
}

func (s *scriptKeys) advance(d time.Duration) {
	s.now = s.now.Add(d)
	s.mini.SetTime(s.now)
}

// call returns the reply to a verb as integers.
func (s *scriptKeys) call(t *testing.T, verb string, n any, charges int, keys []string, each ...any) ([]int64, error) {
	args := append(append([]any{verb, n, charges}, s.args...), each...)
	reply, err := eval(t.Context(), s.rdb, s.source, keys, args...).Result()
	if one, ok := reply.(int64); ok {
		return []int64{one}, err
	}
	if err != nil {
		return nil, err
	}
	var list []int64
	for _, one := range reply.([]any) {
		list = append(list, one.(int64))
	}
	return list, nil
}

// together calls a verb on an untouched key and another of the same limit, and returns what is told of the other.
func (s *scriptKeys) together(t *testing.T, verb string, n, charges int, key string) ([]int64, error) {
	require.NoError(t, s.rdb.Del(t.Context(), "untouched").Err())
	reply, err := s.call(t, verb, n, charges, []string{"untouched", key}, s.args...)
	if err != nil {
		require.Zero(t, s.rdb.Exists(t.Context(), "untouched").Val(), "charged, though the other is not")
		return nil, err
	}
	require.Zero(t, reply[0])
	return reply[len(reply)/2:], nil
}

// state returns what a key holds, and how long for.
func (s *scriptKeys) state(t *testing.T, key string) string {
	p, ctx := s.rdb.Pipeline(), t.Context()
	kind, ttl, list, text := p.Type(ctx, key), p.PTTL(ctx, key), p.LRange(ctx, key, 0, -1), p.Get(ctx, key)
	hash := p.HGetAll(ctx, key)
	_ = testkit.Err(p.Exec(ctx)) // all but one are of another type
	switch testkit.Must(kind.Result()) {
	case "list":
		return fmt.Sprint(list.Val(), ttl.Val())
	case "hash":
		return fmt.Sprint(hash.Val(), ttl.Val())
	}
	return fmt.Sprintf("%q %s", text.Val(), ttl.Val())
}

// TestEachBucketForItself has a call for many keys do to each what a call for that key alone does,
// and tell the same. Where it tells that nothing was done, the key is as it was.
func TestEachBucketForItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		algorithm ginlimit.Algorithm
		limit     ginlimit.Limit
	}{
		"token bucket":         {ginlimit.TokenBucket, ginlimit.PerSecond(7)},
		"token bucket, in all": {ginlimit.TokenBucket, ginlimit.PerSecond(1500).WithBurst(40)},
		"fixed window":         {ginlimit.FixedWindow, ginlimit.PerSecond(9)},
		"sliding window":       {ginlimit.SlidingWindow, ginlimit.PerSecond(9)},
		"long sliding window":  {ginlimit.SlidingWindow, ginlimit.PerSecond(60)},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			s, r := newScriptKeys(t, c.algorithm, c.limit), rand.New(rand.NewPCG(1, 1))
			told, left := 0, 0
			for step := range testkit.Steps(200) {
				if r.IntN(3) > 0 {
					s.advance(time.Duration(r.IntN(200)) * time.Millisecond)
				}
				if r.IntN(40) == 0 {
					s.advance(time.Second)
				}
				number := r.IntN(6)
				if verb := []string{"give", "block", "reset", "foreign"}[step/8%4]; step%8 == 0 {
					for _, copies := range []string{"each", "alone"} {
						key := fmt.Sprint(copies, number)
						if verb == "foreign" {
							s.makeForeign(t, key, step)
							continue
						}
						if _, err := s.call(t, verb, 1+step%100, 0, []string{key}); err != nil { // it was foreign
							require.NoError(t, s.rdb.Del(t.Context(), key).Err())
						}
					}
				}
				n, once := 1+r.IntN(3)*r.IntN(2), r.IntN(2)
				var keys []string
				var charges []any
				for _, i := range r.Perm(6)[:1+r.IntN(6)] {
					keys, charges = append(keys, fmt.Sprint("each", i)), append(charges, 1+(1-once)*r.IntN(4))
				}
				about := fmt.Sprintf("step %d: %d tokens, charges %v of %v", step, n, charges, keys)
				before := map[string]string{}
				for _, key := range keys {
					before[key] = s.state(t, key)
				}
				var of []any
				if once == 0 {
					of = charges
				}
				call := s.each
				if r.IntN(2) == 0 {
					call = s.across
				}
				reply, err := call(t, n, once, keys, of...)
				require.NoError(t, err, about)
				width := len(reply) / len(keys)
				for i, key := range keys {
					own, other := reply[i*width:(i+1)*width], "alone"+key[len("each"):]
					want, err := s.call(t, "take", n, charges[i].(int), []string{other})
					if own[0] == -1 {
						left++
						require.Equal(t, before[key], s.state(t, key), "%s: %s", about, key)
						if c.algorithm == ginlimit.TokenBucket {
							require.Error(t, err, "%s: %s", about, key)
						}
						_, again := s.call(t, "take", n, charges[i].(int), []string{key})
						require.Equal(t, err == nil, again == nil, "%s: %s", about, key)
					} else {
						told++
						require.NoError(t, err, "%s: %s", about, key)
						require.Equal(t, want, own, "%s: %s", about, key)
					}
					require.Equal(t, s.state(t, other), s.state(t, key), "%s: %s", about, key)
				}
			}
			t.Logf("%d told, %d left", told, left)
			require.Greater(t, told, left, "most are told at once")
		})
	}
}

// TestForeignKeysStay: a key that is no bucket is not charged, whatever it is charged with.
func TestForeignKeysStay(t *testing.T) {
	t.Parallel()
	numbers := map[ginlimit.Algorithm][]string{ginlimit.TokenBucket: {"5"}, ginlimit.FixedWindow: {"5", "-1"}}
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		s := newScriptKeys(t, a, ginlimit.PerSecond(7))
		for _, value := range []string{"5", "-1", "x", "1 x", "1 2 3 4", "1.5 2", "a list"} {
			for _, expires := range []time.Duration{0, time.Second} {
				if expires > 0 && slices.Contains(numbers[a], value) {
					continue // it is one
				}
				require.NoError(t, s.rdb.Set(t.Context(), "k", value, 0).Err())
				if value == "a list" {
					require.NoError(t, s.rdb.Del(t.Context(), "k").Err())
					require.NoError(t, s.rdb.RPush(t.Context(), "k", "x", "y", "z").Err())
				}
				if expires > 0 {
					require.NoError(t, s.rdb.PExpire(t.Context(), "k", expires).Err())
				}
				before := s.state(t, "k")
				require.EqualValues(t, -1, testkit.Must(s.call(t, "each", 1, 1, []string{"k"}))[0], "%s, %q", a, value)
				for _, charges := range []int{0, 1} {
					_, alone := s.call(t, "take", 1, charges, []string{"k"})
					_, together := s.together(t, "take", 1, charges, "k")
					for _, err := range []error{alone, together} {
						require.Error(t, err, "%s, %q", a, value)
						if a == ginlimit.TokenBucket && value != "a list" {
							require.ErrorContains(t, err, "bucket", "it says what is wrong")
						}
					}
				}
				require.Equal(t, before, s.state(t, "k"), "%s, %q", a, value)
			}
		}
	}
}

// TestLevelsOfBuckets has a key's value and the milliseconds that it has left stand for a level. A
// value has no rest of its limit if it is that of a limit with more drain, and a block that has
// ended means nothing. No level above 2^53 - 1 is told.
func TestLevelsOfBuckets(t *testing.T) {
	t.Parallel()
	const drain, exact = 1_000_003, 1<<53 - 1
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerSecond(7)) // drain 7, cost 1000, capacity 7000
	large := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerSecond(drain))
	type row struct {
		value       string
		left, level int64
	}
	test := func(s *scriptKeys, c row) {
		for _, call := range []struct {
			verb    string
			charges int
		}{{"take", 1}, {"take", 0}, {"each", 1}} {
			set := func() {
				require.NoError(t, s.rdb.Set(t.Context(), "k", c.value, time.Duration(c.left)*time.Millisecond).Err())
			}
			set()
			reply := testkit.Must(s.call(t, call.verb, 1, call.charges, []string{"k"}))
			require.Equal(t, []int64{c.level}, reply, "%+v, %+v", c, call)
			if call.verb == "take" {
				set()
				reply := testkit.Must(s.together(t, "take", 1, call.charges, "k"))
				require.Equal(t, []int64{c.level}, reply, "%+v, %+v, together", c, call)
			}
		}
	}
	for _, c := range []row{
		{"0", 501, 3507}, {"6", 501, 3501}, {"7", 501, 3507}, {"8", 501, 3507},
		{"6 502", 501, 3501}, {"6 501", 501, 3501}, // no block, as the key would have to be there for longer
		{"6 500", 501, 6007}, {"6 499", 501, 6014}, {"6 1", 501, 9500}, // the first token comes with the end of the block
		{"0", 1, 7}, {"6", 1, 1},
	} {
		test(s, c)
	}
	const left = exact/drain + 1
	for rest := int64(left*drain - exact - 2); rest <= left*drain-exact+2; rest++ {
		c := row{strconv.FormatInt(rest, 10), left, min(exact, left*drain-rest)}
		test(large, c)
		require.NoError(t, large.rdb.Set(t.Context(), "k", c.value, left*time.Millisecond).Err())
		before := large.state(t, "k")
		testkit.Must(large.call(t, "give", 1, 0, []string{"k"}))
		require.Equal(t, c.level == exact, before == large.state(t, "k"), "%+v: nobody knows what is left", c)
	}
}

// TestEveryWayToCallDoesTheSame, alone, by the script of any kinds, and beside others of the same limit: as much is
// told of a key, and it keeps as much. But where all charges are made, it need not be found when one more fits.
func TestEveryWayToCallDoesTheSame(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		s, r := newScriptKeys(t, a, ginlimit.PerSecond(9)), rand.New(rand.NewPCG(1, uint64(a)))
		limit, source := s.args, s.source
		for step := range testkit.Steps(800) {
			s.advance(time.Duration(r.IntN(200)) * time.Millisecond)
			verb, n, charges := []string{"take", "take", "take", "charge", "give", "block", "reset"}[r.IntN(7)], 1+r.IntN(5), 0
			if verb == "take" {
				charges = r.IntN(3)
			}
			want := testkit.Must(s.call(t, verb, n, charges, []string{"alone"}))
			state := s.state(t, "alone")
			for _, keys := range [][]string{{"general"}, {"one", "other"}, {"1", "2", "3", "4", "5", "6"}} {
				about := fmt.Sprintf("%s, step %d, %s %d of %v", a, step, verb, n, keys)
				s.args = slices.Repeat(limit, len(keys))
				if len(keys) == 1 {
					s.source = testkit.ScriptSource(t, wire.Mixed)
				}
				got := testkit.Must(s.call(t, verb, n, charges, keys))
				if len(keys) == 1 {
					require.EqualValues(t, wire.Whole, got[0], about)
					got = got[1:]
				}
				s.source, s.args = source, limit
				if got = got[:len(want)]; len(want) > 2 && want[2] == 0 && verb == "take" {
					got[2] = 0
				}
				require.Equal(t, want, got, about)
				for _, key := range keys {
					require.Equal(t, state, s.state(t, key), "%s: %s", about, key)
				}
			}
		}
	}
}

// TestTokensGivenBackToABucketCountToTheUnit: a bucket is gone once it is full, and not a unit before.
func TestTokensGivenBackToABucketCountToTheUnit(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerSecond(7)) // drain 7, cost 1000, capacity 7000
	for value, want := range map[string]string{"0": `"6" 1ms`, "1": `"" -2ns`} {
		require.NoError(t, s.rdb.Set(t.Context(), "k", value, 143*time.Millisecond).Err()) // a level of 7 × 143 - value
		testkit.Must(s.call(t, "give", 1, 0, []string{"k"}))
		require.Equal(t, want, s.state(t, "k"), value)
	}
}

// makeForeign has a key hold what is no bucket, for 50 ms or until it is reset.
func (s *scriptKeys) makeForeign(t *testing.T, key string, kind int) {
	ctx := t.Context()
	require.NoError(t, s.rdb.Del(ctx, key).Err())
	switch kind / 32 % 4 {
	case 0:
		require.NoError(t, s.rdb.Set(ctx, key, "1", 0).Err())
	case 1:
		require.NoError(t, s.rdb.HSet(ctx, key, "a", "b").Err())
	case 2:
		require.NoError(t, s.rdb.Set(ctx, key, "x", 0).Err())
	case 3:
		require.NoError(t, s.rdb.RPush(ctx, key, "x", "y", "z").Err())
	}
	require.NoError(t, s.rdb.PExpire(ctx, key, 50*time.Millisecond).Err())
	if kind%3 == 0 {
		require.NoError(t, s.rdb.Persist(ctx, key).Err())
	}
}
