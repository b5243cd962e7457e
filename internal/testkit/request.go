package testkit

import (
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// Requests to an engine, and who sends them.

// Serve returns an engine with the middleware in front of GET / and its group's /deep.
func Serve(handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	_ = r.SetTrustedProxies(nil)
	r.Use(handlers...)
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "served") })
	return r
}

// Middleware is a handler of a limiter of its own, named by its limit, with the patience of a busy machine,
// and no decision that Redis has not made.
func Middleware(rdb redis.UniversalClient, limit ginlimit.Limit, opts ...ginlimit.LimiterOption) gin.HandlerFunc {
	l, err := ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{
		Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithReplicas(1), ginlimit.WithDenyCache(0),
	}, opts...)...)
	if err != nil {
		panic(err)
	}
	return l.Handler(limit.String(), limit)
}

// Get sends a GET request that the functions have edited.
func Get(h http.Handler, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for _, f := range edit {
		f(req)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

// From sets the address that a request comes from.
func From(address string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = address }
}

// With sets a header of a request.
func With(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// Remaining returns the header field X-RateLimit-Remaining.
func Remaining(rec *httptest.ResponseRecorder) string {
	return rec.Header().Get("X-RateLimit-Remaining")
}

// ByUser is the key that most of these tests count under.
func ByUser() ginlimit.Option { return ginlimit.WithKey(ginlimit.ByHeader("X-User")) }

// User sets the header that [ByUser] reads.
func User(name string) func(*http.Request) { return With("X-User", name) }

// OK is a handler that answers 200.
func OK(c *gin.Context) { c.Status(http.StatusOK) }

// Everybody is a key that all clients share.
func Everybody(*gin.Context) (string, error) { return "all", nil }
