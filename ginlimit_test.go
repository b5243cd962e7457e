package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What only the package itself can see. Tests of the public API are in tests/.

// TestMain raises the default timeout for the Examples: on a busy machine Redis would be late.
func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	defaultTimeout = time.Minute
	os.Exit(m.Run())
}

// TestKeptLimitsAreBounded, whatever the number of plans.
func TestKeptLimitsAreBounded(t *testing.T) {
	t.Parallel()
	limiter, err := NewLocal()
	require.NoError(t, err)
	rate := 0
	p, err := limiter.Policy("test", WithLimitFunc(func(context.Context, string) ([]Limit, error) {
		rate++
		return []Limit{PerHour(rate)}, nil
	}))
	require.NoError(t, err)
	for range 5000 {
		res, err := p.Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, rate, res.Limit.Rate)
	}
	require.Len(t, p.clients.sets, 2048)
}

// TestReferenceHasTheExclusions: its table is made of the one from which constructors have their errors.
func TestReferenceHasTheExclusions(t *testing.T) {
	text, err := os.ReadFile("docs/reference.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "## What does not go together\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var rows strings.Builder
	for _, e := range exclusions {
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", e.option, e.other, e.instead)
	}
	_, table, _ := strings.Cut(section, "|---|---|---|\n")
	require.True(t, strings.HasPrefix(table, rows.String()+"\n"), "want:\n%s", rows.String())
}

// TestExclusions: what a policy has both of is an error; of a default of its limiter and its own, the default goes.
func TestExclusions(t *testing.T) {
	given := map[string]PolicyOption{
		"WithLimitFunc": WithLimitFunc(func(context.Context, string) ([]Limit, error) { return nil, nil }),
		"WithSettle":    WithSettle(func(*gin.Context) int { return 0 }),
		"WithRefund":    WithRefund(func(*gin.Context) bool { return false }),
		"WithShares":    WithShares(func(*gin.Context) (string, int) { return "", 1 }),
		"WithBan":       WithBan(time.Hour, time.Hour), "WithLease": WithLease(time.Second),
		"WithQueue": WithQueue(1, time.Second),
	}
	sliding := PerHour(5).WithAlgorithm(SlidingWindow)
	kinds := map[string][]Limit{
		limitBeside: {PerHour(5)}, secondLimit: {PerHour(5), PerDay(9)}, inFlight: {InFlight(1)}, anyWindow: {sliding},
		slidingWindow: {sliding}, calendarQuota: {PerCalendar(5, CalendarDay(nil))}, nothingCounted: {Unlimited()},
	}
	for i, row := range exclusions {
		if row.other == severalPolicies {
			continue
		}
		limits, isKind := kinds[row.other]
		own := []PolicyOption{given[row.option], WithLimits(limits...)}
		if !isKind {
			own = []PolicyOption{given[row.option], given[row.other], PerHour(5)}
		}
		l, err := NewLocal()
		require.NoError(t, err)
		if row.option != "WithLease" && row.other != "WithLease" {
			_, err = l.Policy(fmt.Sprint(i), own...)
			require.ErrorContains(t, err, row.String())
		}
		var c config
		c.fill(own)
		c.exclude(nil)
		require.Contains(t, fmt.Sprint(c.errs), row.String())
		byDefault, ok := given[row.option].(LimiterOption)
		if !ok {
			continue
		}
		limiter := newConfig([]LimiterOption{byDefault})
		require.Empty(t, limiter.errs)
		c = config{}
		c.fill(own[1:])
		c.exclude(limiter.defaults)
		require.Empty(t, c.errs, "%s", row)
		require.False(t, c.has(row.option) && c.has(row.other), "%s", row)
		require.True(t, c.has(row.other), "%s", row)
	}
}

// TestOneMoreLimiterIsSmall, with its first decision: the limiters of a process share their scripts.
func TestOneMoreLimiterIsSmall(t *testing.T) {
	const n, most = 20, 120_000
	refuses := func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }
	allocated := uint64(0)
	for i := range n + 1 {
		rdb := redis.NewClient(&redis.Options{Dialer: refuses, MaxRetries: -1, DialerRetries: 1})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		limiter, err := NewLimiter(rdb, WithLogger(slog.New(slog.DiscardHandler)), WithReplicas(1))
		require.NoError(t, err)
		p, err := limiter.Policy("p", PerMinute(1))
		require.NoError(t, err)
		_, _ = p.Allow(t.Context(), "k") // Redis is not there
		runtime.ReadMemStats(&after)
		if i > 0 { // the first composes the script
			allocated += after.TotalAlloc - before.TotalAlloc
		}
		require.NoError(t, errors.Join(limiter.Close(), rdb.Close()))
	}
	require.Less(t, allocated/n, uint64(most))
}

// TestEveryAlgorithmIsLeasedOrExcluded: WithLease is never without an effect that nobody is told of.
func TestEveryAlgorithmIsLeasedOrExcluded(t *testing.T) {
	for a := range allAlgorithms {
		limit := PerHour(5).WithAlgorithm(Algorithm(a))
		b, err := limit.bucket()
		require.NoError(t, err)
		var c config
		c.fill([]PolicyOption{WithLease(time.Second), limit})
		c.exclude(nil)
		require.Equal(t, b.Leasable(), len(c.errs) == 0, limit)
	}
}

// TestKeysAreNamedByTheirMakers, also where Go has inlined these: operators read the names.
func TestKeysAreNamedByTheirMakers(t *testing.T) {
	for want, f := range map[string]KeyFunc{
		"ByClientIP": nil, "ByClientIPPrefix": ByClientIPPrefix(24, 48), "ByHeader": ByHeader("A"), "ByParam": ByParam("a"),
		"ByAny": ByAny(ByRoute), "ByAll": ByAll(ByRoute), "ByValue": ByValue("a"), "ByRoute": ByRoute,
	} {
		require.Equal(t, want, kindOfKey(f))
	}
	require.Equal(t, "ByClientIP", kindOfKey(ByClientIP))
}
