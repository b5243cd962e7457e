package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
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

// namesOf returns the names of the Items of a field.
func namesOf(h http.Header, field string) (names []string) {
	for _, found := range regexp.MustCompile(`"([^"]*)";[qr]=`).FindAllStringSubmatch(h.Get(field), -1) {
		names = append(names, found[1])
	}
	return names
}

// TestNamesOfAResponseDiffer, whichever policies and handlers it is of.
func TestNamesOfAResponseDiffer(t *testing.T) {
	t.Parallel()
	minute, hour := ginlimit.PerMinute(100), ginlimit.PerHour(1000)
	type list = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		names   []string
		options []list
		want    []string
	}{
		"nothing in common":  {[]string{"x", "y"}, []list{{minute, hour}, {minute}}, []string{"x-m", "x-h", "y"}},
		"a common beginning": {[]string{"api", "api-login"}, []list{{minute}, {minute}}, []string{"api", "api-login"}},
		"a policy and a limit": {[]string{"x", "x-m"}, []list{{minute, hour}, {minute}},
			[]string{"x-m", "x-h", "x-m-2"}},
		"the other way": {[]string{"x-m", "x"}, []list{{minute}, {minute, hour}},
			[]string{"x-m", "x-m-2", "x-h"}},
		"a byte that is no name's": {[]string{"a b", "a-b", "a_b", "a\tb"}, []list{{minute}, {minute}, {minute}, {minute}},
			[]string{"a-b", "a-b-2", "a_b", "a-b-3"}},
		"a name that has a number": {[]string{"a b", "a-b-2", "a-b"}, []list{{minute}, {minute}, {minute}},
			[]string{"a-b", "a-b-2", "a-b-3"}},
		"slots": {[]string{"x", "x-c"}, []list{{minute, ginlimit.InFlight(9)}, {minute}},
			[]string{"x", "x-c", "x-c-2"}},
		"two of several limits": {[]string{"a b", "a-b"}, []list{{minute, hour}, {minute, hour}},
			[]string{"a-b-m", "a-b-h", "a-b-m-2", "a-b-h-2"}},
		"a number of its own limit": {[]string{"x", "x-m"},
			[]list{{minute, hour}, {minute, ginlimit.PerMinute(9).WithAlgorithm(ginlimit.FixedWindow)}},
			[]string{"x-m", "x-h", "x-m-m", "x-m-m-2"}},
	} {
		limiter := testkit.NewLocal(t, ginlimit.WithHeaders(ginlimit.RateLimitDraft))
		var policies []*ginlimit.Policy
		var handlers []gin.HandlerFunc
		for i, name := range row.names {
			policies = append(policies, testkit.NewPolicy(t, limiter, name, row.options[i]...))
			handlers = append(handlers, policies[i].Handler())
		}
		for kind, handler := range map[string][]gin.HandlerFunc{"AllOf": {ginlimit.AllOf(policies...)}, "stacked": handlers} {
			h := testkit.Get(testkit.Serve(handler...), "/").Header()
			assert.Equal(t, row.want, namesOf(h, "RateLimit"), "%s, %s", name, kind)
			assert.Equal(t, row.want, namesOf(h, "RateLimit-Policy"), "%s, %s", name, kind)
		}
	}
}

// TestAViolatedLimitHasTheNameOfTheFields, on every response: also if a policy before is skipped, has other limits for
// a time, or sets no fields.
func TestAViolatedLimitHasTheNameOfTheFields(t *testing.T) {
	t.Parallel()
	limiter := testkit.NewLocal(t)
	skip := ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("skip") != "" })
	draft := ginlimit.WithHeaders(ginlimit.RateLimitDraft)
	first := testkit.NewPolicy(t, limiter, "x", ginlimit.PerMinute(100), ginlimit.PerHour(1000), skip)
	second := testkit.NewPolicy(t, limiter, "x-m", ginlimit.PerHour(1), draft)
	for kind, handlers := range map[string][]gin.HandlerFunc{
		"AllOf": {ginlimit.AllOf(first, second)}, "stacked": {first.Handler(), second.Handler()},
	} {
		r := testkit.Serve(handlers...)
		check := func(path string, wantStatus int) {
			rec := testkit.Get(r, path)
			assert.Equal(t, wantStatus, rec.Code, "%s, %s", kind, path)
			assert.Equal(t, []string{"x-m-2"}, namesOf(rec.Header(), "RateLimit"), "%s, %s", kind, path)
			if rec.Code == http.StatusOK {
				return
			}
			var body struct {
				Violated []string `json:"violated-policies"`
			}
			require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &body))
			assert.Equal(t, []string{"x-m-2"}, body.Violated, "%s, %s", kind, path)
		}
		for range 2 {
			require.NoError(t, second.Reset(t.Context(), "192.0.2.1"))
			check("/", http.StatusOK)
			check("/", http.StatusTooManyRequests)
			check("/?skip=1", http.StatusTooManyRequests)
			require.NoError(t, second.Reset(t.Context(), "192.0.2.1"))
			check("/?skip=1", http.StatusOK)
			require.NoError(t, limiter.Override(context.Background(), ginlimit.Override{
				Policy: "x", Limits: []ginlimit.Limit{ginlimit.PerDay(100)}, Until: time.Now().Add(time.Hour),
			}))
		}
		require.NoError(t, limiter.Override(context.Background(), ginlimit.Override{Policy: "x"}))
	}
}
