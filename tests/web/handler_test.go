package web_test

import (
	"net/http"
	"net/netip"
	"strconv"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The options of a handler.

func TestCost(t *testing.T) { // as of a batch: a token for each of its items
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	cost := func(c *gin.Context) int { n, _ := strconv.Atoi(c.Query("n")); return n }
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(10), ginlimit.WithCost(cost)))
	for _, c := range []struct {
		n         int
		code      int
		remaining string
	}{
		{4, 200, "6"}, {0, 200, "6"}, {7, 429, "6"}, {6, 200, "0"}, {0, 200, "0"}, {1, 429, "0"},
		{-1, 500, ""}, {11, 429, "0"},
	} {
		rec := testkit.Get(r, "/?n="+strconv.Itoa(c.n))
		assert.Equal(t, c.code, rec.Code, c.n)
		assert.Equal(t, c.remaining, testkit.Remaining(rec), c.n)
		assert.Equal(t, c.code == 429 && c.n <= 10, rec.Header().Get("Retry-After") != "", c.n)
	}
	free := func(*gin.Context) int { return 0 }
	prohibited := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(0), ginlimit.WithCost(free)))
	assert.Equal(t, 429, testkit.Get(prohibited, "/").Code)
	without := testkit.Serve(testkit.Middleware(testkit.Unreachable(t), ginlimit.PerMinute(1), ginlimit.WithCost(free)))
	assert.Equal(t, 200, testkit.Get(without, "/").Code, "free, even if Redis is down and nothing else passes")
}

func TestRefund(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		rdb := b.Redis
		failed := func(c *gin.Context) bool { return c.Writer.Status() >= 400 }
		r := gin.New()
		_ = r.SetTrustedProxies(nil)
		r.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }),
			testkit.NewLimiter(t, rdb).Handler("test", ginlimit.PerHour(5), ginlimit.PerDay(10), ginlimit.WithRefund(failed),
				ginlimit.WithCost(func(c *gin.Context) int { return 2 })))
		r.GET("/ok", func(c *gin.Context) { c.Status(200) })
		r.GET("/failed", func(c *gin.Context) { c.Status(400) })
		r.GET("/panics", func(c *gin.Context) { panic("fault") })
		r.GET("/panics-late", func(c *gin.Context) { c.String(200, "begun"); panic("fault") })
		for range 3 {
			assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/failed")), "given back each time, and never above full")
			assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/panics")))
		}
		assert.Zero(t, rdb.DBSize(t.Context()).Val(), "full buckets")
		assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/panics-late")), "its answer had begun with 200: it counts")
		assert.Equal(t, "1", testkit.Remaining(testkit.Get(r, "/ok")))
		assert.Equal(t, 429, testkit.Get(r, "/failed").Code)
		assert.Equal(t, 429, testkit.Get(r, "/failed").Code, "what took nothing gives nothing back")
	})
}

func TestListsAndSkip(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	prefix := netip.MustParsePrefix
	r := testkit.Serve(func(c *gin.Context) {
		c.Next()
		if result, ok := ginlimit.FromContext(c); ok {
			c.Writer.Header().Set("Source", result.Source.String())
		}
	}, testkit.Middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithReplicas(1),
		ginlimit.WithAllowList(prefix("192.0.2.128/25"), prefix("2001:db8::/48"), prefix("::ffff:198.51.100.0/120")),
		ginlimit.WithDenyList(prefix("192.0.2.0/24"), prefix("2001:db8::/32"), prefix("64:ff9b::203.0.113.0/120")),
		ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("health") != "" })))
	for _, c := range []struct {
		address, path string
		codes         []int
	}{
		{"192.0.2.1:1", "/", []int{403, 403}},
		{"[::ffff:192.0.2.1]:1", "/", []int{403}},
		{"192.0.2.129:1", "/", []int{200, 200}}, // in both: allowed
		{"[2001:db8::1]:1", "/", []int{200, 200}},
		{"[2001:db8:1::1]:1", "/", []int{403}},
		{"198.51.100.7:1", "/", []int{200, 200}},
		{"[64:ff9b::198.51.100.7]:1", "/", []int{200, 200}},
		{"203.0.113.9:1", "/", []int{403}},
		{"203.0.112.9:1", "/", []int{200, 429}},
		{"203.0.112.9:1", "/?health=1", []int{200, 200}},
		{"192.0.2.1:1", "/?health=1", []int{403}},
		{"@", "/?health=1", []int{500}}, // who cannot be looked up is not let in
	} {
		for _, code := range c.codes {
			rec := testkit.Get(r, c.path, testkit.From(c.address))
			assert.Equal(t, code, rec.Code, "%s %s", c.address, c.path)
			assert.Equal(t, code == 429 || c.address == "203.0.112.9:1" && c.path == "/", testkit.Remaining(rec) != "")
			if code == 403 {
				assert.JSONEq(t, `{"type": "about:blank", "title": "Forbidden", "status": 403}`, rec.Body.String())
			}
		}
	}
	rec := testkit.Get(r, "/", testkit.From("192.0.2.1:1"))
	assert.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
	require.ElementsMatch(t, []string{"ginlimit:{1/m|203.0.112.9}:m"}, rdb.Keys(t.Context(), "*").Val())
}

func TestHeaderFunc(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	set := func(h http.Header, limits []ginlimit.Result) { h.Set("X-Left", strconv.Itoa(limits[0].Remaining)) }
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithHeaderFunc(set)),
		testkit.Middleware(rdb, ginlimit.PerMinute(9), ginlimit.WithHeaderFunc(set)), // further from exhaustion: not told in a field of that name
		testkit.Middleware(rdb, ginlimit.PerHour(1), ginlimit.WithHeaderFunc(set), ginlimit.WithDryRun()))
	for _, want := range []string{"1", "0", "0"} {
		assert.Equal(t, want, testkit.Get(r, "/").Header().Get("X-Left"))
	}
}
