//go:build integration

package limits_test

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// laterBy calls try with every choice of how many milliseconds have passed for each of several buckets: before version
// 7.2 the clock of Redis goes on while a script runs.
func laterBy(passed int64, buckets []*int64, try func()) {
	if len(buckets) == 0 {
		try()
		return
	}
	for at := range passed + 1 {
		*buckets[0] = at
		laterBy(passed, buckets[1:], try)
	}
}

// TestTraceEqualsModelOnRedis gives the model the levels in Redis before each step; the step may then
// come any of the milliseconds later that have passed.
func TestTraceEqualsModelOnRedis(t *testing.T) {
	t.Parallel()
	const seed, length = 101, 2000
	checked := 0
	e := testkit.RedisEngine(t, ginlimit.TokenBucket)
	for i, s := range testkit.Trace(seed, length, traceLimits, ample) {
		m := testkit.NewBucketModel()
		start := time.Now()
		var ats []*int64
		for _, l := range s.Limits {
			b := m.Bucket(s.Key, l)
			*b = *found(t, e, s.Key, l)
			ats = append(ats, &b.At)
		}
		got, err := s.Apply(t.Context(), e.Limiter)
		passed := time.Since(start).Milliseconds() + 1
		require.NoError(t, err)
		got.Source = 0
		if passed > 10 {
			continue // the machine was busy: too many choices
		}
		checked++

		wants := []ginlimit.Result{}
		m.Now = passed
		laterBy(passed, ats, func() {
			copied := testkit.NewBucketModel()
			copied.Now = m.Now
			for id, b := range m.Buckets {
				copied.Buckets[id] = &testkit.ModelBucket{Missing: new(big.Rat).Set(b.Missing), At: b.At, Block: b.Block}
			}
			wants = append(wants, s.Expect(copied))
		})
		require.Containsf(t, wants, got, "seed %d, step %d, %s", uint64(seed), i, s)
	}
	require.Positive(t, checked)
}

// TestWindowTraceEqualsModelOnRedis gives the model what is in Redis before each step; the step may then
// come any of the milliseconds later that have passed.
func TestWindowTraceEqualsModelOnRedis(t *testing.T) {
	t.Parallel()
	const seed, length = 101, 2000
	for _, a := range testkit.WindowAlgorithms {
		testkit.Run(t, a.String(), func(t *testing.T) {
			checked, e := 0, testkit.RedisEngine(t, a)
			steps := testkit.WindowTrace(seed, length/2)
			for i, s := range append(steps, testkit.WindowTrace(seed+1, length/2)...) {
				if s.Wait > 10*time.Millisecond {
					e.Advance(s.Wait)
				}
				start := time.Now()
				m, ats := testkit.NewWindowModel(a), []*int64{}
				for _, l := range s.Limits {
					w := m.Window(s.Key, l)
					*w = *e.Found(t, s.Key, l)
					ats = append(ats, &w.At)
				}
				got, err := s.Apply(t.Context(), e.Limiter)
				passed := time.Since(start).Milliseconds() + 1
				require.NoError(t, err)
				got.Source = 0
				if passed > 10 {
					continue // the machine was busy: too many choices
				}
				checked++
				var wants []ginlimit.Result
				laterBy(passed, ats, func() { // each window may be looked at in another millisecond
					copied := testkit.NewWindowModel(a)
					for id, w := range m.Windows {
						same := *w
						same.Taken = slices.Clone(w.Taken)
						copied.Windows[id] = &same
					}
					wants = append(wants, s.Expect(copied))
				})
				require.Containsf(t, wants, got, "seed %d, step %d, %s", uint64(seed), i, s)
			}
			require.Positive(t, checked)
		})
	}
}

// TestTenantsEqualTheModelOnRedis gives the model the levels in Redis before each step; the step may then
// come some milliseconds later, in which hardly anything flows back into these slow limits.
func TestTenantsEqualTheModelOnRedis(t *testing.T) {
	t.Parallel()
	const steps, clocks = 600, 3 // ms by which the model's clock is late, so that it is never early
	for seed, c := range tenantTraces() {
		if c.limit.Period < time.Minute {
			continue
		}
		testkit.Run(t, c.name, func(t *testing.T) {
			e := testkit.RedisEngine(t, ginlimit.TokenBucket)
			p, m := c.policy(t, e.Limiter), c.model()
			m.Now -= clocks
			for i, s := range testkit.TenantTrace(uint64(100+seed), steps, c.limit, c.most) {
				e.Advance(s.Wait)
				m.Advance(s.Wait)
				before := time.Now()
				m.Bucket("k", c.limit).At(found(t, e, "shared|k", c.limit).Missing)
				got := testkit.Must(s.Apply(t.Context(), p, "k"))
				passed := time.Since(before)
				if err := s.Check(m, "k", passed.Milliseconds()+clocks+1, c.limit, got); err != nil {
					require.Failf(t, "differs", "seed %d, step %d, %s: %s\ngot %+v", 100+seed, i, s, err, got)
				}
				m.Advance(time.Since(before)) // as the clock of Redis did
			}
		})
	}
}

// TestTenantsOnACluster: what tenants hold is on the node of the bucket, for every client of many.
func TestTenantsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testkit.StartCluster(t, 3)})
	t.Cleanup(func() { _ = cluster.Close() })
	limiter := testkit.NewLimiter(t, cluster, testkit.Patient(), ginlimit.WithDenyCache(0))
	p := testkit.NewPolicy(t, limiter, "shared", ginlimit.PerHour(8), ginlimit.WithShares(unusedTenant))
	for i := range 40 {
		client := fmt.Sprintf("client %d", i)
		a, b := p.Share("a", 1), p.Share("b", 1)
		for _, want := range []struct {
			p       *ginlimit.Policy
			granted int
			cause   ginlimit.Cause
		}{{a, 4, 0}, {a, 0, ginlimit.CauseShare}, {b, 2, 0}, {b, 0, ginlimit.CauseShare}} {
			r := testkit.Must(want.p.AllowUpTo(t.Context(), client, 9))
			require.Equal(t, want.granted, r.Granted, "%+v", r)
			require.Equal(t, want.cause, r.Cause)
		}
		require.NoError(t, a.Reset(t.Context(), client))
		require.NoError(t, b.Refund(t.Context(), client, 1))
		for tenant, want := range map[*ginlimit.Policy]int{a: 4, b: 3} {
			require.Equal(t, want, testkit.Must(tenant.Peek(t.Context(), client)).Remaining)
		}
	}
}

// admission is how many tokens were granted between two times of this machine's clock, which Redis goes by.
type admission struct {
	asked, answered time.Time
	granted         int
}

// requireSliding holds that no more than the limit was granted in any period. What was asked for
// and answered within a period was granted within it, however long the answers took.
func requireSliding(t *testing.T, limit ginlimit.Limit, admissions []admission) {
	t.Helper()
	within := limit.Period - 2*time.Millisecond // Redis counts whole ones, and before 7.2 they may go on within a script
	for i, last := range admissions {
		granted := 0
		for _, a := range slices.Backward(admissions[:i+1]) {
			if last.answered.Sub(a.asked) >= within {
				break
			}
			granted += a.granted
		}
		require.LessOrEqual(t, granted, limit.Rate, "in less than %s", within)
	}
}

// TestShortWindowsNeverAdmitMore asks as fast as it can, so that windows end while their scripts
// run. At times it pauses after a window has begun: most of that window is then taken at its end,
// shortly before the next one begins.
func TestShortWindowsNeverAdmitMore(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for _, limit := range []ginlimit.Limit{
			{Rate: 1, Period: time.Millisecond}, {Rate: 3, Period: 2 * time.Millisecond},
			{Rate: 40, Period: 9 * time.Millisecond}, {Rate: 20, Period: 30 * time.Millisecond},
		} {
			testkit.Run(t, fmt.Sprint(a, " ", limit), func(t *testing.T) {
				rdb := testkit.Connect(t, testkit.StartRedis(t))
				limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), ginlimit.WithDenyCache(0))
				var admissions []admission
				admitted := 0
				start, err := rdb.Time(t.Context()).Result() // the clock that they go by, which may be set
				require.NoError(t, err)
				for i := range 2000 {
					switch i % 100 {
					case 0:
						time.Sleep(limit.Period)
					case 1:
						time.Sleep(limit.Period * 3 / 4)
					}
					limits := []ginlimit.Limit{limit}
					if i%2 == 1 {
						limits = append(limits, testkit.AmpleWindow)
					}
					asked := time.Now().Round(0) // without the monotonic clock
					r := testkit.Must(limiter.AllowUpTo(t.Context(), "k", 1+i%3, limits...))
					if r.Granted > 0 {
						admissions = append(admissions, admission{asked, time.Now().Round(0), r.Granted})
					}
					require.LessOrEqual(t, r.RetryAfter, limit.Period)
					require.GreaterOrEqual(t, r.Remaining, 0)
					admitted += r.Granted
				}
				end := testkit.Must(rdb.Time(t.Context()).Result())
				windows := int(end.Sub(start)/limit.Period) + 2
				require.LessOrEqual(t, admitted, windows*limit.Rate)
				require.NotZero(t, admitted)
				if a == ginlimit.SlidingWindow {
					requireSliding(t, limit, admissions)
				}
			})
		}
	}
}

// TestLongLogsAreSearchedByHalves counts what a script does with a log of which nearly all has left.
func TestLongLogsAreSearchedByHalves(t *testing.T) {
	t.Parallel()
	e := testkit.RedisEngine(t, ginlimit.SlidingWindow)
	const entries = 20_000
	limit, ctx := ginlimit.PerHour(entries), t.Context()
	list := []any{fmt.Sprintf("0 %d %d", entries, entries+limit.Period.Milliseconds())}
	for i := range entries {
		list = append(list, i+1, i+1)
	}
	name := e.RedisKey("k", limit)
	require.NoError(t, e.Rdb.RPush(ctx, name, list...).Err())
	require.NoError(t, e.Rdb.PExpire(ctx, name, 10*time.Second).Err()) // so that the others have left
	do := func(what string, do func() error) {
		require.NoError(t, e.Rdb.ConfigResetStat(ctx).Err())
		require.NoError(t, do(), what)
		sum := 0
		for _, calls := range testkit.CommandCalls(t, e.Rdb) {
			n := testkit.Must(strconv.Atoi(calls))
			sum += n
		}
		require.Less(t, sum, 90, what)
	}
	do("Peek", func() error { _, err := e.Limiter.Peek(ctx, "k", limit); return err })
	do("Peek beside another limit", func() error {
		_, err := e.Limiter.Peek(ctx, "k", limit, ginlimit.PerDay(1))
		return err
	})
	do("a lower limit", func() error { _, err := e.Limiter.Allow(ctx, "k", ginlimit.PerHour(10)); return err })
	do("a large cost", func() error { _, err := e.Limiter.AllowN(ctx, "k", entries-3, limit); return err })
	do("Refund", func() error { return e.Limiter.Refund(ctx, "k", 5000, limit) })
	do("Block", func() error { return e.Limiter.Block(ctx, "k", time.Second, limit) })
	do("Peek of what is blocked", func() error { _, err := e.Limiter.Peek(ctx, "k", limit); return err })
}
