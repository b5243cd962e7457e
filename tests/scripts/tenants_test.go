package scripts_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// sharedScript calls the script of tenants, on a server whose clock stands still between steps.
type sharedScript struct {
	mini   *miniredis.Miniredis
	rdb    *redis.Client
	source string
	limit  bucket.Bucket
	now    time.Time
}

func newSharedScript(t *testing.T, source string, limit bucket.Bucket) *sharedScript {
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	s := &sharedScript{mini: mini, source: source, limit: limit, now: time.Unix(1_700_000_000, 0)}
	mini.SetTime(s.now)
	s.rdb = redis.NewClient(&redis.Options{Addr: mini.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = s.rdb.Close() })
	return s
}

func (s *sharedScript) advance(d time.Duration) {
	s.now = s.now.Add(d)
	s.mini.SetTime(s.now)
}

func (s *sharedScript) call(t *testing.T, args []any) []int64 {
	keys := []string{"{k}:b", "{k}:b:tenants:held", "{k}:b:tenants"}
	reply := testkit.Must(eval(context.Background(), s.rdb, s.source, keys, args...).Int64Slice())
	return reply
}

// run is charges of a tenant.
type run struct {
	tenant  int
	charges int64
}

// take makes runs of charges of n tokens of tenants, and returns how many were made of each run, by the
// arithmetic by which callers are answered.
func (s *sharedScript) take(t *testing.T, n int64, tenants []bucket.Tenant, runs []run) (made []int64) {
	total, of, text := int64(0), make([]int64, len(tenants)), ""
	for _, r := range runs {
		total += r.charges
		of[r.tenant] += r.charges
		text += string([]byte{byte(r.tenant), byte(r.charges >> 8), byte(r.charges)})
	}
	args := []any{"take", n, total, s.limit.Drain, s.limit.Cost, s.limit.Capacity}
	weights := ""
	for i, tenant := range tenants {
		args = append(args, tenant.Name)
		weights += string([]byte{byte(tenant.Weight >> 8), byte(tenant.Weight), byte(of[i] >> 8), byte(of[i])})
	}
	reply := s.call(t, append(args, weights+text))
	b, level, count := bucket.NewTenants(&s.limit), reply[0], len(tenants)
	require.Contains(t, []int{3 + count, 3 + 2*count}, len(reply))
	shares := make([]bucket.Shares, count)
	for i := range shares {
		shares[i] = bucket.Shares{
			Sum: reply[1+count], Weights: reply[2+count], Finish: bucket.NoFinish, Weight: tenants[i].Weight,
		}
		if held := reply[1+i] - 1; held >= 0 {
			shares[i].Finish, shares[i].Held = held/1024, held%1024
		}
	}
	for _, r := range runs {
		own := shares[r.tenant]
		found := bucket.State{Level: level, Shares: &own}
		fits := b.Fits(found, s.limit.Fits(bucket.State{Level: level}, r.charges, n), n)
		made = append(made, fits)
		if fits == 0 {
			continue
		}
		after := b.Charged(found, fits, n)
		level = after.Level
		for i := range shares {
			shares[i].Sum, shares[i].Weights = after.Shares.Sum, after.Shares.Weights
		}
		shares[r.tenant] = *after.Shares
	}
	return made
}

// look returns the reply to a take that charges nothing.
func (s *sharedScript) look(t *testing.T, tenant bucket.Tenant) []int64 {
	args := []any{"take", 1, 0, s.limit.Drain, s.limit.Cost, s.limit.Capacity, tenant.Name}
	return s.call(t, append(args, string([]byte{byte(tenant.Weight >> 8), byte(tenant.Weight), 0, 0})))
}

// holds returns how many parts of a token each tenant holds, and the level.
func (s *sharedScript) holds(t *testing.T, tenants []bucket.Tenant) (all []float64) {
	b := bucket.NewTenants(&s.limit)
	for _, tenant := range tenants {
		reply := s.look(t, tenant)
		own := bucket.Shares{Sum: reply[2], Weights: reply[3], Finish: bucket.NoFinish}
		if held := reply[1] - 1; held >= 0 {
			own.Finish, own.Held = held/1024, held%1024
		}
		all = append(all, float64(b.Holds(&own, reply[0]))/float64(s.limit.Cost), float64(reply[0]))
	}
	return all
}

// requireBounds fails if a tenant has no bound that is at most its finish, if the totals are not the sums, or if
// a key does not expire.
func (s *sharedScript) requireBounds(t *testing.T) {
	ctx := context.Background()
	held := testkit.Must(s.rdb.HGetAll(ctx, "{k}:b:tenants:held").Result())
	bounds := testkit.Must(s.rdb.ZRangeWithScores(ctx, "{k}:b:tenants", 0, -1).Result())
	var sum, weights, least, spare int64
	if _, err := fmt.Sscan(held["t"], &sum, &weights, &least, &spare); len(held) > 0 {
		require.NoError(t, err)
		require.NotZero(t, s.mini.TTL("{k}:b:tenants:held"))
		require.GreaterOrEqual(t, s.mini.TTL("{k}:b:tenants:held"), s.mini.TTL("{k}:b"))
	}
	delete(held, "t")
	if least == 0 {
		require.LessOrEqual(t, len(held), 1)
		require.Empty(t, bounds)
	} else {
		require.Len(t, bounds, len(held))
		longer := s.mini.TTL("{k}:b:tenants") - s.mini.TTL("{k}:b:tenants:held")
		require.Contains(t, []time.Duration{0, time.Minute}, longer)
	}
	for _, bound := range bounds {
		score := testkit.Must(strconv.ParseInt(held[bound.Member.(string)], 10, 64))
		require.LessOrEqual(t, bound.Score, float64(score/1024))
		require.GreaterOrEqual(t, score/1024, least)
	}
	for _, text := range held {
		score := testkit.Must(strconv.ParseInt(text, 10, 64))
		sum -= score / 1024 * (score % 1024)
		weights -= score % 1024
	}
	require.GreaterOrEqual(t, sum, int64(0))
	require.Less(t, sum, int64(bucket.Parts)) // by rounding
	require.Zero(t, weights)
}

// TestRunsOfTenantsAreChargesOneAfterAnother: a call with runs of several tenants makes the charges that
// calls of one tenant each would make, in order, and leaves what they would leave.
func TestRunsOfTenantsAreChargesOneAfterAnother(t *testing.T) {
	t.Parallel()
	source := testkit.ScriptSource(t, wire.Tenants)
	denied, made := 0, 0
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 3))
		limit, ok := bucket.New(bucket.Token, "b", 1+r.Int64N(200), 10+r.Int64N(300), []int64{1000, 60_000}[r.IntN(2)])
		require.True(t, ok)
		merged, alone := newSharedScript(t, source, limit), newSharedScript(t, source, limit)
		var tenants []bucket.Tenant
		most := 5
		if seed >= 12 {
			most = 80 // more than the script looks at in one go
		}
		for i := range 2 + r.IntN(most) {
			tenants = append(tenants, bucket.Tenant{Name: fmt.Sprint(":tenant ", i), Weight: 1 + r.Int64N(4)})
		}
		for step := range testkit.Steps(60) {
			d := time.Duration(r.Int64N(1+limit.FillTime()/8)) * time.Millisecond
			merged.advance(d)
			alone.advance(d)
			if i := r.IntN(2 * len(tenants)); i < len(tenants) {
				tenants[i].Weight = 1 + r.Int64N(4)
			}
			n := 1 + r.Int64N(5)
			var runs []run
			for range 1 + r.IntN(12) {
				runs = append(runs, run{r.IntN(len(tenants)), 1 + r.Int64N(4)})
			}
			got, want := merged.take(t, n, tenants, runs), []int64(nil)
			for _, one := range runs {
				want = append(want, alone.take(t, n, tenants[one.tenant:one.tenant+1], []run{{0, one.charges}})[0])
			}
			require.Equal(t, want, got, "seed %d, step %d: %v", seed, step, runs)
			for i, count := range got {
				if count < runs[i].charges {
					denied++
				}
				if count > 0 {
					made++
				}
			}
			merged.requireBounds(t)
			alone.requireBounds(t)
			some := tenants
			if len(some) > 3 {
				some = some[r.IntN(len(some)-2):][:3]
			}
			require.InDeltaSlice(t, alone.holds(t, some), merged.holds(t, some), 0.1, "seed %d, step %d", seed, step)
		}
	}
	require.Greater(t, denied, 200)
	require.Greater(t, made, 200)
}

// TestTenantsWhoseFinishHasPassedAreRemoved by a call that charges nothing, few or many of them, whatever
// their bounds say. If there are very many, it takes a few calls.
func TestTenantsWhoseFinishHasPassedAreRemoved(t *testing.T) {
	t.Parallel()
	source := testkit.ScriptSource(t, wire.Tenants)
	limit, ok := bucket.New(bucket.Token, "b", 1000, 100_000, 60_000)
	require.True(t, ok)
	heavy := []bucket.Tenant{{Name: ":heavy", Weight: 1}}
	for seed, count := range []int{5, 10, 20, 30, 40, 70, 100, 700} {
		r := rand.New(rand.NewPCG(uint64(seed), 4))
		s := newSharedScript(t, source, limit)
		require.Equal(t, []int64{1}, s.take(t, 20_000, heavy, []run{{0, 1}}))
		for range 3 {
			for first := 0; first < count; {
				var tenants []bucket.Tenant
				var runs []run
				var all []int64
				for range min(1+r.IntN(max(1, count/14)), count-first) {
					tenants = append(tenants, bucket.Tenant{Name: fmt.Sprint(":", first), Weight: 1 + r.Int64N(3)})
					charges := 1 + r.Int64N(20)
					runs, all = append(runs, run{len(runs), charges}), append(all, charges)
					first++
				}
				require.Equal(t, all, s.take(t, 1, tenants, runs))
			}
		}
		removed := 0
		for range 10 {
			s.advance(time.Duration(1+r.IntN(count)) * time.Second)
			before := s.rdb.HLen(t.Context(), "{k}:b:tenants:held").Val()
			for range 1 + count/100 {
				s.holds(t, heavy)
			}
			s.requireBounds(t)
			reply := s.look(t, heavy[0])
			b := bucket.NewTenants(&limit)
			v := b.Virtual(reply[2], reply[3], reply[0])
			held := s.rdb.HGetAll(t.Context(), "{k}:b:tenants:held").Val()
			removed += int(before) - len(held)
			delete(held, "t")
			for name, text := range held {
				require.Greater(t, float64(testkit.Must(strconv.ParseInt(text, 10, 64))/1024), v, "%s of %d", name, count)
			}
		}
		require.Greater(t, removed, count/2)
	}
}

// TestACallRemovesFewTenants of very many that have nothing left at once, so that no call holds Redis up. It forgets
// nobody who holds something.
func TestACallRemovesFewTenants(t *testing.T) {
	t.Parallel()
	source := testkit.ScriptSource(t, wire.Tenants)
	limit, ok := bucket.New(bucket.Token, "b", 1000, 100_000, 60_000)
	require.True(t, ok)
	heavy := []bucket.Tenant{{Name: ":heavy", Weight: 1}}
	s := newSharedScript(t, source, limit)
	s.take(t, 20_000, heavy, []run{{0, 1}})
	for i := range 32 {
		var tenants []bucket.Tenant
		var runs []run
		for j := range 64 {
			tenants, runs = append(tenants, bucket.Tenant{Name: fmt.Sprint(":", i, " ", j), Weight: 1}), append(runs, run{j, 1})
		}
		s.take(t, 1, tenants, runs)
	}
	held, bounds := s.mini.TTL("{k}:b:tenants:held"), s.mini.TTL("{k}:b:tenants")
	require.GreaterOrEqual(t, held, s.mini.TTL("{k}:b")+time.Minute, "so that a call removes both")
	require.Equal(t, held+time.Minute, bounds, "Redis does not free both at once")
	s.advance(3 * time.Minute)
	known := func() int64 { return s.rdb.HLen(t.Context(), "{k}:b:tenants:held").Val() }
	for left, calls := known(), 0; left > 2; calls++ {
		s.holds(t, heavy)
		require.LessOrEqual(t, left-known(), int64(400))
		require.Less(t, calls, 16)
		left = known()
	}
	holds := s.holds(t, heavy)
	require.InDelta(t, holds[1], holds[0]*float64(limit.Cost), float64(limit.Cost),
		"all that is taken is of the heavy one")
}

// TestRunsOfManyTenants with all weights, and as many charges as a call can have.
func TestRunsOfManyTenants(t *testing.T) {
	t.Parallel()
	source := testkit.ScriptSource(t, wire.Tenants)
	limit, ok := bucket.New(bucket.Token, "b", 1_000_000, 40_000, 60_000)
	require.True(t, ok)
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 5))
		merged, alone := newSharedScript(t, source, limit), newSharedScript(t, source, limit)
		var tenants []bucket.Tenant
		for i := range 256 {
			tenants = append(tenants, bucket.Tenant{Name: fmt.Sprint(":tenant ", i), Weight: 1 + r.Int64N(1000)})
		}
		for step, want := range []int64{20_000, 65_535, 300} {
			var runs []run
			var all int64
			for all < want {
				charges := min(want-all, 1+r.Int64N(2*want/256))
				runs, all = append(runs, run{r.IntN(len(tenants)), charges}), all+charges
			}
			got := merged.take(t, 1, tenants, runs)
			for i, one := range runs {
				made := alone.take(t, 1, tenants[one.tenant:one.tenant+1], []run{{0, one.charges}})[0]
				require.Equal(t, made, got[i], "seed %d, step %d, run %d", seed, step, i)
			}
			merged.requireBounds(t)
			require.InDeltaSlice(t, alone.holds(t, tenants[250:]), merged.holds(t, tenants[250:]), 0.1)
			merged.advance(time.Second)
			alone.advance(time.Second)
		}
	}
}

// TestForgottenTenantsAreBegunAnew: after a charge that is too large to say who holds what, a tenant that held
// something before has a bound again, in the same call.
func TestForgottenTenantsAreBegunAnew(t *testing.T) {
	t.Parallel()
	const n, many = 1 << 13, 1 << 15
	limit, ok := bucket.New(bucket.Token, "b", 1000, 4*n*many, 1000)
	require.True(t, ok)
	s := newSharedScript(t, testkit.ScriptSource(t, wire.Tenants), limit)
	tenants := []bucket.Tenant{{Name: ":small", Weight: 1}, {Name: ":huge", Weight: 1}}
	require.Equal(t, []int64{5, 5}, s.take(t, 1, tenants, []run{{0, 5}, {1, 5}}))
	require.Equal(t, []int64{many, 5}, s.take(t, n, tenants, []run{{1, many}, {0, 5}}))
	bounds := s.rdb.ZRange(t.Context(), "{k}:b:tenants", 0, -1).Val()
	require.ElementsMatch(t, []string{":", ":small"}, bounds, "the huge one is forgotten")
}

// TestWhatTenantsHeldExpires: nothing is left of it when nobody charges the bucket for them any more, also if others
// keep the bucket busy, and whenever one of them comes back.
func TestWhatTenantsHeldExpires(t *testing.T) {
	t.Parallel()
	source, ctx := testkit.ScriptSource(t, wire.Tenants), context.Background()
	limit, ok := bucket.New(bucket.Token, "b", 1000, 1000, 60_000)
	require.True(t, ok)
	for _, count := range []int{2, 300} {
		var tenants []bucket.Tenant
		var runs []run
		for i := range min(count, 256) {
			tenants, runs = append(tenants, bucket.Tenant{Name: fmt.Sprint(":", i), Weight: 2}), append(runs, run{i, 1})
		}
		for busy := 0; busy <= 240; busy += 10 {
			s := newSharedScript(t, source, limit)
			s.take(t, 1, tenants, runs)
			for range busy / 10 { // without tenants
				s.advance(10 * time.Second)
				require.NoError(t, s.rdb.Set(ctx, "{k}:b", "0", 15*time.Second).Err())
			}
			require.Equal(t, []int64{1}, s.take(t, 1, []bucket.Tenant{{Name: ":back", Weight: 1}}, []run{{0, 1}}))
			for _, key := range s.mini.Keys() {
				require.Positive(t, s.mini.TTL(key), "%s after %d s", key, busy)
			}
			s.advance(5 * time.Minute)
			require.Empty(t, s.mini.Keys(), "after %d s", busy)
		}
	}
}

// TestBoundsThatWereEvicted hold no call up, whatever the totals are, and those that follow expire.
func TestBoundsThatWereEvicted(t *testing.T) {
	t.Parallel()
	source, ctx := testkit.ScriptSource(t, wire.Tenants), context.Background()
	limit, ok := bucket.New(bucket.Token, "b", 1000, 1000, 60_000)
	require.True(t, ok)
	tenants := []bucket.Tenant{{Name: ":a", Weight: 1}, {Name: ":b", Weight: 1}, {Name: ":c", Weight: 1}}
	for _, totals := range []string{"", fmt.Sprint(int64(4*bucket.MaxFinish), " 2 65536 60000"),
		"9007199254740990 1000 1 60000"} {
		s := newSharedScript(t, source, limit)
		require.Equal(t, []int64{5, 5}, s.take(t, 1, tenants[:2], []run{{0, 5}, {1, 5}}))
		require.NoError(t, s.rdb.Del(ctx, "{k}:b:tenants").Err())
		if totals != "" {
			require.NoError(t, s.rdb.HSet(ctx, "{k}:b:tenants:held", "t", totals).Err())
		}
		require.Equal(t, []int64{1}, s.take(t, 1, tenants[2:], []run{{0, 1}}))
		for _, key := range s.mini.Keys() {
			require.Positive(t, s.mini.TTL(key), "%s of %q", key, totals)
		}
	}
}

// TestTenantsOfALargeBucket: the parts of its level are more than 2^63.
func TestTenantsOfALargeBucket(t *testing.T) {
	t.Parallel()
	const month = 30 * 24 * time.Hour
	limit, ok := bucket.New(bucket.Token, "s", 1_000_001, 1_000_001, month.Milliseconds())
	require.True(t, ok)
	s := newSharedScript(t, testkit.ScriptSource(t, wire.Tenants), limit)
	tenants := []bucket.Tenant{{Name: ":a", Weight: 1}, {Name: ":b", Weight: 1}}
	require.Equal(t, []int64{1, 1}, s.take(t, 200_000, tenants, []run{{0, 1}, {1, 1}}))
	held := s.holds(t, tenants)
	require.InDelta(t, 200_000, held[0], 0.001)
	require.InDelta(t, 200_000, held[2], 0.001)
	require.Equal(t, []int64{1, 0}, s.take(t, 200_000, tenants, []run{{0, 1}, {0, 1}}))
}
