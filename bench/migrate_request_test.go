package bench

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// Routers, clients and requests of these tests.

// newRouter returns an engine that answers GET / when it has got its middleware, and recovers from panics.
func newRouter(t *testing.T) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	must(t, router.SetTrustedProxies(nil))
	router.Use(gin.RecoveryWithWriter(io.Discard))
	return router
}

func ok(c *gin.Context) { c.Status(http.StatusOK) }

// patientLimiter returns a limiter that has Redis decide, however busy the machine is.
func patientLimiter(t *testing.T, rdb *redis.Client, opts ...ginlimit.LimiterOption) *ginlimit.Limiter {
	limiter, err := ginlimit.NewLimiter(rdb, append(opts, ginlimit.WithTimeout(10*time.Second))...)
	must(t, err)
	t.Cleanup(func() { _ = limiter.Close() })
	return limiter
}

// impatient returns a client that tries once.
func impatient(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// stop stops the server.
func stop(t *testing.T, rdb *redis.Client) {
	_ = rdb.ShutdownNoSave(t.Context()).Err() // it is the end of the connection
	for deadline := time.Now().Add(10 * time.Second); rdb.Ping(t.Context()).Err() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not stop")
		}
	}
}

// get requests / for a client.
func get(router *gin.Engine, client string) *httptest.ResponseRecorder {
	if !slices.ContainsFunc(router.Routes(), func(r gin.RouteInfo) bool { return r.Path == "/" }) {
		router.GET("/", ok) // after its middleware
	}
	return request(router, "/", client)
}

func request(router *gin.Engine, path, client string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = client + ":1234"
	if strings.Contains(client, ":") {
		r.RemoteAddr = "[" + client + "]:1234"
	}
	answer := httptest.NewRecorder()
	router.ServeHTTP(answer, r)
	return answer
}

// count sends n requests for / and returns how many were answered with the status.
func count(router *gin.Engine, n int, client string, status int) int {
	found := 0
	for range n {
		if get(router, client).Code == status {
			found++
		}
	}
	return found
}

// requireAnswer looks for the status, these header fields, and no others.
func requireAnswer(t *testing.T, name string, answer *httptest.ResponseRecorder, status int, fields map[string]string) {
	t.Helper()
	if answer.Code != status {
		t.Errorf("%s: %d, want %d", name, answer.Code, status)
	}
	got := slices.Sorted(maps.Keys(answer.Header()))
	if want := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%s has the fields %q, want %q", name, got, want)
	}
	for field, pattern := range fields {
		if value := answer.Header().Get(field); !regexp.MustCompile(pattern).MatchString(value) {
			t.Errorf("%s: %s: %s, want %s", name, field, value, pattern)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
