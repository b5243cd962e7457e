package bench

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"

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

// requireFields looks for these header fields, whose values are regular expressions.
func requireFields(t *testing.T, answer *httptest.ResponseRecorder, fields map[string]string) {
	t.Helper()
	for field, pattern := range fields {
		if value := answer.Header().Get(field); !regexp.MustCompile(pattern).MatchString(value) {
			t.Errorf("%s: %s, want %s", field, value, pattern)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A move is an application before and after it came to ginlimit.
type move struct {
	name         string
	before       func(*gin.Engine, *redis.Client) error
	after        func(*gin.Engine, *ginlimit.Limiter) error
	fields       map[string]string // of the first answer before, as docs/migration.md has them
	withoutRedis int               // the status before of a request without Redis; 0 where there is none
}

const unixTime = `^[1-9][0-9]{9}$`

var moves = []move{
	{"ulule", ululeBefore, ululeAfter, map[string]string{"X-RateLimit-Reset": unixTime},
		http.StatusInternalServerError},
	{"redis_rate", redisRateBefore, redisRateAfter, nil, http.StatusInternalServerError},
	{"JGL", jglBefore, jglAfter, map[string]string{"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^19$",
		"X-Rate-Limit-Reset": unixTime}, http.StatusOK},
	{"tollbooth", tollboothBefore, tollboothAfter, map[string]string{"RateLimit-Limit": "^0$"}, 0},
}

// TestMigrationOfUluleTexts reads limits as ulule does.
func TestMigrationOfUluleTexts(t *testing.T) {
	for _, text := range []string{"5-S", "10-M", "100-m", "1000-H", "2000-D"} {
		rate, err := limiter.NewRateFromFormatted(text)
		must(t, err)
		limit, err := fromUlule(text)
		must(t, err)
		if want := (ginlimit.Limit{Rate: int(rate.Limit), Period: rate.Period}); limit != want {
			t.Errorf("%s: %s, want %s", text, limit, want)
		}
	}
	for _, text := range []string{"", "5", "5-W", "x-M"} {
		if _, err := limiter.NewRateFromFormatted(text); err == nil {
			t.Errorf("ulule reads %q", text)
		}
		if _, err := fromUlule(text); err == nil {
			t.Errorf("fromUlule reads %q", text)
		}
	}
}

// TestMigrationKeepsUluleReset has X-RateLimit-Reset be a Unix time as before.
func TestMigrationKeepsUluleReset(t *testing.T) {
	limiter, err := localLimiter()
	must(t, err)
	defer limiter.Close()
	router := newRouter(t)
	router.Use(limiter.Handler("api", ginlimit.PerHour(20), ululeFields()))
	requireFields(t, get(router, "203.0.113.7"), map[string]string{"X-RateLimit-Reset": unixTime})
}
