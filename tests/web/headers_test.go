package web_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Which fields tell of a limit.

func TestExactHeaderSets(t *testing.T) {
	t.Parallel()
	x := http.Header{"X-Ratelimit-Limit": {"2"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"60"}}
	fields := http.Header{"Ratelimit-Policy": {`"search";q=2;w=60`}, "Ratelimit": {`"search";r=0;t=30`}}
	for name, row := range map[string]struct {
		headers ginlimit.Headers
		want    []http.Header
	}{
		"by default": {ginlimit.XRateLimit, []http.Header{x}},
		"draft":      {ginlimit.RateLimitDraft, []http.Header{fields}},
		"both":       {ginlimit.XRateLimit | ginlimit.RateLimitDraft, []http.Header{x, fields}},
		"none":       {ginlimit.NoHeaders, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("search", ginlimit.PerMinute(2),
				ginlimit.WithHeaders(row.headers)))
			testkit.Get(r, "/")
			allowed := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
			denied := http.Header{"Content-Type": {"application/problem+json"}, "Content-Length": {"191"},
				"Retry-After": {"30"}, "Cache-Control": {"no-store"}}
			for _, set := range row.want {
				for field, value := range set {
					allowed[field], denied[field] = value, value
				}
			}
			assert.Equal(t, allowed, testkit.Get(r, "/").Header())
			rec := testkit.Get(r, "/")
			assert.Equal(t, denied, rec.Header())
			assert.Equal(t, []string{"search"}, violated(t, rec))
		})
	}
}

// TestEveryHandlersFieldsAreThere, though an earlier handler that sets others is closer to exhaustion.
func TestEveryHandlersFieldsAreThere(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb)
	own := ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
		h.Set("Left", strconv.Itoa(limits[0].Remaining))
	})
	r := testkit.Serve(limiter.Handler("3/h", ginlimit.PerHour(3), ginlimit.WithHeaders(ginlimit.NoHeaders)),
		limiter.Handler("100/m", ginlimit.PerMinute(100)),
		limiter.Handler("own", ginlimit.PerMinute(50), ginlimit.WithHeaders(ginlimit.NoHeaders), own),
		limiter.Handler("looser", ginlimit.PerMinute(70), own))
	h := testkit.Get(r, "/").Header()
	assert.Equal(t, "69", h.Get("X-RateLimit-Remaining"))
	assert.Equal(t, "49", h.Get("Left"))
}

func TestDegradedHeaderOfAnyHandler(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	lost := ginlimit.New(testkit.Unreachable(t), "lost", ginlimit.PerMinute(1000))
	rec := testkit.Get(testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2)), lost), "/")
	assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	assert.Equal(t, "1", rec.Header().Get("X-RateLimit-Remaining"))
}

func TestDegradedHeaderUnlessNoHeaders(t *testing.T) {
	t.Parallel()
	for headers, want := range map[ginlimit.Headers]string{
		ginlimit.XRateLimit: "degraded", ginlimit.RateLimitDraft: "degraded", ginlimit.NoHeaders: "",
	} {
		r := testkit.Serve(testkit.WithoutRedis(t, ginlimit.WithReplicas(2)).Handler("x", ginlimit.PerMinute(4),
			ginlimit.WithHeaders(headers)))
		rec := testkit.Get(r, "/")
		assert.Equal(t, want, rec.Header().Get("X-RateLimit-Status"))
		if headers == ginlimit.RateLimitDraft {
			assert.Equal(t, []item{{"x", 4, 60, -1, -1}}, policiesOf(t, rec), "of the whole limit")
			assert.Equal(t, []item{{"x", -1, -1, 1, 30}}, limitsOf(t, rec), "of this process' share")
		}
	}
}

// TestDegradedHeaderOfFailOpen: the request passes, though nobody has counted it, under any of its keys.
func TestDegradedHeaderOfFailOpen(t *testing.T) {
	t.Parallel()
	limiter := testkit.WithoutRedis(t, ginlimit.WithFailureMode(ginlimit.FailOpen))
	one := limiter.Must("one", ginlimit.PerHour(1))
	for name, handler := range map[string]gin.HandlerFunc{
		"one key":  one.Handler(),
		"two keys": ginlimit.AllOf(one, limiter.Must("all", testkit.All(), ginlimit.PerHour(1))),
		"slots":    limiter.Handler("slots", ginlimit.PerHour(1), ginlimit.InFlight(1)),
	} {
		var found ginlimit.Result
		r := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) },
			handler)
		for range 3 {
			rec := testkit.Get(r, "/")
			require.Equal(t, http.StatusOK, rec.Code, name)
			require.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"), name)
			require.Equal(t, ginlimit.FromOpen, found.Source, name)
			require.Zero(t, found.Cause, name)
		}
	}
}

func TestHeadersOfABadKindAreAFault(t *testing.T) {
	t.Parallel()
	_, err := ginlimit.NewLocal(ginlimit.WithHeaders(4 | ginlimit.XRateLimit))
	require.ErrorContains(t, err, "WithHeaders(5)")
}
