package web_test

import (
	"log/slog"
	"net/http"
	"net/netip"
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
	for _, bad := range []ginlimit.Option{ginlimit.WithTimeout(0), ginlimit.WithReplicas(0), ginlimit.WithAlgorithm(9)} {
		_, first := ginlimit.NewLocal(bad)
		require.Error(t, first)
		_, again := ginlimit.NewLocal(bad)
		require.Equal(t, first, again)
	}

	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	limits := []ginlimit.Limit{ginlimit.PerHour(1)}
	everybody := func(*gin.Context) (string, error) { return "all", nil }
	opts := []ginlimit.Option{ginlimit.WithLimits(limits...), ginlimit.WithIdentity("all", everybody, limits...)}
	allow, deny := ginlimit.WithAllowList(prefixes...), ginlimit.WithDenyList(prefixes...)
	prefixes[0], limits[0] = netip.MustParsePrefix("198.51.100.0/24"), ginlimit.Limit{}
	local, err := ginlimit.NewLocal(opts...)
	require.NoError(t, err)
	for _, list := range []ginlimit.Option{allow, deny} {
		r := testkit.Serve(local.Handler(ginlimit.PerMinute(0), list))
		assert.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.From("198.51.100.1:1")).Code)
		assert.NotEqual(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.From("192.0.2.1:1")).Code)
	}
}

func TestBadConfigurationNamesEveryFault(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	var nilClient *redis.Client
	bad := []ginlimit.Option{nil, ginlimit.WithName(""), ginlimit.WithKey(nil), ginlimit.WithDeniedHandler(nil),
		ginlimit.WithErrorHandler(nil), ginlimit.WithLogger(nil), ginlimit.WithPrefix("{a}"),
		ginlimit.WithLimits(ginlimit.Limit{Rate: 5, Period: time.Minute, Burst: -1})}
	faults := []string{"option 1 is nil", "WithName", "WithKey", "WithDeniedHandler", "WithErrorHandler",
		"WithLogger", "WithPrefix", "burst is negative"}

	l, err := ginlimit.NewLimiter(nilClient, bad...)
	require.Nil(t, l)
	for _, fault := range append(faults, "client is nil") {
		assert.ErrorContains(t, err, fault)
	}
	_, err = ginlimit.NewLimiter(nil)
	require.ErrorContains(t, err, "client is nil")
	_, err = ginlimit.NewLocal(bad...)
	for _, fault := range faults {
		assert.ErrorContains(t, err, fault)
	}

	text := testkit.PanicText(t, func() { ginlimit.New(nil, ginlimit.Limit{}, bad...) })
	for _, fault := range append(faults, "client is nil", "zero Limit") {
		assert.Contains(t, text, fault)
	}
	for line := range strings.Lines(text) {
		assert.True(t, strings.HasPrefix(line, "ginlimit: "), line)
	}

	good := testkit.NewLimiter(t, rdb)
	text = testkit.PanicText(t, func() {
		good.Handler(ginlimit.PerMinute(5), ginlimit.WithLimits(ginlimit.PerMinute(6)), ginlimit.WithPrefix("x"),
			ginlimit.WithLogger(slog.Default()), ginlimit.WithName(""))
	})
	for _, fault := range []string{"same period", "WithPrefix is an option of the limiter",
		"WithLogger is an option of the limiter", "WithName"} {
		assert.Contains(t, text, fault)
	}
}

func TestOptionsOfTheLimiterAreDefaultsOfItsHandlers(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.Query("user"), nil }),
		ginlimit.WithName("default"))
	r := gin.New()
	r.GET("/a", l.Handler(ginlimit.PerHour(1)))
	r.GET("/b", l.Handler(ginlimit.PerHour(1), ginlimit.WithName("other")))
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/a?user=2").Code)
	assert.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, testkit.Get(r, "/b?user=1").Code)
}

func TestAllFaultsOfAHandlerAtOnce(t *testing.T) {
	t.Parallel()
	text := testkit.PanicText(t, func() {
		testkit.NewLimiter(t, testkit.Unreachable(t)).Handler(ginlimit.PerMinute(1),
			ginlimit.WithCost(nil), ginlimit.WithRefund(nil), ginlimit.WithSkip(nil),
			ginlimit.WithLimitFunc(nil), ginlimit.WithHeaderFunc(nil),
			ginlimit.WithKeySecret([]byte("short")), ginlimit.WithReplicas(0),
			ginlimit.WithFailure(9), ginlimit.WithIdentity("", nil),
			ginlimit.WithIdentity("a", ginlimit.ByClientIP, ginlimit.Limit{}),
			ginlimit.WithIdentity("a", ginlimit.ByClientIP, ginlimit.PerHour(1)),
			ginlimit.WithAllowList(netip.Prefix{}),
			ginlimit.WithDenyList(netip.MustParsePrefix("::/0"), netip.MustParsePrefix("::ffff:0:0/95")))
	})
	for _, fault := range []string{"WithCost", "WithRefund", "WithSkip", "WithLimitFunc",
		"WithHeaderFunc", "WithKeySecret: 5 bytes",
		"WithKeySecret is an option of the limiter", "WithReplicas(0)",
		"WithReplicas is an option of the limiter", "WithFailure(9)",
		`WithIdentity: the name`, `WithIdentity(""): the function`,
		`WithIdentity("a"): ginlimit: invalid limit`, `WithIdentity("a"): there is another`,
		"WithAllowList: the prefix", "WithDenyList: the prefix ::ffff:0.0.0.0/95"} {
		assert.Contains(t, text, fault)
	}
	assert.NotContains(t, text, "::/0 ")
}
