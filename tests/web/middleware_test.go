package web_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The Gin side.

func TestAllowedAndDeniedAnswers(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2)))

	rec := testkit.Get(r, "/")
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, "served", rec.Body.String())
	assert.Equal(t, http.Header{
		"Content-Type":          {"text/plain; charset=utf-8"},
		"X-Ratelimit-Limit":     {"2"},
		"X-Ratelimit-Remaining": {"1"},
		"X-Ratelimit-Reset":     {"30"},
	}, rec.Header())
	advance(time.Millisecond) // then everything is rounded up
	assert.Equal(t, "0", testkit.Get(r, "/").Header().Get("X-RateLimit-Remaining"))

	advance(time.Millisecond)
	rec = testkit.Get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.JSONEq(t, `{
		"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title": "Request cannot be satisfied as assigned quota has been exceeded",
		"status": 429,
		"violated-policies": ["limit-2/m"]
	}`, rec.Body.String())
	assert.Equal(t, http.Header{
		"Cache-Control":         {"no-store"},
		"Content-Length":        {"194"},
		"Content-Type":          {"application/problem+json"},
		"Retry-After":           {"30"},
		"X-Ratelimit-Limit":     {"2"},
		"X-Ratelimit-Remaining": {"0"},
		"X-Ratelimit-Reset":     {"60"},
	}, rec.Header())

	advance(29998 * time.Millisecond)
	rec = testkit.Get(r, "/")
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, "0", rec.Header().Get("X-RateLimit-Remaining"))
}

func TestErrorsGoToTheErrorHandler(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	broken := errors.New("broken")
	const internal = `{"type": "about:blank", "title": "Internal Server Error", "status": 500}`
	for _, c := range []struct {
		name   string
		key    ginlimit.KeyFunc
		rdb    redis.UniversalClient
		want   error
		status int
		body   string
		header http.Header // in addition
	}{
		{"no key", func(*gin.Context) (string, error) { return "", nil }, rdb, ginlimit.ErrNoKey, 500, internal, nil},
		{"a malformed key", func(*gin.Context) (string, error) {
			return "", fmt.Errorf("%w: not 32 digits", ginlimit.ErrBadRequest)
		}, rdb,
			ginlimit.ErrBadRequest, 400, `{"type": "about:blank", "title": "Bad Request", "status": 400}`, nil},
		{"a key function's own error", func(*gin.Context) (string, error) { return "k", broken },
			rdb, broken, 500, internal, nil},
		{"no Redis", ginlimit.ByClientIP, redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), ginlimit.ErrUnavailable, 503, `{
			"type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
			"title": "Request cannot be satisfied due to temporary server capacity constraints",
			"status": 503
		}`, http.Header{"Retry-After": {"1"}}},
	} {
		testkit.Run(t, c.name, func(t *testing.T) {
			var got error
			r := testkit.Serve(testkit.Middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key),
				ginlimit.WithErrorHandler(func(c *gin.Context, err error) { got = err; c.Next() })))
			rec := testkit.Get(r, "/")
			assert.ErrorIs(t, got, c.want)
			assert.Equal(t, "served", rec.Body.String(), "it goes on, by Next")

			r = testkit.Serve(testkit.Middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key),
				ginlimit.WithErrorHandler(func(*gin.Context, error) {})))
			assert.Empty(t, testkit.Get(r, "/").Body.String(), "it does not go on by itself")

			r = testkit.Serve(func(c *gin.Context) { c.Next(); got = c.Errors.Last() },
				testkit.Middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key)))
			rec = testkit.Get(r, "/")
			assert.Equal(t, c.status, rec.Code)
			assert.ErrorIs(t, got, c.want, "for the application's log")
			assert.JSONEq(t, c.body, rec.Body.String())
			want := http.Header{"Cache-Control": {"no-store"}, "Content-Type": {"application/problem+json"}}
			maps.Copy(want, c.header)
			if length := rec.Header().Get("Content-Length"); length != "" { // newer versions of Gin set it; else net/http does
				want.Set("Content-Length", strconv.Itoa(rec.Body.Len()))
			}
			assert.Equal(t, want, rec.Header())
		})
	}
}

// TestCopiedContextIsSafe has an access log look at a copy while a further handler decides.
func TestCopiedContextIsSafe(t *testing.T) {
	t.Parallel()
	l := testkit.Must(ginlimit.NewLocal())
	logged := make(chan ginlimit.Result, 1)
	r := testkit.Serve(l.Handler("5/h", ginlimit.PerHour(5)), func(c *gin.Context) {
		copied := c.Copy()
		go func() {
			result, _ := ginlimit.FromContext(copied)
			logged <- result
		}()
	}, l.Handler("3/m", ginlimit.PerMinute(3)))
	testkit.Get(r, "/")
	assert.Equal(t, ginlimit.PerHour(5), (<-logged).Limit, "what was decided when it was copied")
}

// TestHandleContextRunsHandlersAgain as the guide says: a request to another path takes its tokens
// twice, and needs two slots. It does not if its path changes before Gin, or the limit is that of the
// new path alone.
func TestHandleContextRunsHandlersAgain(t *testing.T) {
	t.Parallel()
	moves := func(r *gin.Engine) gin.HandlerFunc {
		return func(c *gin.Context) {
			c.Request.URL.Path = "/new"
			r.HandleContext(c)
		}
	}
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	ask := func(before func(*http.Request), onEngine bool, limits ...ginlimit.PolicyOption) *httptest.ResponseRecorder {
		r := gin.New()
		require.NoError(t, r.SetTrustedProxies(nil))
		handler := testkit.NewLocal(t).Handler("all", limits...)
		group := &r.RouterGroup
		if onEngine {
			r.Use(handler)
		} else {
			group = r.Group("/", handler)
		}
		group.GET("/new", ok)
		r.GET("/old", moves(r))
		return testkit.Get(r, "/old", before)
	}
	asIs := func(*http.Request) {}
	require.Equal(t, "8", testkit.Remaining(ask(asIs, true, ginlimit.PerHour(10))))
	require.Equal(t, http.StatusTooManyRequests, ask(asIs, true, ginlimit.InFlight(1)).Code)
	waits := ginlimit.WithQueue(1, time.Millisecond)
	require.Equal(t, http.StatusTooManyRequests, ask(asIs, true, ginlimit.InFlight(1), waits).Code, "for itself")
	require.Equal(t, http.StatusOK, ask(asIs, true, ginlimit.InFlight(2)).Code)

	beforeGin := func(r *http.Request) { r.URL.Path = "/new" }
	for _, row := range []struct {
		before   func(*http.Request)
		onEngine bool
	}{{beforeGin, true}, {asIs, false}} {
		require.Equal(t, "9", testkit.Remaining(ask(row.before, row.onEngine, ginlimit.PerHour(10))))
		require.Equal(t, http.StatusOK, ask(row.before, row.onEngine, ginlimit.InFlight(1)).Code)
	}
}
