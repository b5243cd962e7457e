package web_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Several policies of one request.

// three limits per address, per API key and all clients together.
func three(l *testkit.Limiter, opts ...ginlimit.PolicyOption) *gin.Engine {
	policy := func(name string, own ...ginlimit.PolicyOption) *ginlimit.Policy {
		return l.Must(name, append(own, opts...)...)
	}
	return testkit.Serve(ginlimit.AllOf(policy("address", ginlimit.PerDay(3)),
		policy("api key", testkit.Key("X-Api-Key"), ginlimit.PerDay(5), ginlimit.PerHour(50)),
		policy("all", testkit.All(), ginlimit.PerDay(8))))
}

// stores are where a request's policies are decided on. With the tag integration there are more.
var stores = map[string]func(t *testing.T) *testkit.Limiter{
	"miniredis": func(t *testing.T) *testkit.Limiter {
		rdb, _ := testkit.NewMiniredis(t)
		return testkit.NewLimiter(t, rdb)
	},
	"in the process": func(t *testing.T) *testkit.Limiter { return testkit.NewLocal(t) },
	"without Redis":  func(t *testing.T) *testkit.Limiter { return testkit.WithoutRedis(t) },
}

func TestAllOrNone(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		testkit.Run(t, name, func(t *testing.T) {
			l := make(t)
			r := three(l)
			ask := func(address, key string) (int, string, string) {
				rec := testkit.Get(r, "/", testkit.From(address+":1"), testkit.With("X-Api-Key", key))
				return rec.Code, rec.Header().Get("X-RateLimit-Limit"), testkit.Remaining(rec)
			}
			for i, c := range []struct {
				address, key string
				code         int
				limit, left  string
			}{
				{"192.0.2.1", "a", 200, "3", "2"}, {"192.0.2.1", "a", 200, "3", "1"}, {"192.0.2.1", "a", 200, "3", "0"},
				{"192.0.2.1", "a", 429, "3", "0"}, {"192.0.2.1", "b", 429, "3", "0"},
				{"192.0.2.2", "a", 200, "5", "1"}, {"192.0.2.2", "a", 200, "5", "0"},
				{"192.0.2.2", "a", 429, "5", "0"},
				{"192.0.2.2", "b", 200, "3", "0"}, // the denials cost its address nothing
				{"192.0.2.3", "b", 200, "8", "1"}, {"192.0.2.4", "c", 200, "8", "0"}, {"192.0.2.5", "c", 429, "8", "0"},
			} {
				code, limit, left := ask(c.address, c.key)
				assert.Equal(t, []any{c.code, c.limit, c.left}, []any{code, limit, left}, "request %d", i)
			}
			for key, want := range map[string]int{ginlimit.Key("address", "192.0.2.5"): 3,
				ginlimit.Key("address", "192.0.2.3"): 2} {
				assert.Equal(t, want, testkit.Must(l.Peek(t.Context(), key, ginlimit.PerDay(3))).Remaining, key)
			}
		})
	}
}

func TestAllOfUnlimitedProhibitedAndWithoutAKey(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb)
	two, free := l.Must("counted", ginlimit.PerDay(2)), l.Must("free", ginlimit.PerDay(-1))
	unlimited := l.Must("unlimited", testkit.All(), ginlimit.PerDay(-1))
	nobody := ginlimit.WithKey(func(*gin.Context) (string, error) { return "", nil })
	for i, row := range []struct {
		policies []*ginlimit.Policy
		code     int
		left     string
	}{
		{[]*ginlimit.Policy{free, unlimited}, 200, ""},
		{[]*ginlimit.Policy{two, unlimited}, 200, "1"},
		{[]*ginlimit.Policy{free, l.Must("two", testkit.All(), ginlimit.PerDay(2))}, 200, "1"},
		{[]*ginlimit.Policy{two, l.Must("none", testkit.All(), ginlimit.PerDay(0))}, 429, "0"},
		{[]*ginlimit.Policy{two, l.Must("user", testkit.Key("X-User"), ginlimit.PerDay(2))}, 400, ""},
		{[]*ginlimit.Policy{two, l.Must("nobody", nobody, ginlimit.PerDay(2))}, 500, ""},
		{[]*ginlimit.Policy{two}, 200, "0"}, // what was denied or failed took nothing
	} {
		rec := testkit.Get(testkit.Serve(ginlimit.AllOf(row.policies...)), "/")
		assert.Equal(t, []any{row.code, row.left}, []any{rec.Code, testkit.Remaining(rec)}, i)
	}
}

// What each policy of AllOf has of its own.

func number(header string) func(*gin.Context) int {
	return func(c *gin.Context) int {
		n, err := strconv.Atoi(c.GetHeader(header))
		if err != nil {
			return 1
		}
		return n
	}
}

// TestAllOfToTheByte is what clients see of three policies with different fields.
func TestAllOfToTheByte(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		l := e.Limiter
		fields := func(of string) ginlimit.Option {
			return ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
				h.Set("X-Limit-"+of, fmt.Sprint(limits[0].Limit.Rate))
				h.Set("X-Remaining-"+of, fmt.Sprint(limits[0].Remaining))
			})
		}
		all := []*ginlimit.Policy{
			l.Must("requests", ginlimit.PerHour(2), testkit.ByUser(), fields("Requests")),
			l.Must("tokens", ginlimit.PerDay(500), testkit.ByUser(), ginlimit.WithCost(number("X-Cost")),
				ginlimit.WithHeaders(ginlimit.RateLimitDraft), fields("Tokens")),
			l.Must("quiet", ginlimit.PerDay(1), testkit.ByUser(), ginlimit.WithHeaders(ginlimit.NoHeaders),
				ginlimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("X-Quiet") == "" }),
				ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
					c.String(http.StatusTooManyRequests, "%s %s", r.Name, r.Cause)
				})),
		}
		r := testkit.Serve(ginlimit.AllOf(all...))
		get := func(cost string, edit ...func(*http.Request)) (int, http.Header, string) {
			rec := testkit.Get(r, "/", append(edit, testkit.User("alice"), testkit.With("X-Cost", cost))...)
			return rec.Code, rec.Header(), rec.Body.String()
		}
		code, header, _ := get("100")
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, http.Header{
			"Content-Type":      header["Content-Type"],
			"X-Ratelimit-Limit": {"2"}, "X-Ratelimit-Remaining": {"1"}, "X-Ratelimit-Reset": {"1800"},
			"Ratelimit-Policy": {`"tokens";q=500;w=86400`}, "Ratelimit": {`"tokens";r=400;t=173`},
			"X-Limit-Requests": {"2"}, "X-Remaining-Requests": {"1"},
			"X-Limit-Tokens": {"500"}, "X-Remaining-Tokens": {"400"},
		}, withoutLength(header))

		problem := func(name string) string {
			return `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
				`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"violated-policies":["` + name + `"]}`
		}
		code, header, body := get("401") // the tokens deny: their fields, and no others' of one limit
		require.Equal(t, http.StatusTooManyRequests, code)
		require.Equal(t, problem("tokens"), body)
		require.Equal(t, http.Header{
			"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"173"},
			"Ratelimit-Policy": {`"tokens";q=500;w=86400`}, "Ratelimit": {`"tokens";r=400;t=173`},
			"X-Limit-Tokens": {"500"}, "X-Remaining-Tokens": {"400"},
		}, withoutLength(header))

		code, _, _ = get("0", testkit.With("X-Quiet", "1"))
		require.Equal(t, http.StatusOK, code)
		code, header, body = get("401", testkit.With("X-Quiet", "1")) // all deny, and the quiet one for longest
		require.Equal(t, http.StatusTooManyRequests, code)
		require.Equal(t, "quiet rate", body)
		require.Equal(t, http.Header{
			"Content-Type": {"text/plain; charset=utf-8"}, "Cache-Control": {"no-store"}, "Retry-After": {"86400"},
			"Ratelimit-Policy": {`"tokens";q=500;w=86400`}, "Ratelimit": header["Ratelimit"],
		}, withoutLength(header))

		code, header, body = get("100") // the requests deny
		require.Equal(t, http.StatusTooManyRequests, code)
		require.Equal(t, problem("requests"), body)
		require.Equal(t, http.Header{
			"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"1800"},
			"X-Ratelimit-Limit": {"2"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"3600"},
			"X-Limit-Requests": {"2"}, "X-Remaining-Requests": {"0"},
			"Ratelimit-Policy": {`"tokens";q=500;w=86400`}, "Ratelimit": header["Ratelimit"],
		}, withoutLength(header))
	})
}

func withoutLength(h http.Header) http.Header {
	h.Del("Content-Length")
	return h
}

// TestResultsOfARequest, and one event for each policy that decided.
func TestResultsOfARequest(t *testing.T) {
	t.Parallel()
	var seen events
	l := testkit.NewLocal(t, ginlimit.WithObserver(seen.observe), testkit.ByUser())
	skips := ginlimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("X-Skip") != "" })
	all := ginlimit.AllOf(l.Must("one", ginlimit.PerHour(3)), l.Must("two", ginlimit.PerDay(2)),
		l.Must("three", ginlimit.PerDay(2), skips), l.Must("dry", ginlimit.PerDay(1), ginlimit.WithDryRun()))
	var results []ginlimit.Result
	var closest ginlimit.Result
	r := testkit.Serve(func(c *gin.Context) {
		require.Empty(t, ginlimit.Results(c))
		c.Next()
		results = ginlimit.Results(c)
		closest, _ = ginlimit.FromContext(c)
	}, l.Handler("before", ginlimit.PerHour(100)), all)
	names := func() (names []string) {
		for _, r := range results {
			names = append(names, fmt.Sprint(r.Name, " ", r.Allowed, " ", r.Remaining))
		}
		return names
	}
	happened := func() (all []string) {
		for _, e := range seen.take(t) {
			all = append(all, e.Name+" "+e.Outcome.String())
		}
		return all
	}
	testkit.Get(r, "/", testkit.User("a"))
	require.Equal(t, []string{"before true 99", "one true 2", "two true 1", "three true 1", "dry true 0"}, names())
	require.Equal(t, []string{"before allowed", "one allowed", "two allowed", "three allowed", "dry allowed"}, happened())
	require.Equal(t, "dry", closest.Name)

	testkit.Get(r, "/", testkit.User("a"), testkit.With("X-Skip", "1"))
	require.Equal(t, []string{"before true 98", "one true 1", "two true 0", "dry false 0"}, names())
	require.Equal(t, []string{"before allowed", "three skipped", "one allowed", "two allowed", "dry denied"}, happened())

	require.Equal(t, 429, testkit.Get(r, "/", testkit.User("a")).Code)
	require.Equal(t, []string{"two false 0"}, names())
	require.Equal(t, "two", closest.Name)
	require.Equal(t, []string{"before allowed", "two denied", "dry denied"}, happened())
}

// TestAFaultOfOnePolicyChargesNone, and its own error handler answers.
func TestAFaultOfOnePolicyChargesNone(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		l := e.Limiter
		answers := func(status int) ginlimit.Option {
			return ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
				c.String(status, "%d", ginlimit.ErrorStatus(err))
			})
		}
		broken := errors.New("broken")
		first := l.Must("first", ginlimit.PerHour(5), testkit.ByUser(), answers(501))
		second := l.Must("second", ginlimit.PerHour(5), testkit.ByUser(), answers(502), ginlimit.WithCost(number("X-Cost")))
		third := l.Must("third", ginlimit.PerHour(5), answers(503), ginlimit.WithKey(func(c *gin.Context) (string, error) {
			return "k", map[string]error{"1": broken}[c.GetHeader("X-Broken")]
		}))
		dry := l.Must("dry", ginlimit.PerHour(5), ginlimit.WithDryRun())
		fourth := l.Must("fourth", ginlimit.PerHour(5), testkit.ByUser(), answers(504),
			ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24")))
		r := testkit.Serve(ginlimit.AllOf(first, second, third, fourth, dry))
		for i, row := range []struct {
			edit []func(*http.Request)
			code int
			body string
		}{
			{[]func(*http.Request){testkit.With("X-Broken", "1")}, 501, "400"}, // no user: the first's to answer
			{[]func(*http.Request){testkit.User("a"), testkit.With("X-Cost", "-3")}, 502, "500"},
			{[]func(*http.Request){testkit.User("a"), testkit.With("X-Broken", "1")}, 503, "500"},
			{[]func(*http.Request){testkit.User("a"), testkit.With("X-Broken", "1"), testkit.From("198.51.100.1:1")}, 403, ""},
			{[]func(*http.Request){testkit.User("a"), testkit.From("@")}, 504, "500"},
		} {
			rec := testkit.Get(r, "/", row.edit...)
			require.Equal(t, row.code, rec.Code, i)
			require.Contains(t, rec.Body.String(), row.body, i)
		}
		for _, p := range []*ginlimit.Policy{first, second, fourth} {
			require.Equal(t, 5, testkit.Must(p.Peek(t.Context(), "a")).Remaining)
		}
		left := testkit.Must(dry.Peek(t.Context(), ginlimit.AddrKey(netip.MustParseAddr("192.0.2.1"))))
		require.Equal(t, 2, left.Remaining, "a dry run decides whatever becomes of the others, but for a list")
	})
}

// TestFailureModeOfEachPolicy: one that needs Redis fails the request, and what decided without it is given back.
func TestFailureModeOfEachPolicy(t *testing.T) {
	t.Parallel()
	l := testkit.WithoutRedis(t, testkit.ByUser())
	local := l.Must("local", ginlimit.PerHour(5))
	open := l.Must("open", ginlimit.PerHour(100), ginlimit.WithFailureMode(ginlimit.FailOpen))
	closed := l.Must("closed", ginlimit.PerHour(5), ginlimit.WithFailureMode(ginlimit.FailClosed),
		ginlimit.WithCost(number("X-Cost")),
		ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.String(http.StatusTeapot, "closed") }))
	r := testkit.Serve(ginlimit.AllOf(local, open, closed))
	rec := testkit.Get(r, "/", testkit.User("a"))
	require.Equal(t, []any{http.StatusTeapot, "closed"}, []any{rec.Code, rec.Body.String()})
	rec = testkit.Get(r, "/", testkit.User("a"), testkit.With("X-Cost", "0"))
	require.Equal(t, []any{http.StatusOK, "4"}, []any{rec.Code, testkit.Remaining(rec)}, "it costs that policy nothing")
	for range 3 {
		testkit.Get(testkit.Serve(ginlimit.AllOf(local, open)), "/", testkit.User("a"))
	}
	require.Equal(t, 1, testkit.Must(local.Peek(t.Context(), "a")).Remaining)
}

// TestTheLongestWaitAnswers, also where policies are asked one after another, as two that ban are.
func TestTheLongestWaitAnswers(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		for _, bans := range []bool{false, true} {
			testkit.Run(t, fmt.Sprintf("%s, bans %t", name, bans), func(t *testing.T) {
				l := make(t)
				policy := func(name string, limit ginlimit.Limit) *ginlimit.Policy {
					opts := []ginlimit.PolicyOption{limit, testkit.ByUser()}
					if bans {
						opts = append(opts, ginlimit.WithBan(time.Second, time.Second))
					}
					return l.Must(name, opts...)
				}
				r := testkit.Serve(ginlimit.AllOf(policy("short", ginlimit.Per(1, 10*time.Second)),
					policy("long", ginlimit.PerHour(1))))
				require.Equal(t, 200, testkit.Get(r, "/", testkit.User("a")).Code)
				for range 3 { // from Redis, then remembered
					rec := testkit.Get(r, "/", testkit.User("a"))
					require.Equal(t, 429, rec.Code)
					require.InDelta(t, 3600, testkit.Must(strconv.Atoi(rec.Header().Get("Retry-After"))), 60)
				}
			})
		}
	}
}

// TestAllOfPanics with all faults at once.
func TestAllOfPanics(t *testing.T) {
	t.Parallel()
	l, other := testkit.NewLocal(t), testkit.NewLocal(t)
	a, b := l.Must("a", ginlimit.PerHour(1)), other.Must("b", ginlimit.PerHour(1))
	rdb, _ := testkit.NewMiniredis(t)
	remote := testkit.NewLimiter(t, rdb)
	leased := remote.Must("leased", ginlimit.PerHour(100), ginlimit.WithLease(time.Second))
	for name, row := range map[string]struct {
		policies []*ginlimit.Policy
		want     []string
	}{
		"none":            {nil, []string{"AllOf without a policy"}},
		"nil, and a zero": {[]*ginlimit.Policy{nil, a, {}}, []string{"policy 1 is nil", "policy 3 is nil"}},
		"one twice":       {[]*ginlimit.Policy{a, a}, []string{"policy 2 is given twice"}},
		"two limiters":    {[]*ginlimit.Policy{a, b}, []string{"policy 2 is of another limiter than policy 1"}},
		"a lease": {[]*ginlimit.Policy{leased, remote.Must("c", ginlimit.PerHour(1))},
			[]string{"policy 1: WithLease does not go together"}},
	} {
		err := testkit.PanicError(func() { ginlimit.AllOf(row.policies...) })
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
		for _, want := range row.want {
			require.ErrorContains(t, err, want, name)
		}
	}
	require.NotPanics(t, func() { ginlimit.AllOf(leased) })
}
