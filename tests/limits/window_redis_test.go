//go:build integration

package limits_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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
