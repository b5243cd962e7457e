package ginlimit_test

import (
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Requests to an engine, and who sends them.

// serve returns an engine with the middleware in front of GET / and its group's /deep.
func serve(handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	_ = r.SetTrustedProxies(nil)
	r.Use(handlers...)
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "served") })
	return r
}

// middleware is [ginlimit.New] with the patience of a busy machine, and no decision that Redis has not made.
func middleware(rdb redis.UniversalClient, limit ginlimit.Limit, opts ...ginlimit.Option) gin.HandlerFunc {
	return ginlimit.New(rdb, limit, append([]ginlimit.Option{testkit.Patient(), ginlimit.WithFailure(ginlimit.FailClosed)}, opts...)...)
}

func get(h http.Handler, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for _, f := range edit {
		f(req)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

func from(address string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = address }
}

// with sets a header of a request.
func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func remaining(rec *httptest.ResponseRecorder) string {
	return rec.Header().Get("X-RateLimit-Remaining")
}

// byUser is the key that most of these tests count under.
func byUser() ginlimit.Option { return ginlimit.WithKey(ginlimit.ByHeader("X-User")) }

func user(name string) func(*http.Request) { return with("X-User", name) }
