//go:build integration

package limits_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestAlgorithmsDoNotMeet(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limit := ginlimit.PerHour(3)
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))
		require.True(t, testkit.Must(limiter.AllowN(t.Context(), "k", 3, limit)).Allowed, a)
	}
	require.EqualValues(t, 3, rdb.DBSize(t.Context()).Val())
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
			t.Run(fmt.Sprint(a, " ", limit), func(t *testing.T) {
				t.Parallel()
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

// TestWindowsThatEndInTheirScript are many of a millisecond: the clock of Redis before 7.2 goes on between the commands
// of a script. None fails, and none is left without an end.
func TestWindowsThatEndInTheirScript(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := testkit.Connect(t, testkit.StartRedis(t))
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))
			limits := []ginlimit.Limit{{Rate: 1000, Period: time.Millisecond}, {Rate: 1000, Period: 2 * time.Millisecond}}
			var all sync.WaitGroup
			for caller := range 32 {
				all.Go(func() {
					for range 1500 / testkit.RaceShare {
						r, err := limiter.Allow(t.Context(), fmt.Sprint("k", caller), limits...)
						if !assert.NoError(t, err) || !assert.True(t, r.Allowed) {
							return
						}
					}
				})
			}
			all.Wait()
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return rdb.DBSize(t.Context()).Val() == 0 }))
		})
	}
}

// TestClockSetBack: where the clock of Redis goes back, as in a failover, a window lasts longer, and stays sound.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			e := testkit.RedisEngine(t, a)
			limit, ctx, name := ginlimit.PerMinute(5), t.Context(), e.RedisKey("k", ginlimit.PerMinute(5))
			back := func(d time.Duration) {
				require.NoError(t, e.Rdb.PExpire(ctx, name, testkit.Must(e.Rdb.PTTL(ctx, name).Result())+d).Err())
			}
			e.Allowed(t, 1, 4, limit)
			e.Advance(30 * time.Second)
			e.Allowed(t, 1, 3, limit)
			back(40 * time.Second)
			e.Allowed(t, 1, 2, limit)
			back(40 * time.Second)
			e.Allowed(t, 1, 1, limit, ginlimit.PerHour(9)) // by the way of several limits
			back(40 * time.Second)
			require.NoError(t, e.Limiter.Refund(ctx, "k", 1, limit))
			require.NoError(t, e.Limiter.Block(ctx, "k", time.Second, limit))
			back(2 * time.Second)
			e.Advance(10 * time.Second)
			e.Allowed(t, 2, 0, limit)
			require.Len(t, e.Found(t, "k", limit).Taken, 5)
			if a == ginlimit.SlidingWindow {
				require.LessOrEqual(t, e.AllowN(t, 1, limit).RetryAfter, limit.Period)
			}
			e.Advance(4 * time.Minute)
			e.Allowed(t, 5, 0, limit)
		})
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

// TestLogWithoutAnEndIsNotLeft: where a charge cannot be completed, it is not begun.
func TestLogWithoutAnEndIsNotLeft(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-pexpire").Err())
	rdb := redis.NewClient(&redis.Options{Addr: addr, Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(ginlimit.SlidingWindow))
	require.ErrorIs(t, testkit.Err(limiter.Allow(t.Context(), "k", ginlimit.PerHour(5))), ginlimit.ErrUnavailable)
	require.Zero(t, admin.DBSize(t.Context()).Val())
}

// The state of a window that is none is an error of that key alone, and nothing is written.
func TestForeignWindowsAreErrors(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	ctx, limit := t.Context(), ginlimit.PerHour(5)
	for _, a := range testkit.WindowAlgorithms {
		limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))
		name := testkit.Engine{Algorithm: a}.RedisKey("k", limit)
		for what, set := range map[string]func(){
			"a list":              func() { rdb.RPush(ctx, name, "x", "y") },
			"an expiring list":    func() { rdb.RPush(ctx, name, "x", "y"); rdb.Expire(ctx, name, time.Hour) },
			"a text":              func() { rdb.Set(ctx, name, "what", time.Hour) },
			"a number that stays": func() { rdb.Set(ctx, name, "1", 0) },
			"a log that stays":    func() { rdb.RPush(ctx, name, "0 1 3600000", "0", "1") },
			"a hash":              func() { rdb.HSet(ctx, name, "a", "b") },
		} {
			require.NoError(t, rdb.Del(ctx, name).Err())
			set()
			before := rdb.Dump(ctx, name).Val()
			for _, limits := range [][]ginlimit.Limit{{limit}, {ginlimit.PerMinute(3), limit}} {
				require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", limits...)), ginlimit.ErrUnavailable, "%s, %s", a, what)
				require.ErrorIs(t, limiter.Refund(ctx, "k", 1, limits...), ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Block(ctx, "k", time.Minute, limits...), ginlimit.ErrUnavailable)
			}
			require.Equal(t, before, rdb.Dump(ctx, name).Val())
			require.EqualValues(t, 1, rdb.DBSize(ctx).Val(), "nothing was charged")
			require.NoError(t, limiter.Reset(ctx, "k", ginlimit.PerMinute(1)))
		}
		require.NoError(t, rdb.FlushDB(ctx).Err()) // of a server of this test's own
	}
}

// Guarantee 2 where memory is full: nothing is charged, and no log is left half written.
func TestFullMemoryChargesNoWindow(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	ctx, limit := t.Context(), ginlimit.PerHour(50)
	for _, a := range testkit.WindowAlgorithms {
		limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), ginlimit.WithDenyCache(0))
		for range 3 {
			testkit.Must(limiter.Allow(ctx, "k", limit, ginlimit.PerDay(60)))
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		before := testkit.Must(limiter.Peek(ctx, "k", limit, ginlimit.PerDay(60)))
		for _, limits := range [][]ginlimit.Limit{{limit}, {limit, ginlimit.PerDay(60)}} {
			require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", limits...)), ginlimit.ErrUnavailable)
			require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "new", limits...)), ginlimit.ErrUnavailable)
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
		require.Equal(t, before.Remaining, testkit.Must(limiter.Peek(ctx, "k", limit, ginlimit.PerDay(60))).Remaining)
		r := testkit.Must(limiter.Allow(ctx, "k", limit))
		require.Equal(t, 46, r.Remaining)
		r = testkit.Must(limiter.Allow(ctx, "new", limit))
		require.Equal(t, 49, r.Remaining)
	}
}
