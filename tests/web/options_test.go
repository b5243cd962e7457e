package web_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestOptionsHoldWhatTheyWereGiven uses options again, and changes what they were made of.
func TestOptionsHoldWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	for _, bad := range []ginlimit.LimiterOption{
		ginlimit.WithTimeout(0), ginlimit.WithReplicas(0), ginlimit.WithFloor(-1)} {
		_, first := ginlimit.NewLocal(bad)
		require.Error(t, first)
		_, again := ginlimit.NewLocal(bad)
		require.Equal(t, first, again)
	}

	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	limits := []ginlimit.Limit{ginlimit.PerHour(1)}
	own := ginlimit.WithLimits(limits...)
	allow, deny := ginlimit.WithAllowList(prefixes...), ginlimit.WithDenyList(prefixes...)
	prefixes[0], limits[0] = netip.MustParsePrefix("198.51.100.0/24"), ginlimit.Limit{}
	for _, list := range []ginlimit.Option{allow, deny} {
		r := testkit.Serve(testkit.NewLocal(t).Handler("test", own, ginlimit.PerMinute(0), list))
		assert.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.From("198.51.100.1:1")).Code)
		assert.NotEqual(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.From("192.0.2.1:1")).Code)
	}
}

func TestBadConfigurationNamesEveryFault(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	var nilClient *redis.Client
	bad := []ginlimit.LimiterOption{nil, ginlimit.WithKey(nil), ginlimit.WithDeniedHandler(nil),
		ginlimit.WithErrorHandler(nil), ginlimit.WithLogger(nil), ginlimit.WithPrefix("{a}"),
		ginlimit.WithKeySecret([]byte("short")), ginlimit.WithReplicas(0), ginlimit.WithTimeout(0),
		ginlimit.WithDenyCache(-1), ginlimit.WithObserver(nil),
		ginlimit.WithClientObserver(nil), ginlimit.WithFloor(-1), ginlimit.WithHeaders(4 | ginlimit.XRateLimit)}
	faults := []string{"option 1 is nil", "WithKey", "WithDeniedHandler", "WithErrorHandler",
		"WithLogger", "WithPrefix", "WithKeySecret: 5 bytes", "WithReplicas(0)", "WithTimeout(0s)", "WithDenyCache(-1)",
		"WithObserver: the function is nil", "WithClientObserver: the function is nil", "WithFloor(-1): want at least 0",
		"WithHeaders(5)"}

	l, err := ginlimit.NewLimiter(nilClient, bad...)
	require.Nil(t, l)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	for _, fault := range append(faults, "client is nil") {
		assert.ErrorContains(t, err, fault)
	}
	require.ErrorContains(t, testkit.Err(ginlimit.NewLimiter(nil)), "client is nil")
	_, err = ginlimit.NewLocal(bad...)
	for _, fault := range faults {
		assert.ErrorContains(t, err, fault)
	}

	text := testkit.PanicText(t, func() { ginlimit.New(nil, "", ginlimit.Limit{}, ginlimit.WithKey(nil), nil) })
	for _, fault := range []string{"client is nil", "the policy has no name", "zero Limit", "WithKey", "option 3 is nil"} {
		assert.Contains(t, text, fault)
	}
	for line := range strings.Lines(text) {
		assert.True(t, strings.HasPrefix(line, "ginlimit: "), line)
	}

	good := testkit.NewLimiter(t, rdb)
	text = testkit.PanicText(t, func() {
		good.Handler("", ginlimit.PerMinute(5), ginlimit.PerMinute(6), ginlimit.WithFloor(-1))
	})
	for _, fault := range []string{"same period", "WithFloor(-1)", "the policy has no name"} {
		assert.Contains(t, text, fault)
	}
}

// limiterOptions are the options of a limiter alone, each with a valid value.
var limiterOptions = map[string]ginlimit.LimiterOption{
	"WithPrefix":         ginlimit.WithPrefix("p"),
	"WithLogger":         ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
	"WithTimeout":        ginlimit.WithTimeout(time.Second),
	"WithDenyCache":      ginlimit.WithDenyCache(8),
	"WithReplicas":       ginlimit.WithReplicas(2),
	"WithKeySecret":      ginlimit.WithKeySecret([]byte("sixteen bytes...")),
	"WithObserver":       ginlimit.WithObserver(func(context.Context, ginlimit.Event) {}),
	"WithClientObserver": ginlimit.WithClientObserver(func(context.Context, ginlimit.Event, string) {}),
}

// onlyPolicyOptions are the options of a policy that are no defaults, each with a valid value.
var onlyPolicyOptions = map[string]ginlimit.PolicyOption{
	"WithLimitFunc": testkit.LimitsFrom(ginlimit.PerDay(9)),
	"WithShares":    ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 }),
}

// policyOptions are the other options of a policy, each with a valid value.
var policyOptions = map[string]ginlimit.Option{
	"WithFailureMode":   ginlimit.WithFailureMode(ginlimit.FailOpen),
	"WithLease":         ginlimit.WithLease(time.Second),
	"WithKey":           testkit.ByUser(),
	"WithCost":          ginlimit.WithCost(func(*gin.Context) int { return 1 }),
	"WithRefund":        ginlimit.WithRefund(func(*gin.Context) bool { return false }),
	"WithSettle":        ginlimit.WithSettle(func(*gin.Context) int { return 1 }),
	"WithFloor":         ginlimit.WithFloor(1),
	"WithQueue":         ginlimit.WithQueue(1, time.Second),
	"WithBan":           ginlimit.WithBan(time.Second, time.Second),
	"WithSkip":          ginlimit.WithSkip(func(*gin.Context) bool { return false }),
	"WithAllowList":     ginlimit.WithAllowList(netip.MustParsePrefix("192.0.2.0/24")),
	"WithDenyList":      ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24")),
	"WithDryRun":        ginlimit.WithDryRun(),
	"WithHeaders":       ginlimit.WithHeaders(ginlimit.NoHeaders),
	"WithHeaderFunc":    ginlimit.WithHeaderFunc(func(http.Header, []ginlimit.Result) {}),
	"WithDeniedHandler": ginlimit.WithDeniedHandler(func(*gin.Context, ginlimit.Result) {}),
	"WithErrorHandler":  ginlimit.WithErrorHandler(func(*gin.Context, error) {}),
}

// valid returns all options of a limiter but some.
func valid(but ...string) (options []ginlimit.LimiterOption) {
	for name, option := range limiterOptions {
		if !slices.Contains(but, name) {
			options = append(options, option)
		}
	}
	for name, option := range policyOptions {
		if !slices.Contains(but, name) {
			options = append(options, option)
		}
	}
	return options
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
	conflicts := []string{"WithSettle"} // with WithRefund
	l, err := ginlimit.NewLimiter(rdb, valid(conflicts...)...)
	requireFaults(t, err)
	require.NoError(t, l.Close())

	ofRedis := []string{"WithPrefix", "WithTimeout", "WithDenyCache", "WithReplicas",
		"WithKeySecret", "WithFailureMode", "WithLease"}
	_, err = ginlimit.NewLocal(valid(conflicts...)...)
	requireFaults(t, err, ofRedis...)
	local, err := ginlimit.NewLocal(valid(append(conflicts, append(ofRedis, "WithQueue")...)...)...)
	requireFaults(t, err)
	_, err = local.Policy("test", ginlimit.PerHour(5), policyOptions["WithFailureMode"], policyOptions["WithLease"])
	requireFaults(t, err) // the same routes run with and without Redis
	require.Len(t, limiterOptions, 8, "an option is missing here")
	require.Len(t, policyOptions, 17, "an option is missing here")
	for name, option := range onlyPolicyOptions {
		require.NotImplements(t, (*ginlimit.LimiterOption)(nil), option, name)
	}
}

// TestOptionsGivenTwice: one that would silently drop what was given before is an error. Others may be given again.
func TestOptionsGivenTwice(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb)
	once := func(name string) []string {
		if slices.Contains([]string{"WithAllowList", "WithDenyList", "WithSkip"}, name) {
			return []string{name}
		}
		return nil
	}
	made := func(name string, option ginlimit.LimiterOption) {
		limiter, err := ginlimit.NewLimiter(rdb, option, option)
		if requireFaults(t, err, once(name)...); err == nil {
			require.NoError(t, limiter.Close())
		}
	}
	for name, option := range limiterOptions {
		made(name, option)
	}
	ofPolicies := maps.Clone(onlyPolicyOptions)
	for name, option := range policyOptions {
		made(name, option)
		ofPolicies[name] = option
	}
	for name, option := range ofPolicies {
		opts := []ginlimit.PolicyOption{option, option}
		switch name {
		case "WithQueue":
			opts = append(opts, ginlimit.PerHour(5), ginlimit.InFlight(1))
		case "WithLimitFunc":
		default:
			opts = append(opts, ginlimit.PerHour(5))
		}
		_, err := l.Policy(name, opts...)
		requireFaults(t, err, once(name)...)
	}
	skip, deny := policyOptions["WithSkip"], policyOptions["WithDenyList"]
	_, err := l.Policy("test", ginlimit.PerHour(5), deny, skip, deny, skip)
	requireFaults(t, err, "WithSkip", "WithDenyList")
	p, err := l.Policy("several limits", ginlimit.WithLimits(ginlimit.PerHour(5)), ginlimit.PerMinute(5),
		ginlimit.WithLimits(ginlimit.PerSecond(5)))
	requireFaults(t, err)
	require.Len(t, testkit.Must(p.Status(t.Context(), "192.0.2.1")), 3, "limits add up")
}

// TestOptionsOfAPolicyReplaceDefaults, though twice in a list they are errors.
func TestOptionsOfAPolicyReplaceDefaults(t *testing.T) {
	t.Parallel()
	skip := func(path string) ginlimit.Option {
		return ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("skip") == path })
	}
	l := testkit.NewLocal(t, testkit.ByUser(), skip("limiter"),
		ginlimit.WithSettle(func(*gin.Context) int { return 0 }))
	r := testkit.Serve(testkit.NewPolicy(t, l, "test", ginlimit.PerHour(9), ginlimit.PerDay(2), skip("policy"),
		ginlimit.WithRefund(func(*gin.Context) bool { return false })).Handler())
	for range 2 {
		require.Equal(t, http.StatusOK, testkit.Get(r, "/?skip=limiter", testkit.User("alice")).Code)
	}
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/?skip=limiter", testkit.User("alice")).Code)
	require.Equal(t, http.StatusOK, testkit.Get(r, "/?skip=policy", testkit.User("alice")).Code)
}

func TestOptionsOfTheLimiterAreDefaultsOfItsHandlers(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.Query("user"), nil }))
	r := gin.New()
	r.GET("/a", l.Handler("one", ginlimit.PerHour(1)))
	r.GET("/b", l.Handler("other", ginlimit.PerHour(1)))
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/a?user=2").Code)
	assert.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/b?user=1").Code)
}
