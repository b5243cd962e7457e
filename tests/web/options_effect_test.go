package web_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// validOptions are all options, each with a valid value.
var validOptions = map[string]ginlimit.Option{
	"WithPrefix":        ginlimit.WithPrefix("p"),
	"WithLogger":        ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
	"WithTimeout":       ginlimit.WithTimeout(time.Second),
	"WithDenyMemory":    ginlimit.WithDenyMemory(8),
	"WithReplicas":      ginlimit.WithReplicas(2),
	"WithFailure":       ginlimit.WithFailure(ginlimit.FailOpen),
	"WithAlgorithm":     ginlimit.WithAlgorithm(ginlimit.FixedWindow),
	"WithLease":         ginlimit.WithLease(time.Second),
	"WithKeySecret":     ginlimit.WithKeySecret([]byte("sixteen bytes...")),
	"WithObserver":      ginlimit.WithObserver(func(context.Context, ginlimit.Event) {}),
	"WithName":          ginlimit.WithName("n"),
	"WithKey":           testkit.ByUser(),
	"WithLimits":        ginlimit.WithLimits(ginlimit.PerDay(9)),
	"WithLimitFunc":     testkit.LimitsFrom(ginlimit.PerDay(9)),
	"WithIdentity":      ginlimit.WithIdentity("i", testkit.Everybody, ginlimit.PerDay(9)),
	"WithCost":          ginlimit.WithCost(func(*gin.Context) int { return 1 }),
	"WithRefund":        ginlimit.WithRefund(func(*gin.Context) bool { return false }),
	"WithSettle":        ginlimit.WithSettle(func(*gin.Context) int { return 1 }),
	"WithFloor":         ginlimit.WithFloor(1),
	"WithConcurrency":   ginlimit.WithConcurrency(1),
	"WithQueue":         ginlimit.WithQueue(1, time.Second),
	"WithBan":           ginlimit.WithBan(time.Second, time.Second),
	"WithSkip":          ginlimit.WithSkip(func(*gin.Context) bool { return false }),
	"WithAllowList":     ginlimit.WithAllowList(netip.MustParsePrefix("192.0.2.0/24")),
	"WithDenyList":      ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24")),
	"WithDryRun":        ginlimit.WithDryRun(),
	"WithHeaders":       ginlimit.WithHeaders(ginlimit.NoHeaders),
	"WithHeaderFunc":    ginlimit.WithHeaderFunc(func(http.Header, ginlimit.Result) {}),
	"WithDeniedHandler": ginlimit.WithDeniedHandler(func(*gin.Context, ginlimit.Result) {}),
	"WithErrorHandler":  ginlimit.WithErrorHandler(func(*gin.Context, error) {}),
}

// valid returns all options but some.
func valid(but ...string) (options []ginlimit.Option) {
	for name, option := range validOptions {
		if !contains(but, name) {
			options = append(options, option)
		}
	}
	return options
}

func contains(names []string, name string) bool {
	return strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ")
}

// requireFaults wants one line of an error to name each option, and no line to name another.
func requireFaults(t *testing.T, err error, names ...string) {
	t.Helper()
	if len(names) == 0 {
		require.NoError(t, err)
		return
	}
	require.Error(t, err)
	for _, name := range names {
		require.Contains(t, err.Error(), "ginlimit: "+name+" ")
	}
	require.Len(t, strings.Split(err.Error(), "\n"), len(names), err)
}

// TestOptionsWithoutEffectAreErrors, all at once.
func TestOptionsWithoutEffectAreErrors(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	conflicts := []string{"WithIdentity", "WithSettle"} // with WithQueue, and with WithRefund
	l, err := ginlimit.NewLimiter(rdb, valid(conflicts...)...)
	requireFaults(t, err)
	require.NoError(t, l.Close())

	ofRedis := []string{"WithPrefix", "WithTimeout", "WithDenyMemory", "WithReplicas",
		"WithKeySecret", "WithFailure", "WithLease"}
	_, err = ginlimit.NewLocal(valid(conflicts...)...)
	requireFaults(t, err, ofRedis...)
	local, err := ginlimit.NewLocal(valid(append(conflicts, ofRedis...)...)...)
	requireFaults(t, err)
	_, err = local.Policy(ginlimit.PerHour(5), validOptions["WithFailure"], validOptions["WithLease"])
	requireFaults(t, err) // the same routes run with and without Redis

	ofPlans := []string{"WithPrefix", "WithName", "WithTimeout", "WithKeySecret", "WithLogger"}
	source := func(context.Context, string) ([]ginlimit.Limit, error) { return nil, nil }
	var plans []ginlimit.Option
	var others []string
	for name, option := range validOptions {
		if contains(ofPlans, name) {
			plans = append(plans, option)
		} else if name != "WithSettle" {
			others = append(others, name)
		}
	}
	_, err = ginlimit.NewPlans(rdb, time.Hour, source, plans...)
	requireFaults(t, err)
	_, err = ginlimit.NewPlans(rdb, time.Hour, source, valid("WithSettle")...)
	requireFaults(t, err, others...)
	require.Len(t, validOptions, 30, "an option is missing here")
}

// TestOptionsGivenTwice: one that would silently drop what was given before is an error. Others may be given again.
func TestOptionsGivenTwice(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb)
	for name, option := range validOptions {
		opts := []ginlimit.Option{option, option}
		if name == "WithQueue" {
			opts = append(opts, ginlimit.WithConcurrency(1))
		}
		var want []string
		switch name {
		case "WithLimits", "WithAllowList", "WithDenyList", "WithSkip":
			want = []string{name}
		case "WithIdentity":
			continue // another name is wanted
		}
		limiter, err := ginlimit.NewLimiter(rdb, opts...)
		if requireFaults(t, err, want...); err == nil {
			require.NoError(t, limiter.Close())
		}
		if !contains([]string{"WithPrefix", "WithLogger", "WithTimeout", "WithDenyMemory",
			"WithReplicas", "WithKeySecret", "WithObserver"}, name) {
			_, err = l.Policy(ginlimit.PerHour(5), opts...)
			requireFaults(t, err, want...)
		}
	}
	_, err := l.Policy(ginlimit.PerHour(5), validOptions["WithLimits"], validOptions["WithSkip"],
		validOptions["WithLimits"], validOptions["WithSkip"])
	requireFaults(t, err, "WithLimits", "WithSkip")

	for _, both := range [][]ginlimit.Option{{validOptions["WithRefund"], validOptions["WithSettle"]},
		{validOptions["WithSettle"], validOptions["WithRefund"]}} {
		_, err = l.Policy(ginlimit.PerHour(5), both...)
		requireFaults(t, err, "WithRefund and WithSettle")
		limiter, err := ginlimit.NewLimiter(rdb, both...)
		requireFaults(t, err, "WithRefund and WithSettle")
		require.Nil(t, limiter)
		_, err = testkit.NewLocal(t, both[0]).Policy(ginlimit.PerHour(5), both[1])
		requireFaults(t, err)
	}
}

// TestOptionsOfAPolicyReplaceDefaults, though twice in a list they are errors.
func TestOptionsOfAPolicyReplaceDefaults(t *testing.T) {
	t.Parallel()
	skip := func(path string) ginlimit.Option {
		return ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("skip") == path })
	}
	l := testkit.NewLocal(t, testkit.ByUser(), ginlimit.WithLimits(ginlimit.PerMinute(1)), skip("limiter"),
		ginlimit.WithSettle(func(*gin.Context) int { return 0 }))
	r := testkit.Serve(testkit.NewPolicy(t, l, ginlimit.PerHour(9),
		ginlimit.WithLimits(ginlimit.PerDay(2)), skip("policy"),
		ginlimit.WithRefund(func(*gin.Context) bool { return false })).Handler())
	for range 2 {
		require.Equal(t, http.StatusOK, testkit.Get(r, "/?skip=limiter", testkit.User("alice")).Code)
	}
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/?skip=limiter", testkit.User("alice")).Code)
	require.Equal(t, http.StatusOK, testkit.Get(r, "/?skip=policy", testkit.User("alice")).Code)
}
