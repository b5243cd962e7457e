package ginlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
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
)

// Which fields tell of a limit. Those of the draft are read back by a parser of RFC 9651.

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
			rdb, _ := newMiniredis(t)
			r := serve(middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithName("search"), ginlimit.WithHeaders(row.headers)))
			get(r, "/")
			allowed := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
			refused := http.Header{"Content-Type": {"application/problem+json"}, "Content-Length": {"191"},
				"Retry-After": {"30"}, "Cache-Control": {"no-store"}}
			for _, set := range row.want {
				for field, value := range set {
					allowed[field], refused[field] = value, value
				}
			}
			assert.Equal(t, allowed, get(r, "/").Header())
			rec := get(r, "/")
			assert.Equal(t, refused, rec.Header())
			assert.Equal(t, []string{"search"}, violated(t, rec))
		})
	}
}

func TestDraftTellsOfEveryLimit(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerSecond(10).WithBurst(20), draft,
		ginlimit.WithName("search"), ginlimit.WithLimits(ginlimit.PerMinute(21), ginlimit.PerHour(3600))))
	rec := get(r, "/")
	assert.Equal(t, []item{ // a bucket of 20 that is full in two seconds
		{"search-s", 20, 2, -1, -1}, {"search-m", 21, 60, -1, -1}, {"search-h", 3600, 3600, -1, -1},
	}, policiesOf(t, rec))
	assert.Equal(t, []item{
		{"search-s", -1, -1, 19, 1}, {"search-m", -1, -1, 20, 3}, {"search-h", -1, -1, 3599, 1},
	}, limitsOf(t, rec))

	for range 19 {
		get(r, "/")
	}
	rec = get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{ // t of what refuses only: of the others it might be after Retry-After
		{"search-s", -1, -1, 0, 1}, {"search-m", -1, -1, 1, -1}, {"search-h", -1, -1, 3580, -1},
	}, limitsOf(t, rec))
	assert.Equal(t, []string{"search-s"}, violated(t, rec))

	advance(100 * time.Millisecond)
	get(r, "/")
	rec = get(r, "/") // two refuse
	assert.Equal(t, []string{"search-s", "search-m"}, violated(t, rec))
	assert.Equal(t, "3", rec.Header().Get("Retry-After"))
	assert.Equal(t, strconv.Itoa(rec.Body.Len()), rec.Header().Get("Content-Length"))
}

func TestDraftOfWindows(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb, advance := newMiniredis(t)
			r := serve(middleware(rdb, ginlimit.PerMinute(2), draft, ginlimit.WithName("search"), ginlimit.WithAlgorithm(a)))
			assert.Equal(t, []item{{"search", -1, -1, 1, 60}}, limitsOf(t, get(r, "/")))
			advance(20 * time.Second)
			rec := get(r, "/")
			assert.Equal(t, []item{{"search", 2, 60, -1, -1}}, policiesOf(t, rec))
			assert.Equal(t, []item{{"search", -1, -1, 0, 40}}, limitsOf(t, rec), "when the first one counts no more")
			rec = get(r, "/")
			assert.Equal(t, []item{{"search", -1, -1, 0, 40}}, limitsOf(t, rec))
			assert.Equal(t, "40", rec.Header().Get("Retry-After"))
		})
	}
}

func TestDraftOfSeveralHandlersListsThemInOrder(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	limiter := newLimiter(t, rdb, draft)
	r := serve(
		limiter.Handler(ginlimit.PerHour(100)),
		limiter.Handler(ginlimit.PerHour(50), ginlimit.WithName("tried"), ginlimit.WithDryRun()),
		limiter.Handler(ginlimit.PerMinute(-1), ginlimit.WithName("unlimited")),
		limiter.Handler(ginlimit.PerDay(7), ginlimit.WithName("x"), ginlimit.WithHeaders(ginlimit.XRateLimit)),
		limiter.Handler(ginlimit.PerMinute(1), ginlimit.WithName("route")),
	)
	rec := get(r, "/")
	assert.Equal(t, []item{{"limit-100/h", 100, 3600, -1, -1}, {"route", 1, 60, -1, -1}}, policiesOf(t, rec))
	assert.Equal(t, []item{{"limit-100/h", -1, -1, 99, 36}, {"route", -1, -1, 0, 60}}, limitsOf(t, rec))
	rec = get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"limit-100/h", -1, -1, 98, -1}, {"route", -1, -1, 0, 60}}, limitsOf(t, rec))
	assert.Equal(t, []string{"route"}, violated(t, rec))
}

func TestDraftOfIdentities(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	test := func(t *testing.T, limiter *ginlimit.Limiter) {
		r := serve(limiter.Handler(ginlimit.PerHour(9), draft, ginlimit.WithName("address"),
			ginlimit.WithIdentity("api key", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerDay(2)),
			ginlimit.WithIdentity("nobody", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerDay(-1)),
			ginlimit.WithIdentity("api-key", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerDay(90))))
		for range 2 {
			get(r, "/", with("X-Api-Key", "k"))
		}
		rec := get(r, "/", with("X-Api-Key", "k"))
		assert.Equal(t, http.StatusTooManyRequests, rec.Code)
		assert.Equal(t, []item{
			{"address", 9, 3600, -1, -1}, {"api-key", 2, 86400, -1, -1}, {"api-key-2", 90, 86400, -1, -1},
		}, policiesOf(t, rec), "all of them, whoever was asked")
		assert.Equal(t, []item{{"address", -1, -1, 7, -1}, {"api-key", -1, -1, 0, 43200}}, limitsOf(t, rec)[:2])
		assert.Equal(t, []string{"api-key"}, violated(t, rec))
	}
	t.Run("together", func(t *testing.T) { test(t, newLimiter(t, rdb, ginlimit.WithDenyMemory(0))) })
	t.Run("in turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			local, err := ginlimit.NewLocal()
			require.NoError(t, err)
			test(t, local)
		})
	})
}

// What the memory tells of several identities is what Redis told of them.
func TestRefusalOfIdentitiesFromMemory(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb, believing())
	r := serve(limiter.Handler(ginlimit.PerHour(1), draft, ginlimit.WithName("fast"),
		ginlimit.WithIdentity("slow", ginlimit.ByClientIP, ginlimit.PerDay(1))))
	get(r, "/")
	for range 3 { // the first from Redis, the others from memory
		rec := get(r, "/")
		wait, err := strconv.Atoi(rec.Header().Get("Retry-After"))
		require.NoError(t, err)
		assert.InDelta(t, 86400, wait, 60)
		assert.Equal(t, []string{"fast", "slow"}, violated(t, rec))
		assert.Len(t, limitsOf(t, rec), 2)
	}
	assert.Equal(t, 2, scriptCalls(t, rdb))
}

func TestFreeRequestsAreNotToldAsRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	limiter, cost := newLimiter(t, rdb, draft, ginlimit.WithDenyMemory(0)), 1
	r := serve(limiter.Handler(ginlimit.PerHour(1), ginlimit.WithName("writes"), ginlimit.WithCost(func(*gin.Context) int { return cost })),
		limiter.Handler(ginlimit.PerSecond(2), ginlimit.WithName("all")))
	get(r, "/")
	cost = 0
	assert.Equal(t, []item{{"writes", -1, -1, 0, 3600}, {"all", -1, -1, 0, 1}}, limitsOf(t, get(r, "/")))
	rec := get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"writes", -1, -1, 0, -1}, {"all", -1, -1, 0, 1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"all"}, violated(t, rec))
}

// TestTIsTakenBack: a refusal, or an error, of a handler that sets other fields.
func TestTIsTakenBack(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	limiter := newLimiter(t, rdb)
	closed := newLimiter(t, rdb)
	require.NoError(t, closed.Close())
	outer := limiter.Handler(ginlimit.PerHour(9), draft, ginlimit.WithName("outer"))
	for name, inner := range map[string]gin.HandlerFunc{
		"other fields": limiter.Handler(ginlimit.PerMinute(0), ginlimit.WithName("inner")),
		"none":         limiter.Handler(ginlimit.PerMinute(0), ginlimit.WithName("inner"), ginlimit.WithHeaders(ginlimit.NoHeaders)),
		"an error":     closed.Handler(ginlimit.PerMinute(5), ginlimit.WithName("inner")),
	} {
		limits := limitsOf(t, get(serve(outer, inner), "/"))
		require.Len(t, limits, 1, name)
		assert.EqualValues(t, -1, limits[0].t, name)
	}
}

// TestEveryHandlersFieldsAreThere, though an earlier handler that sets others is closer to exhaustion.
func TestEveryHandlersFieldsAreThere(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	limiter := newLimiter(t, rdb)
	own := ginlimit.WithHeaderFunc(func(h http.Header, r ginlimit.Result) { h.Set("Left", strconv.Itoa(r.Remaining)) })
	r := serve(limiter.Handler(ginlimit.PerHour(3), ginlimit.WithHeaders(ginlimit.NoHeaders)),
		limiter.Handler(ginlimit.PerMinute(100)),
		limiter.Handler(ginlimit.PerMinute(50), ginlimit.WithName("own"), ginlimit.WithHeaders(ginlimit.NoHeaders), own),
		limiter.Handler(ginlimit.PerMinute(70), ginlimit.WithName("looser"), own))
	h := get(r, "/").Header()
	assert.Equal(t, "69", h.Get("X-RateLimit-Remaining"))
	assert.Equal(t, "49", h.Get("Left"))
}

func TestDegradedIsToldOfAnyHandler(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	lost := ginlimit.New(connectDirect(t, "127.0.0.1:"+freePort(t)), ginlimit.PerMinute(1000))
	rec := get(serve(middleware(rdb, ginlimit.PerMinute(2)), lost), "/")
	assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	assert.Equal(t, "1", rec.Header().Get("X-RateLimit-Remaining"))
}

// TestGivenBackIsNoMoreThanThereIs: a share that owed tokens, which another identity made it give back.
func TestGivenBackIsNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	gone := connectDirect(t, "127.0.0.1:"+freePort(t))
	r := serve(ginlimit.New(gone, ginlimit.PerHour(10), draft, ginlimit.WithReplicas(5), ginlimit.WithName("a"),
		ginlimit.WithCost(func(*gin.Context) int { return 5 }), ginlimit.WithIdentity("b", ginlimit.ByClientIP, ginlimit.PerHour(4))))
	rec := get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"a", -1, -1, 2, -1}, {"b", -1, -1, 1, -1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"b"}, violated(t, rec))
}

// TestMemoryKnowsWhenAWindowHasEnded, of a limit that did not refuse.
func TestMemoryKnowsWhenAWindowHasEnded(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb, believing(), draft, ginlimit.WithAlgorithm(ginlimit.FixedWindow))
	short := ginlimit.Limit{Rate: 9, Period: 100 * time.Millisecond}
	r := serve(limiter.Handler(short, ginlimit.WithName("x"), ginlimit.WithLimits(ginlimit.PerDay(1)), ginlimit.WithKey(ginlimit.ByHeader("K"))))
	for try := range 50 { // until nothing is so slow that the memory has forgotten
		client := with("K", strconv.Itoa(try))
		get(r, "/", client)
		assert.Equal(t, http.StatusTooManyRequests, get(r, "/", client).Code)
		asked := scriptCalls(t, rdb)
		<-time.After(2 * short.Period)
		if limits := limitsOf(t, get(r, "/", client)); scriptCalls(t, rdb) == asked {
			require.EqualValues(t, 9, limits[0].r)
			return
		}
	}
	require.Fail(t, "nothing was known")
}

// TestLoweredWindowIsToldOfUntilItHasMore: until so many have left that one fits, not just the first.
func TestLoweredWindowIsToldOfUntilItHasMore(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	rate := 10
	r := serve(middleware(rdb, ginlimit.PerMinute(1), draft, ginlimit.WithName("plan"), ginlimit.WithAlgorithm(ginlimit.SlidingWindow),
		ginlimit.WithLimitFunc(func(*gin.Context, string) (ginlimit.Limit, error) { return ginlimit.PerMinute(rate), nil }),
		ginlimit.WithLimits(ginlimit.PerDay(-1))))
	for range 10 {
		get(r, "/")
		advance(time.Second)
	}
	rate = 3
	rec := get(r, "/")
	assert.Equal(t, "57", rec.Header().Get("Retry-After"))
	assert.Equal(t, []item{{"plan-m", -1, -1, 0, 57}}, limitsOf(t, rec))
}

func TestDraftOfProhibitedAndNeverAllowed(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	rec := get(serve(middleware(rdb, ginlimit.PerMinute(0), draft, ginlimit.WithName("closed"))), "/")
	assert.Equal(t, []item{{"closed", 0, 60, -1, -1}}, policiesOf(t, rec))
	assert.Equal(t, []item{{"closed", -1, -1, 0, -1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"closed"}, violated(t, rec))
	assert.Empty(t, rec.Header().Get("Retry-After"))

	cost := ginlimit.WithCost(func(*gin.Context) int { return 6 })
	gone := connectDirect(t, "127.0.0.1:"+freePort(t))
	for name, handler := range map[string]gin.HandlerFunc{
		"in Redis":   middleware(rdb, ginlimit.PerMinute(5), draft, cost, ginlimit.WithName("small")),
		"without it": ginlimit.New(gone, ginlimit.PerMinute(5), draft, cost, ginlimit.WithName("small"), ginlimit.WithReplicas(3)),
	} {
		rec = get(serve(handler), "/")
		assert.Equal(t, http.StatusTooManyRequests, rec.Code, name)
		assert.Equal(t, []string{"small"}, violated(t, rec), name)
		assert.Equal(t, "small", limitsOf(t, rec)[0].name, name)
		assert.Empty(t, rec.Header().Get("Retry-After"), name)
	}
}

func TestNamesInTheDraftsFields(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 100)
	for name, want := range map[string]string{
		"search":          "search",
		"Search.v2_x~":    "Search.v2_x~",
		"two words":       "two-words",
		`say "no" \ {a}`:  "say--no-----a-",
		"a/b:c":           "a/b:c",
		"*":               "*",
		"2nd":             "limit-2nd",
		"/login":          "limit-/login",
		"Größe":           "Gr----e",
		"日":               "limit----",
		"a\r\nSet-Cookie": "a--Set-Cookie",
		long:              long[:64],
	} {
		rdb, _ := newMiniredis(t)
		rec := get(serve(middleware(rdb, ginlimit.PerMinute(1), draft, ginlimit.WithName(name))), "/")
		assert.Equal(t, []item{{want, 1, 60, -1, -1}}, policiesOf(t, rec), "%q", name)
	}
	rdb, _ := newMiniredis(t)
	rec := get(serve(middleware(rdb, ginlimit.PerSecond(10).WithBurst(20), draft,
		ginlimit.WithLimits(ginlimit.Limit{Rate: 100, Period: 90 * time.Second}))), "/")
	assert.Equal(t, []item{{"limit-10/s-burst-20", 20, 2, -1, -1}, {"limit-100/90s", 100, 90, -1, -1}}, policiesOf(t, rec))
}

func FuzzNamesInTheDraftsFields(f *testing.F) {
	for _, name := range []string{"search", "", "2nd", `"`, "\\", "日本", "*x", "a b", strings.Repeat("é", 40)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := ginlimit.FieldName(name)
		item, err := httpsfv.UnmarshalItem([]string{got})
		require.NoError(t, err)
		require.Equal(t, httpsfv.Token(got), item.Value)
		item, err = httpsfv.UnmarshalItem([]string{`"` + got + `"`})
		require.NoError(t, err)
		require.Equal(t, got, item.Value)
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, strconv.Quote(got), strings.ReplaceAll(string(text), `\u0026`, "&"))
	})
}

func TestIntegersInTheDraftsFieldsHaveFifteenDigits(t *testing.T) {
	t.Parallel()
	for limit, want := range map[ginlimit.Limit]item{
		{Rate: 1 << 10, Period: time.Millisecond, Burst: 1 << 52}:     {"x", 999999999999999, 4398046512, -1, -1},
		{Rate: 1, Period: 100 * 365 * 24 * time.Hour}:                 {"x", 1, 3153600000, -1, -1},
		{Rate: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 2000}:    {"x", 2000, 9223372037, -1, -1}, // the longest Duration
		{Rate: 3, Period: 100 * time.Millisecond}:                     {"x", 3, 1, -1, -1},             // whole seconds, rounded up
		{Rate: 1000, Period: time.Millisecond}:                        {"x", 1000, 1, -1, -1},
		{Rate: 1, Period: 2500 * time.Millisecond, Burst: 1}:          {"x", 1, 3, -1, -1},
		{Rate: 60, Period: time.Minute, Burst: 1}:                     {"x", 1, 1, -1, -1},
		{Rate: 1, Period: time.Millisecond, Burst: math.MaxInt32 * 4}: {"x", 8589934588, 8589935, -1, -1},
	} {
		local, err := ginlimit.NewLocal(draft)
		require.NoError(t, err)
		rec := get(serve(local.Handler(limit, ginlimit.WithName("x"))), "/")
		require.Equal(t, http.StatusOK, rec.Code, limit)
		assert.Equal(t, []item{want}, policiesOf(t, rec), limit)
		left := limitsOf(t, rec)[0]
		assert.LessOrEqual(t, left.r, want.q, limit)
		assert.LessOrEqual(t, left.t, want.w, limit)
	}
}

// A client that believes t comes no later than one that believes Retry-After.
func TestRetryAfterIsNeverBeforeT(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			const seed = 7
			random := rand.New(rand.NewPCG(seed, uint64(a)))
			rdb, advance := newMiniredis(t)
			limiter := newLimiter(t, rdb, draft, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
			cost, free := 0, 0
			r := serve(limiter.Handler(ginlimit.PerHour(500), ginlimit.WithName("outer"),
				ginlimit.WithCost(func(*gin.Context) int { return free })),
				limiter.Handler(ginlimit.PerSecond(3), ginlimit.WithName("inner"),
					ginlimit.WithLimits(ginlimit.PerMinute(20), ginlimit.Limit{Rate: 30, Period: 2500 * time.Millisecond}),
					ginlimit.WithCost(func(*gin.Context) int { return cost })))
			refused := 0
			for i := range 3000 {
				cost, free = 1+random.IntN(3), random.IntN(2)
				advance(time.Duration(random.IntN(900)) * time.Millisecond)
				rec := get(r, "/")
				if rec.Code != http.StatusTooManyRequests {
					continue
				}
				refused++
				wait, err := strconv.ParseInt(rec.Header().Get("Retry-After"), 10, 64)
				require.NoError(t, err)
				for _, limit := range limitsOf(t, rec) {
					require.LessOrEqual(t, limit.t, wait, "seed %d, request %d, %v", seed, i, rec.Header())
				}
			}
			require.Greater(t, refused, 300)
		})
	}
}

func TestDegradedIsToldUnlessNothingIs(t *testing.T) {
	t.Parallel()
	gone := connectDirect(t, "127.0.0.1:"+freePort(t))
	for headers, want := range map[ginlimit.Headers]string{
		ginlimit.XRateLimit: "degraded", ginlimit.RateLimitDraft: "degraded", ginlimit.NoHeaders: "",
	} {
		r := serve(ginlimit.New(gone, ginlimit.PerMinute(4), ginlimit.WithHeaders(headers), ginlimit.WithName("x"), ginlimit.WithReplicas(2)))
		rec := get(r, "/")
		assert.Equal(t, want, rec.Header().Get("X-RateLimit-Status"))
		if headers == ginlimit.RateLimitDraft {
			assert.Equal(t, []item{{"x", 4, 60, -1, -1}}, policiesOf(t, rec), "of the whole limit")
			assert.Equal(t, []item{{"x", -1, -1, 1, 30}}, limitsOf(t, rec), "of this process' share")
		}
	}
}

func TestPlainTextForWhoAsksForIt(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	limited := serve(middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithDenyMemory(0))) // whose clock goes on
	get(limited, "/")
	for accept, wantText := range map[string]bool{
		"":                                    false,
		"*/*":                                 false,
		"application/problem+json":            false,
		"application/json":                    false,
		"application/json, text/plain, */*":   false, // as axios asks
		"text/html,application/xhtml+xml,*/*": false, // as browsers do
		"image/png":                           false,
		"text/html":                           false,
		"text/plain":                          true,
		"Text/Plain":                          true,
		"text/plain; charset=utf-8":           true,
		"text/*":                              true,
		"text/plain, */*":                     true, // named, not just liked
		"text/plain;q=0.5, */*;q=0.1":         true,
		"text/plain;q=0.1, */*":               false,
		"text/plain;q=0.9, application/json":  false,
		"text/plain, application/json;q=0.9":  true,
		"text/plain, application/problem+json;q=0.999, application/json;q=0": true,
		"text/plain, application/*":                 true,
		"text/plain;q=0":                            false,
		"text/plain;q=0, */*;q=0.1":                 false,
		"text/plain;q=NaN":                          false,
		"text/plain;q=-1":                           false,
		"text/plain;q=1.0000":                       false,
		"text/plain;q=1.001":                        false,
		"text/plain;q=":                             false,
		"text/plain;Q=0.1, application/json;q=0.01": true,
		"text/plain;format=flowed, text/plain;q=0.1, */*;q=0.5":            true,
		"text/plain;q=0.1, text/plain;format=flowed, */*;q=0.5":            true,
		"application/problem+json;q=0, application/json, text/plain;q=0.9": true,
		`application/json;x="a,text/plain,b"`:                              false,
		`application/json;x="\",text/plain"`:                               false,
		`text/plain;x=";q=0"`:                                              true,
		"application/json;a=1;a=2, text/plain;q=0.1":                       false,
		"text/plain" + strings.Repeat(", image/png", 200):                  false, // not read
		";,;;=,text/": false,
	} {
		rec := get(limited, "/", with("Accept", accept))
		require.Equal(t, http.StatusTooManyRequests, rec.Code)
		if wantText {
			assert.Equal(t, "text/plain; charset=utf-8", rec.Header().Get("Content-Type"), accept)
			assert.Equal(t, "Too many requests: try again in 60 s.\n", rec.Body.String(), accept)
		} else {
			assert.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"), accept)
			assert.True(t, json.Valid(rec.Body.Bytes()), accept)
		}
		assert.Equal(t, strconv.Itoa(rec.Body.Len()), rec.Header().Get("Content-Length"), accept)
		assert.Equal(t, "60", rec.Header().Get("Retry-After"), accept)
	}
	twoLines := func(r *http.Request) { r.Header["Accept"] = []string{"application/json;q=0.2", "text/plain"} }
	assert.Contains(t, get(limited, "/", twoLines).Body.String(), "try again")
	text := with("Accept", "text/plain")
	rec := get(serve(middleware(rdb, ginlimit.PerMinute(0))), "/", text)
	assert.Equal(t, "Too many requests.\n", rec.Body.String(), "no advice where no waiting helps")
	rec = get(serve(middleware(rdb, ginlimit.PerMinute(5), ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")))), "/", text)
	assert.Equal(t, "The header X-Client-Id is missing.\n", rec.Body.String())
	assert.Equal(t, http.StatusBadRequest, rec.Code)
	limiter := newLimiter(t, rdb)
	require.NoError(t, limiter.Close())
	rec = get(serve(limiter.Handler(ginlimit.PerMinute(5))), "/", text)
	assert.Equal(t, "Service Unavailable\n", rec.Body.String())
	assert.Equal(t, "1", rec.Header().Get("Retry-After"))
}

func FuzzAccept(f *testing.F) {
	for _, accept := range []string{"", "*/*", "text/plain", "text/plain;q=0.5,*/*;q=0.1", "text/*;q=1.000", `text/plain;x=","`, ",;="} {
		f.Add(accept)
	}
	local, err := ginlimit.NewLocal()
	require.NoError(f, err)
	r := serve(local.Handler(ginlimit.PerDay(0)))
	f.Fuzz(func(t *testing.T, accept string) {
		rec := get(r, "/", func(r *http.Request) { r.Header["Accept"] = []string{accept} })
		require.Equal(t, http.StatusTooManyRequests, rec.Code)
		require.Contains(t, []string{"text/plain; charset=utf-8", "application/problem+json"}, rec.Header().Get("Content-Type"))
		require.Equal(t, strconv.Itoa(rec.Body.Len()), rec.Header().Get("Content-Length"))
	})
}

// Guarantee 3, from end to end: over a connection, by the clock of a real server.
func TestClientThatHonoursRetryAfterIsAdmittedNext(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(serve(middleware(rdb, ginlimit.Limit{Rate: 1, Period: 1900 * time.Millisecond},
				ginlimit.WithAlgorithm(a), ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft))))
			defer server.Close()
			client := honouring{server.Client()}
			refused := 0
			for try := 0; refused < 2 && try < 100; try++ {
				tries, err := client.get(t.Context(), server.URL)
				require.NoError(t, err)
				require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, tries[0])
				if len(tries) > 1 {
					refused++
					assert.Equal(t, []int{http.StatusTooManyRequests, http.StatusOK}, tries)
				}
			}
			assert.Equal(t, 2, refused)
		})
	}
}

// honouring is a client that waits as long as it is told to.
type honouring struct{ *http.Client }

// get returns the statuses of all tries.
func (c honouring) get(ctx context.Context, url string) (tries []int, err error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return tries, err
		}
		res, err := c.Do(req)
		if err != nil {
			return tries, err
		}
		_ = res.Body.Close()
		tries = append(tries, res.StatusCode)
		if res.StatusCode != http.StatusTooManyRequests || len(tries) == 5 {
			return tries, nil
		}
		wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if err != nil {
			return tries, fmt.Errorf("Retry-After: %w", err)
		}
		select {
		case <-time.After(time.Duration(wait) * time.Second):
		case <-ctx.Done():
			return tries, ctx.Err()
		}
	}
}

func TestHeadersOfABadKindAreAFault(t *testing.T) {
	t.Parallel()
	_, err := ginlimit.NewLocal(ginlimit.WithHeaders(4|ginlimit.XRateLimit), ginlimit.WithAlgorithm(3))
	require.ErrorContains(t, err, "WithHeaders(5)")
	require.ErrorContains(t, err, "WithAlgorithm(3)")
	names := []string{}
	for a := range ginlimit.Algorithm(4) {
		names = append(names, a.String())
	}
	require.True(t, slices.Equal([]string{"token bucket", "fixed window", "sliding window", "unknown"}, names))
}
