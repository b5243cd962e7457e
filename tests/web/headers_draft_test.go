package web_test

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What the fields of the draft tell of limits.

func TestDraftReportsEveryLimit(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("search",
		ginlimit.PerSecond(10).WithBurst(20), ginlimit.PerMinute(21), ginlimit.PerHour(3600), draft))
	rec := testkit.Get(r, "/")
	assert.Equal(t, []item{ // a bucket of 20 that is full in two seconds
		{"search-s", 20, 2, -1, -1}, {"search-m", 21, 60, -1, -1}, {"search-h", 3600, 3600, -1, -1},
	}, policiesOf(t, rec))
	assert.Equal(t, []item{
		{"search-s", -1, -1, 19, 1}, {"search-m", -1, -1, 20, 3}, {"search-h", -1, -1, 3599, 1},
	}, limitsOf(t, rec))

	for range 19 {
		testkit.Get(r, "/")
	}
	rec = testkit.Get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{ // t of what denies only: of the others it might be after Retry-After
		{"search-s", -1, -1, 0, 1}, {"search-m", -1, -1, 1, -1}, {"search-h", -1, -1, 3580, -1},
	}, limitsOf(t, rec))
	assert.Equal(t, []string{"search-s"}, violated(t, rec))

	advance(100 * time.Millisecond)
	testkit.Get(r, "/")
	rec = testkit.Get(r, "/") // two deny
	assert.Equal(t, []string{"search-s", "search-m"}, violated(t, rec))
	assert.Equal(t, "3", rec.Header().Get("Retry-After"))
	assert.Equal(t, strconv.Itoa(rec.Body.Len()), rec.Header().Get("Content-Length"))
}

func TestDraftOfWindows(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb, advance := testkit.NewMiniredis(t)
			r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("search", ginlimit.PerMinute(2).WithAlgorithm(a), draft))
			assert.Equal(t, []item{{"search", -1, -1, 1, 60}}, limitsOf(t, testkit.Get(r, "/")))
			advance(20 * time.Second)
			rec := testkit.Get(r, "/")
			assert.Equal(t, []item{{"search", 2, 60, -1, -1}}, policiesOf(t, rec))
			assert.Equal(t, []item{{"search", -1, -1, 0, 40}}, limitsOf(t, rec), "when the first one counts no more")
			rec = testkit.Get(r, "/")
			assert.Equal(t, []item{{"search", -1, -1, 0, 40}}, limitsOf(t, rec))
			assert.Equal(t, "40", rec.Header().Get("Retry-After"))
		})
	}
}

func TestDraftOfSeveralHandlersListsThemInOrder(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb, draft)
	r := testkit.Serve(
		limiter.Handler("100/h", ginlimit.PerHour(100)),
		limiter.Handler("tried", ginlimit.PerHour(50), ginlimit.WithDryRun()),
		limiter.Handler("unlimited", ginlimit.PerMinute(-1)),
		limiter.Handler("x", ginlimit.PerDay(7), ginlimit.WithHeaders(ginlimit.XRateLimit)),
		limiter.Handler("route", ginlimit.PerMinute(1)),
	)
	rec := testkit.Get(r, "/")
	assert.Equal(t, []item{{"limit-100/h", 100, 3600, -1, -1}, {"route", 1, 60, -1, -1}}, policiesOf(t, rec))
	assert.Equal(t, []item{{"limit-100/h", -1, -1, 99, 36}, {"route", -1, -1, 0, 60}}, limitsOf(t, rec))
	rec = testkit.Get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"limit-100/h", -1, -1, 98, -1}, {"route", -1, -1, 0, 60}}, limitsOf(t, rec))
	assert.Equal(t, []string{"route"}, violated(t, rec))
}

func TestDraftOfAllOf(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	test := func(t *testing.T, limiter *testkit.Limiter) {
		r := testkit.Serve(ginlimit.AllOf(limiter.Must("address", ginlimit.PerHour(9), draft),
			limiter.Must("api key", testkit.Key("X-Api-Key"), ginlimit.PerDay(2), draft),
			limiter.Must("nobody", testkit.Key("X-Api-Key"), ginlimit.PerDay(-1), draft),
			limiter.Must("quiet", testkit.Key("X-Api-Key"), ginlimit.PerDay(70), ginlimit.WithHeaders(ginlimit.NoHeaders)),
			limiter.Must("month", testkit.Key("X-Api-Key"), ginlimit.PerDay(90), draft)))
		for range 2 {
			testkit.Get(r, "/", testkit.With("X-Api-Key", "k"))
		}
		rec := testkit.Get(r, "/", testkit.With("X-Api-Key", "k"))
		assert.Equal(t, http.StatusTooManyRequests, rec.Code)
		assert.Equal(t, []item{
			{"address", 9, 3600, -1, -1}, {"api-key", 2, 86400, -1, -1}, {"month", 90, 86400, -1, -1},
		}, policiesOf(t, rec), "all of them, whoever was asked")
		assert.Equal(t, []item{{"address", -1, -1, 7, -1}, {"api-key", -1, -1, 0, 43200}}, limitsOf(t, rec)[:2])
		assert.Equal(t, []string{"api-key"}, violated(t, rec))
	}
	t.Run("together", func(t *testing.T) { test(t, testkit.NewLimiter(t, rdb, ginlimit.WithDenyCache(0))) })
	t.Run("in turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, testkit.NewLocal(t))
		})
	})
}

func TestFreeRequestsAreNotReportedAsDenied(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter, cost := testkit.NewLimiter(t, rdb, draft, ginlimit.WithDenyCache(0)), 1
	r := testkit.Serve(limiter.Handler("writes", ginlimit.PerHour(1),
		ginlimit.WithCost(func(*gin.Context) int { return cost })),
		limiter.Handler("all", ginlimit.PerSecond(2)))
	testkit.Get(r, "/")
	cost = 0
	assert.Equal(t, []item{{"writes", -1, -1, 0, 3600}, {"all", -1, -1, 0, 1}}, limitsOf(t, testkit.Get(r, "/")))
	rec := testkit.Get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"writes", -1, -1, 0, -1}, {"all", -1, -1, 0, 1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"all"}, violated(t, rec))
}

// TestRefundTakesBackTheParameterT: a denial, or an error, of a handler that sets other fields.
func TestRefundTakesBackTheParameterT(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb)
	closed := testkit.NewLimiter(t, rdb)
	require.NoError(t, closed.Close())
	outer := limiter.Handler("outer", ginlimit.PerHour(9), draft)
	for name, inner := range map[string]gin.HandlerFunc{
		"other fields": limiter.Handler("inner", ginlimit.PerMinute(0)),
		"none": limiter.Handler("innermost", ginlimit.PerMinute(0),
			ginlimit.WithHeaders(ginlimit.NoHeaders)),
		"an error": closed.Handler("inner", ginlimit.PerMinute(5)),
	} {
		limits := limitsOf(t, testkit.Get(testkit.Serve(outer, inner), "/"))
		require.Len(t, limits, 1, name)
		assert.EqualValues(t, -1, limits[0].t, name)
	}
}

// TestGivenBackIsNoMoreThanThereIs: a share that owed tokens, which another policy made it give back.
func TestGivenBackIsNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	l, five := testkit.WithoutRedis(t, ginlimit.WithReplicas(5)), ginlimit.WithCost(func(*gin.Context) int { return 5 })
	r := testkit.Serve(ginlimit.AllOf(l.Must("a", ginlimit.PerHour(10), draft, five),
		l.Must("b", ginlimit.PerHour(4), draft, five)))
	rec := testkit.Get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, []item{{"a", -1, -1, 2, -1}, {"b", -1, -1, 1, -1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"b"}, violated(t, rec))
}

// TestLoweredWindowIsReportedUntilItHasMore: until so many have left that one fits, not just the first.
func TestLoweredWindowIsReportedUntilItHasMore(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	rate := 10
	r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("plan", draft,
		ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{ginlimit.PerMinute(rate).WithAlgorithm(ginlimit.SlidingWindow), ginlimit.Unlimited()}, nil
		})))
	for range 10 {
		testkit.Get(r, "/")
		advance(time.Second)
	}
	rate = 3
	rec := testkit.Get(r, "/")
	assert.Equal(t, "57", rec.Header().Get("Retry-After"))
	assert.Equal(t, []item{{"plan-m", -1, -1, 0, 57}}, limitsOf(t, rec))
}

func TestDraftOfProhibitedAndNeverAllowed(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	rec := testkit.Get(testkit.Serve(testkit.NewLimiter(t, rdb).Handler("closed", ginlimit.PerMinute(0), draft)), "/")
	assert.Equal(t, []item{{"closed", 0, 60, -1, -1}}, policiesOf(t, rec))
	assert.Equal(t, []item{{"closed", -1, -1, 0, -1}}, limitsOf(t, rec))
	assert.Equal(t, []string{"closed"}, violated(t, rec))
	assert.Empty(t, rec.Header().Get("Retry-After"))

	cost := ginlimit.WithCost(func(*gin.Context) int { return 6 })
	for name, handler := range map[string]gin.HandlerFunc{
		"in Redis":   testkit.NewLimiter(t, rdb).Handler("small", ginlimit.PerMinute(5), draft, cost),
		"without it": testkit.WithoutRedis(t, ginlimit.WithReplicas(3)).Handler("small", ginlimit.PerMinute(5), draft, cost),
	} {
		rec = testkit.Get(testkit.Serve(handler), "/")
		assert.Equal(t, http.StatusTooManyRequests, rec.Code, name)
		assert.Equal(t, []string{"small"}, violated(t, rec), name)
		assert.Equal(t, "small", limitsOf(t, rec)[0].name, name)
		assert.Empty(t, rec.Header().Get("Retry-After"), name)
	}
}

func TestIntegersInTheDraftsFieldsHaveFifteenDigits(t *testing.T) {
	t.Parallel()
	rows := map[ginlimit.Limit]item{
		{Rate: 1, Period: 100 * 365 * 24 * time.Hour}:              {"x", 1, 3153600000, -1, -1},
		{Rate: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 2000}: {"x", 2000, 9223372037, -1, -1}, // the longest Duration
		// whole seconds, rounded up
		{Rate: 3, Period: 100 * time.Millisecond}:            {"x", 3, 1, -1, -1},
		{Rate: 1000, Period: time.Millisecond}:               {"x", 1000, 1, -1, -1},
		{Rate: 1, Period: 2500 * time.Millisecond, Burst: 1}: {"x", 1, 3, -1, -1},
		{Rate: 60, Period: time.Minute, Burst: 1}:            {"x", 1, 1, -1, -1},
	}
	if testkit.Has64Bits {
		rows[ginlimit.Limit{Rate: 1 << 10, Period: time.Millisecond, Burst: testkit.AsInt(1 << 52)}] = item{"x",
			999999999999999, 4398046512, -1, -1}
		rows[ginlimit.Limit{Rate: 1, Period: time.Millisecond, Burst: testkit.AsInt(math.MaxInt32 * 4)}] = item{"x",
			8589934588, 8589935, -1, -1}
	}
	for limit, want := range rows {
		local, err := ginlimit.NewLocal(draft)
		require.NoError(t, err)
		rec := testkit.Get(testkit.Serve(local.Handler("x", limit)), "/")
		require.Equal(t, http.StatusOK, rec.Code, limit)
		assert.Equal(t, []item{want}, policiesOf(t, rec), limit)
		left := limitsOf(t, rec)[0]
		assert.LessOrEqual(t, left.r, want.q, limit)
		assert.LessOrEqual(t, left.t, want.w, limit)
	}
}

// A client that waits t comes no later than one that waits Retry-After.
func TestRetryAfterIsNeverBeforeT(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			const seed = 7
			random := rand.New(rand.NewPCG(seed, uint64(a)))
			rdb, advance := testkit.NewMiniredis(t)
			limiter := testkit.NewLimiter(t, rdb, draft, ginlimit.WithDenyCache(0))
			cost, free := 0, 0
			r := testkit.Serve(limiter.Handler("outer", ginlimit.PerHour(500).WithAlgorithm(a),
				ginlimit.WithCost(func(*gin.Context) int { return free })),
				limiter.Handler("inner", ginlimit.PerSecond(3).WithAlgorithm(a), ginlimit.PerMinute(20).WithAlgorithm(a),
					ginlimit.Per(30, 2500*time.Millisecond).WithAlgorithm(a),
					ginlimit.WithCost(func(*gin.Context) int { return cost })))
			denied := 0
			for i := range 250 {
				cost, free = 1+random.IntN(3), random.IntN(2)
				advance(time.Duration(random.IntN(900)) * time.Millisecond)
				rec := testkit.Get(r, "/")
				if rec.Code != http.StatusTooManyRequests {
					continue
				}
				denied++
				wait, err := strconv.ParseInt(rec.Header().Get("Retry-After"), 10, 64)
				require.NoError(t, err)
				for _, limit := range limitsOf(t, rec) {
					require.LessOrEqual(t, limit.t, wait, "seed %d, request %d, %v", seed, i, rec.Header())
				}
			}
			require.Greater(t, denied, 50)
		})
	}
}
