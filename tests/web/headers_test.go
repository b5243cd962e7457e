package web_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Which fields tell of a limit.

// TestEveryHandlersFieldsAreThere, though an earlier handler that sets others is closer to exhaustion.
func TestEveryHandlersFieldsAreThere(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb)
	own := ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
		h.Set("Left", strconv.Itoa(limits[0].Remaining))
	})
	r := testkit.Serve(limiter.Handler("3/h", ginlimit.PerHour(3), ginlimit.WithHeaders(ginlimit.NoHeaders)),
		limiter.Handler("100/m", ginlimit.PerMinute(100)),
		limiter.Handler("own", ginlimit.PerMinute(50), ginlimit.WithHeaders(ginlimit.NoHeaders), own),
		limiter.Handler("looser", ginlimit.PerMinute(70), own))
	h := testkit.Get(r, "/").Header()
	assert.Equal(t, "69", h.Get("X-RateLimit-Remaining"))
	assert.Equal(t, "49", h.Get("Left"))
}

func TestDegradedHeaderOfAnyHandler(t *testing.T) {
	t.Parallel()
	lost := testkit.WithoutRedis(t).Handler("lost", ginlimit.PerMinute(1000))
	rec := testkit.Get(testkit.Serve(testkit.NewLocal(t).Handler("2/m", ginlimit.PerMinute(2)), lost), "/")
	assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	assert.Equal(t, "1", rec.Header().Get("X-RateLimit-Remaining"), "of the limit closest to exhaustion")
}

func TestDegradedHeaderUnlessNoHeaders(t *testing.T) {
	t.Parallel()
	for headers, want := range map[ginlimit.Headers]string{
		ginlimit.XRateLimit: "degraded", ginlimit.RateLimitDraft: "degraded", ginlimit.NoHeaders: "",
	} {
		limiter := testkit.WithoutRedis(t, ginlimit.WithReplicas(2), ginlimit.WithHeaders(headers))
		rec := testkit.Get(testkit.Serve(limiter.Handler("x", ginlimit.PerMinute(4))), "/")
		assert.Equal(t, want, rec.Header().Get("X-RateLimit-Status"))
		if headers == ginlimit.RateLimitDraft {
			assert.Equal(t, []item{{"x", 4, 60, -1, -1}}, policiesOf(t, rec), "of the whole limit")
			assert.Equal(t, []item{{"x", -1, -1, 1, 30}}, limitsOf(t, rec), "of this process' share")
		}
		open := limiter.Handler("open", ginlimit.PerHour(1), ginlimit.InFlight(1),
			ginlimit.WithFailureMode(ginlimit.FailOpen))
		for range 3 { // nobody counts
			rec = testkit.Get(testkit.Serve(open), "/")
			assert.Equal(t, []any{http.StatusOK, want}, []any{rec.Code, rec.Header().Get("X-RateLimit-Status")})
		}
	}
}

// A bubble begins with January 2000, and February has 29 days then.
const (
	january  = 31 * 24 * time.Hour
	february = 29 * 24 * time.Hour
)

// TestHeadersAreThoseOfTheDecision, though a month ends before they are written.
func TestHeadersAreThoseOfTheDecision(t *testing.T) {
	t.Parallel()
	month := ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 1))
	synctest.Test(t, func(t *testing.T) {
		end := false
		l := testkit.NewLocal(t, ginlimit.WithHeaders(ginlimit.RateLimitDraft), testkit.ByUser(),
			ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
				if end && e.Name == "second" { // the decision is made
					time.Sleep(time.Second)
				}
			}))
		r := testkit.Serve(l.Handler("first", month), ginlimit.AllOf(l.Must("second", month), l.Must("all", month)))
		check := func(header http.Header, windows string) {
			require.Equal(t, strings.ReplaceAll(`"first";q=5;W, "second";q=5;W, "all";q=5;W`,
				"W", windows), header.Get("RateLimit-Policy"))
			for _, name := range []string{`"first";`, `"second";`} {
				require.Equal(t, 1, strings.Count(header.Get("RateLimit"), name), header.Get("RateLimit"))
			}
		}
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2678400")
		time.Sleep(january - time.Second/2)
		end = true
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2678400")
		require.Equal(t, time.February, time.Now().UTC().Month())
		end = false
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2505600")
	})
}

// TestWindowOfAProhibitedQuotaIsThatOfItsMonth, whenever the process has begun.
func TestWindowOfAProhibitedQuotaIsThatOfItsMonth(t *testing.T) {
	t.Parallel()
	month := ginlimit.CalendarMonth(nil, 1)
	type options = []ginlimit.PolicyOption
	for name, opts := range map[string]options{
		"prohibited":             {ginlimit.PerCalendar(0, month)},
		"beside a period":        {ginlimit.PerCalendar(0, month), ginlimit.PerHour(3)},
		"beside a shorter quota": {ginlimit.PerCalendar(0, month), ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil))},
		"of a client":            {testkit.LimitsFrom(ginlimit.PerCalendar(0, month))},
		"that a floor takes":     {ginlimit.WithFloor(3), testkit.LimitsFrom(ginlimit.PerCalendar(3, month))},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			r := testkit.Serve(testkit.NewPolicy(t, testkit.NewLocal(t), "api",
				append(options{testkit.ByUser(), draft}, opts...)...).Handler())
			for i, passed := range []time.Duration{0, january, february} {
				time.Sleep(passed)
				for range 2 { // the second one finds what the first has made
					rec := testkit.Get(r, "/", testkit.User("alice"))
					require.Equal(t, http.StatusTooManyRequests, rec.Code)
					window := []string{"w=2678400", "w=2505600", "w=2678400"}[i]
					require.Contains(t, rec.Header().Get("RateLimit-Policy"), ";q=0;"+window)
					require.Contains(t, rec.Header().Get("RateLimit"), ";r=0")
				}
			}
		})
	}
}

// What the fields of the draft say, read back by a parser of RFC 9651.

// item is what a field says of one limit; a parameter that is not there is -1.
type item struct {
	name       string
	q, w, r, t int64
}

// itemsOf reads a List of a field whose Items have no other parameters than these.
func itemsOf(t testing.TB, h http.Header, field string, parameters ...string) []item {
	t.Helper()
	if h.Values(field) == nil {
		return nil
	}
	list, err := httpsfv.UnmarshalList(h.Values(field))
	require.NoError(t, err, "%s: %q", field, h.Values(field))
	var items []item
	for _, member := range list {
		read, ok := member.(httpsfv.Item)
		require.True(t, ok)
		name, ok := read.Value.(string)
		require.True(t, ok, "the name is a String")
		_, err := httpsfv.UnmarshalItem([]string{name})
		require.NoError(t, err, "and could be a Token: %q", name)
		one := item{name, -1, -1, -1, -1}
		for _, parameter := range read.Params.Names() {
			require.Contains(t, parameters, parameter)
			value, _ := read.Params.Get(parameter)
			n, ok := value.(int64)
			require.True(t, ok, "%s is an Integer", parameter)
			*map[string]*int64{"q": &one.q, "w": &one.w, "r": &one.r, "t": &one.t}[parameter] = n
		}
		items = append(items, one)
	}
	return items
}

func policiesOf(t testing.TB, rec *httptest.ResponseRecorder) []item {
	t.Helper()
	return itemsOf(t, rec.Header(), "RateLimit-Policy", "q", "w")
}

func limitsOf(t testing.TB, rec *httptest.ResponseRecorder) []item {
	t.Helper()
	return itemsOf(t, rec.Header(), "RateLimit", "r", "t")
}

func violated(t testing.TB, rec *httptest.ResponseRecorder) []string {
	t.Helper()
	var problem struct {
		Names []string `json:"violated-policies"`
	}
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &problem), rec.Body)
	return problem.Names
}

var draft = ginlimit.WithHeaders(ginlimit.RateLimitDraft)

// Clients choose how long their headers are, up to the MaxHeaderBytes of the server, a megabyte by default.

// TestLongHeadersTakeNoMemory, also of requests that are denied, however many policies and keys there are. It runs
// alone, as it counts bytes.
func TestLongHeadersTakeNoMemory(t *testing.T) {
	const requests, each = 50, 64 << 10
	long := func(part string) string { return strings.Repeat(part, 900_000/len(part)) }
	key := ginlimit.ByHeader("X-Key")
	for name, row := range map[string]struct {
		header, value string
		key           ginlimit.KeyFunc
	}{
		"addresses with ports":  {"X-Forwarded-For", long("203.0.113.7:5, ") + "203.0.113.7:5", ginlimit.ByClientIP},
		"a key":                 {"X-Key", long("a"), key},
		"a key of separators":   {"X-Key", long("|"), key},
		"several headers":       {"X-Key", long("|"), ginlimit.ByHeader("X-Key", "X-Key")},
		"the first of several":  {"X-Key", long(`\`), ginlimit.ByAny(key)},
		"all of all of several": {"X-Key", long("|"), ginlimit.ByAll(ginlimit.ByAll(key, ginlimit.ByAll(key)), key)},
	} {
		limiter := testkit.NewLocal(t)
		handler := ginlimit.AllOf(
			testkit.Must(limiter.Policy("a", ginlimit.PerHour(1), ginlimit.WithKey(row.key))),
			testkit.Must(limiter.Policy("b", ginlimit.PerDay(1), ginlimit.WithKey(row.key),
				ginlimit.WithDenyList(netip.MustParsePrefix("203.0.113.0/24")))))
		r := testkit.Serve(handler)
		request := func() int { return testkit.Get(r, "/", testkit.With(row.header, row.value)).Code }
		require.Equal(t, http.StatusOK, request(), name)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range requests {
			require.Equal(t, http.StatusTooManyRequests, request(), name)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/requests, uint64(each), name)
	}
}

// asks counts how often Gin is asked for the address of a request with this context.
type asks struct {
	context.Context
	n int
}

// Value implements [context.Context]. Gin needs to know whether the request came through a unix socket.
func (a *asks) Value(key any) any {
	if key == http.LocalAddrContextKey {
		a.n++
	}
	return a.Context.Value(key)
}

// TestGinIsAskedOnce for the address of a request, as it reads all of a header: not for each list and each key of the
// policies that decide.
func TestGinIsAskedOnce(t *testing.T) {
	t.Parallel()
	list := ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))
	networks := ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))
	address := ginlimit.WithKey(ginlimit.ByClientIP)
	type opts = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		policies []opts
		asked    int
	}{
		"one policy":               {[]opts{{}}, 1},
		"its key function":         {[]opts{{address}}, 1},
		"its list":                 {[]opts{{list}}, 1},
		"its list, and its key":    {[]opts{{list, networks}}, 1},
		"several policies":         {[]opts{{}, {}, {}}, 1},
		"of different networks":    {[]opts{{}, {networks}, {address}}, 1},
		"lists of each":            {[]opts{{list}, {list, networks}, {list, address}}, 1},
		"other keys":               {[]opts{{testkit.ByUser()}}, 0},
		"a list beside other keys": {[]opts{{testkit.ByUser(), list}}, 1},
	} {
		limiter := testkit.NewLocal(t)
		var policies []*ginlimit.Policy
		for i, o := range row.policies {
			policies = append(policies, testkit.Must(limiter.Policy(string(rune('a'+i)), append(o, ginlimit.PerHour(9))...)))
		}
		r := gin.New()
		require.NoError(t, r.SetTrustedProxies([]string{"10.0.0.0/8"}))
		r.Use(ginlimit.AllOf(policies...))
		r.GET("/", testkit.OK)
		ctx := &asks{Context: t.Context()}
		request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		request.RemoteAddr = "10.0.0.1:1"
		request.Header.Set("X-User", "ada")
		rec := httptest.NewRecorder()
		r.ServeHTTP(rec, request)
		require.Equal(t, http.StatusOK, rec.Code, name)
		require.Equal(t, row.asked, ctx.n, name)
	}
}

// TestAHandlerSeesTheAddressAsItIs when it calls ByClientIP, though the request has changed since a limiter decided, or
// failed to.
func TestAHandlerSeesTheAddressAsItIs(t *testing.T) {
	t.Parallel()
	limiter, _ := loggedLocal(t) // it logs addresses that cannot be read
	list := ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))
	pass := ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.Next() })
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		return testkit.Must(limiter.Policy(name, append(opts, ginlimit.PerHour(100), pass)...))
	}
	for name, handler := range map[string]gin.HandlerFunc{
		"one policy": policy("a").Handler(),
		"its list":   policy("b", list).Handler(),
		"several": ginlimit.AllOf(policy("c"), policy("d", ginlimit.WithKey(ginlimit.ByClientIP)),
			policy("e", ginlimit.WithDryRun(), list)),
		"several with lists": ginlimit.AllOf(policy("f", list), policy("g", list)),
	} {
		for _, address := range []string{"203.0.113.7:1", "unreadable"} {
			served := false
			r := testkit.Serve(handler, func(c *gin.Context) {
				for _, moved := range []string{"203.0.113.8", "203.0.113.9"} {
					c.Request.RemoteAddr = moved + ":1"
					require.Equal(t, moved, testkit.Must(ginlimit.ByClientIP(c)), name)
				}
				served = true
			}, policy("behind "+name+" of "+address).Handler(), func(c *gin.Context) {
				require.Equal(t, "203.0.113.9", testkit.Must(ginlimit.ByClientIP(c)), name)
			})
			require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.From(address)).Code, name)
			require.True(t, served, name)
		}
	}
}
