package web_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
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

func TestExactHeaderSets(t *testing.T) {
	t.Parallel()
	x := http.Header{"X-Ratelimit-Limit": {"2"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"60"}}
	fields := http.Header{"Ratelimit-Policy": {`"search";q=2;w=60`}, "Ratelimit": {`"search";r=0;t=30`}}
	for name, row := range map[string]struct {
		headers ginlimit.Headers
		want    []http.Header
	}{
		"by default": {ginlimit.XRateLimit, []http.Header{x}},
		"draft":      {ginlimit.RateLimitDraft, []http.Header{fields}},
		"both":       {ginlimit.XRateLimit | ginlimit.RateLimitDraft, []http.Header{x, fields}},
		"none":       {ginlimit.NoHeaders, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("search", ginlimit.PerMinute(2),
				ginlimit.WithHeaders(row.headers)))
			testkit.Get(r, "/")
			allowed := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
			denied := http.Header{"Content-Type": {"application/problem+json"}, "Content-Length": {"191"},
				"Retry-After": {"30"}, "Cache-Control": {"no-store"}}
			for _, set := range row.want {
				for field, value := range set {
					allowed[field], denied[field] = value, value
				}
			}
			assert.Equal(t, allowed, testkit.Get(r, "/").Header())
			rec := testkit.Get(r, "/")
			assert.Equal(t, denied, rec.Header())
			assert.Equal(t, []string{"search"}, violated(t, rec))
		})
	}
}

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
	rdb, _ := testkit.NewMiniredis(t)
	lost := ginlimit.New(testkit.Unreachable(t), "lost", ginlimit.PerMinute(1000))
	rec := testkit.Get(testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2)), lost), "/")
	assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	assert.Equal(t, "1", rec.Header().Get("X-RateLimit-Remaining"))
}

func TestDegradedHeaderUnlessNoHeaders(t *testing.T) {
	t.Parallel()
	for headers, want := range map[ginlimit.Headers]string{
		ginlimit.XRateLimit: "degraded", ginlimit.RateLimitDraft: "degraded", ginlimit.NoHeaders: "",
	} {
		r := testkit.Serve(testkit.WithoutRedis(t, ginlimit.WithReplicas(2)).Handler("x", ginlimit.PerMinute(4),
			ginlimit.WithHeaders(headers)))
		rec := testkit.Get(r, "/")
		assert.Equal(t, want, rec.Header().Get("X-RateLimit-Status"))
		if headers == ginlimit.RateLimitDraft {
			assert.Equal(t, []item{{"x", 4, 60, -1, -1}}, policiesOf(t, rec), "of the whole limit")
			assert.Equal(t, []item{{"x", -1, -1, 1, 30}}, limitsOf(t, rec), "of this process' share")
		}
	}
}

// TestDegradedHeaderOfFailOpen: the request passes, though nobody has counted it, under any of its keys.
func TestDegradedHeaderOfFailOpen(t *testing.T) {
	t.Parallel()
	limiter := testkit.WithoutRedis(t, ginlimit.WithFailureMode(ginlimit.FailOpen))
	one := limiter.Must("one", ginlimit.PerHour(1))
	for name, handler := range map[string]gin.HandlerFunc{
		"one key":  one.Handler(),
		"two keys": ginlimit.AllOf(one, limiter.Must("all", testkit.All(), ginlimit.PerHour(1))),
		"slots":    limiter.Handler("slots", ginlimit.PerHour(1), ginlimit.InFlight(1)),
	} {
		var found ginlimit.Result
		r := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) },
			handler)
		for range 3 {
			rec := testkit.Get(r, "/")
			require.Equal(t, http.StatusOK, rec.Code, name)
			require.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"), name)
			require.Equal(t, ginlimit.FromOpen, found.Source, name)
			require.Zero(t, found.Cause, name)
		}
	}
}

func TestHeadersOfABadKindAreAFault(t *testing.T) {
	t.Parallel()
	_, err := ginlimit.NewLocal(ginlimit.WithHeaders(4 | ginlimit.XRateLimit))
	require.ErrorContains(t, err, "WithHeaders(5)")
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
	for name, row := range map[string]struct {
		opts    []ginlimit.PolicyOption
		windows [3]string // in January, February and March
	}{
		"prohibited": {[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month)},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"beside a period": {[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month), ginlimit.PerHour(3)},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"beside a shorter quota": {
			[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month), ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"of a client": {[]ginlimit.PolicyOption{testkit.LimitsFrom(ginlimit.PerCalendar(0, month))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"a quota that a floor takes": {
			[]ginlimit.PolicyOption{ginlimit.WithFloor(3), testkit.LimitsFrom(ginlimit.PerCalendar(3, month))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			r := testkit.Serve(testkit.NewPolicy(t, testkit.NewLocal(t), "api",
				append([]ginlimit.PolicyOption{testkit.ByUser(), ginlimit.WithHeaders(ginlimit.RateLimitDraft)},
					row.opts...)...).Handler())
			for i, passed := range []time.Duration{0, january, february} {
				time.Sleep(passed)
				for range 2 { // the second one finds what the first has made
					rec := testkit.Get(r, "/", testkit.User("alice"))
					require.Equal(t, http.StatusTooManyRequests, rec.Code)
					require.Contains(t, rec.Header().Get("RateLimit-Policy"), ";q=0;"+row.windows[i])
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

// The names of policies in the fields of the draft.

// checkNames wants each policy of a response to have a name of its own, and every other place to
// use one of these names.
func checkNames(t testing.TB, rec *httptest.ResponseRecorder, want ...string) {
	t.Helper()
	var names, left []string
	for _, one := range policiesOf(t, rec) {
		names = append(names, one.name)
	}
	for _, one := range limitsOf(t, rec) {
		left = append(left, one.name)
	}
	assert.Equal(t, want, names)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), "policies have one name: %q", names)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(left))), len(left), "limits have one name: %q", left)
	assert.Subset(t, names, left)
	if rec.Code == http.StatusTooManyRequests {
		assert.Subset(t, names, violated(t, rec))
	}
}

// TestLimitsOfOnePolicyHaveDifferentNames, by their final names.
func TestLimitsOfOnePolicyHaveDifferentNames(t *testing.T) {
	t.Parallel()
	perMinute, perHour := ginlimit.PerMinute(1), ginlimit.PerHour(1)
	long := strings.Repeat("n", 64)
	plan := func(limits ...ginlimit.Limit) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })
	}
	type options = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		policy  string
		options options
		want    []string
	}{
		"one limit":  {"a b", options{perMinute}, []string{"a-b"}},
		"long names": {long + "1", options{perMinute, perHour}, []string{long + "-m", long + "-h"}},
		"two algorithms of one period": {"x",
			options{perMinute, perMinute.WithAlgorithm(ginlimit.FixedWindow)}, []string{"x-m", "x-m-2"}},
		"a limit that prohibits": {"x", options{perMinute, ginlimit.PerMinute(0)}, []string{"x-m", "x-m-2"}},
		"a plan":                 {"x", options{plan(perHour, ginlimit.PerDay(9))}, []string{"x-h", "x-d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler(row.policy, append(row.options, draft)...))
			for range 2 {
				checkNames(t, testkit.Get(r, "/"), row.want...)
			}
		})
	}
}
