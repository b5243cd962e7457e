package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/chromedp/chromedp"
	"github.com/gin-contrib/cors"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// limitBehindCORS is the recipe of docs/guide.md, for pages of one origin.
func limitBehindCORS(router *gin.Engine, limiter *ginlimit.Limiter, page string) {
	router.Use(cors.New(cors.Config{ // github.com/gin-contrib/cors
		AllowOrigins: []string{page}, // of your pages
		AllowMethods: []string{"GET", "POST", "PUT", "DELETE"},
		AllowHeaders: []string{"Authorization", "Content-Type"},
		ExposeHeaders: []string{"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
			"X-RateLimit-Status", "RateLimit-Policy", "RateLimit"}, // or a page cannot read them
		MaxAge: time.Hour, // or a browser asks again after seconds
	}))
	router.GET("/ready", func(c *gin.Context) { c.Status(http.StatusOK) }) // not limited
	router.Use(limiter.Handler("all", ginlimit.PerHour(1000)))
	router.GET("/things/:id", func(c *gin.Context) { c.String(http.StatusOK, "thing") })
}

// TestGuideHasTheTestedOrder compares the recipe with the guide.
func TestGuideHasTheTestedOrder(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guide.md")
	require.NoError(t, err)
	code, err := os.ReadFile("cors_test.go")
	require.NoError(t, err)
	_, recipe, _ := strings.Cut(string(code),
		"limitBehindCORS(router *gin.Engine, limiter *ginlimit.Limiter, page string) {\n")
	recipe, _, _ = strings.Cut(recipe, "\n}\n")
	recipe = strings.ReplaceAll("\n"+recipe, "\n\t", "\n")
	recipe = strings.Replace(recipe, "[]string{page}", `[]string{"https://app.example.com"}`, 1)
	require.Contains(t, recipe, "ginlimit.PerHour")
	require.True(t, strings.Contains(string(guide), "```go"+recipe+"\n```"), "not in docs/guide.md:\n%s", recipe)
}

// TestPageOfAnotherOriginReadsDenials: with CORS before the limiter a page sees the 429, and preflights take no token.
func TestPageOfAnotherOriginReadsDenials(t *testing.T) {
	t.Parallel()
	gin.SetMode(gin.TestMode)
	const requests = 20
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
	}))
	defer page.Close()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(time.Minute))
	require.NoError(t, err)
	defer limiter.Close()
	other, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(time.Minute))
	require.NoError(t, err)
	defer other.Close()
	router := gin.New()
	require.NoError(t, router.SetTrustedProxies(nil))
	var preflights atomic.Int64
	router.Use(func(c *gin.Context) {
		if c.Request.Method == http.MethodOptions {
			preflights.Add(1)
		}
	})
	limitBehindCORS(router, limiter, page.URL)
	application := httptest.NewServer(router)
	defer application.Close()

	ctx := tab(t)
	_, err = chromedp.Run(ctx, chromedp.Navigate(page.URL))
	require.NoError(t, err)
	// A GET of JSON is sent after a preflight, whose answer is kept for its path.
	ask := func(path, field string) string {
		seen, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(
			`fetch(%q, { headers: { "Content-Type": "application/json" } })
				.then(r => r.status + " " + r.headers.get(%q)).catch(e => e.message)`,
			application.URL+path, field), chromedp.EvalAwaitPromise))
		require.NoError(t, err)
		return seen
	}
	var status, left int
	for i := range requests {
		_, err := fmt.Sscanf(ask(fmt.Sprint("/things/", i), "X-RateLimit-Remaining"), "%d %d", &status, &left)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status)
	}
	require.EqualValues(t, requests, preflights.Load())
	require.GreaterOrEqual(t, left, 1000-requests)

	all, err := other.Policy("all", ginlimit.PerHour(1000))
	require.NoError(t, err)
	require.NoError(t, all.Block(t.Context(), "127.0.0.1", time.Hour))
	require.Equal(t, "429 3600", ask("/things/0", "Retry-After"))
}
