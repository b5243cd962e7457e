package bench

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
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

// A move is an application before and after it came to ginlimit, and what its answers say: header fields and, as a
// regular expression, the value of each.
type move struct {
	name                    string
	before                  func(*gin.Engine, *redis.Client) error
	after                   func(*gin.Engine, *ginlimit.Limiter) error
	firstBefore, firstAfter map[string]string // of the first request
	denialBefore            map[string]string
	denialAfter             map[string]string
	withoutRedis            int // the status before of a request without Redis; 0 where there is none
}

// Patterns of a header's value. A test may be a hundred seconds late.
const (
	unixTime    = `^[1-9][0-9]{9}$`
	untilHour   = `^(3600|35[0-9]{2})$`
	untilToken  = `^(180|1[0-7][0-9]|[89][0-9])$` // 20 an hour
	problemType = `^application/problem\+json$`
	plainText   = `^text/plain; charset=utf-8$`
)

var (
	bucketFirst = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilToken,
	}
	bucketDenial = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour,
		"Retry-After":   untilToken,
		"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
	}
)

var moves = []move{
	{
		name: "ulule", before: ululeBefore, after: ululeAfter,
		firstBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": unixTime,
		},
		firstAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilHour,
		},
		denialBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": unixTime,
			"Content-Type": plainText,
		},
		denialAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour,
			"Retry-After":   untilHour,
			"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
		},
		withoutRedis: http.StatusInternalServerError,
	},
	{
		name: "redis_rate", before: redisRateBefore, after: redisRateAfter,
		firstBefore:  map[string]string{"X-Ratelimit-Remaining": "^19$"},
		firstAfter:   bucketFirst,
		denialBefore: map[string]string{"X-Ratelimit-Remaining": "^0$", "Retry-After": untilToken},
		denialAfter:  bucketDenial,
		withoutRedis: http.StatusInternalServerError,
	},
	{
		name: "JGL", before: jglBefore, after: jglAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^19$", "X-Rate-Limit-Reset": unixTime,
		},
		firstAfter: bucketFirst,
		denialBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^0$",
			"X-Rate-Limit-Reset": unixTime, "Content-Type": plainText,
		},
		denialAfter:  bucketDenial,
		withoutRedis: http.StatusOK,
	},
	{
		name: "tollbooth", before: tollboothBefore, after: tollboothAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^19$", "Ratelimit-Reset": "^1$",
		},
		firstAfter: bucketFirst,
		denialBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^0$", "Ratelimit-Reset": "^1$", "Content-Type": plainText,
			"Content-Length": "^[0-9]+$",
		},
		denialAfter: bucketDenial,
	},
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

// TestMigrationKeepsUluleReset has X-RateLimit-Reset be the time that it was before.
func TestMigrationKeepsUluleReset(t *testing.T) {
	router := newRouter(t)
	router.Use(patientLimiter(t, redistest.Connect(t, redistest.Start(t))).Handler("api",
		ginlimit.PerHour(20).WithAlgorithm(ginlimit.FixedWindow), ululeFields()))
	start := time.Now().Unix()
	reset, err := strconv.ParseInt(get(router, "203.0.113.7").Header().Get("X-RateLimit-Reset"), 10, 64)
	must(t, err)
	if end := time.Now().Unix(); reset < start+3599 || reset > end+3600 {
		t.Errorf("reset at %d, want an hour after %d to %d", reset, start, end)
	}
}
