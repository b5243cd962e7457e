package web_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

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
		ginlimit.WithClientObserver(nil)}
	faults := []string{"option 1 is nil", "WithKey", "WithDeniedHandler", "WithErrorHandler",
		"WithLogger", "WithPrefix", "WithKeySecret: 5 bytes", "WithReplicas(0)", "WithTimeout(0s)", "WithDenyCache(-1)",
		"WithObserver: the function is nil", "WithClientObserver: the function is nil"}

	l, err := ginlimit.NewLimiter(nilClient, bad...)
	require.Nil(t, l)
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
