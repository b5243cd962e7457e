package web_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
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
		"none":         limiter.Handler("innermost", ginlimit.PerMinute(0), ginlimit.WithHeaders(ginlimit.NoHeaders)),
		"an error":     closed.Handler("inner", ginlimit.PerMinute(5)),
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

// A client that waits t comes no later than one that waits Retry-After.
func TestRetryAfterIsNeverBeforeT(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		testkit.Run(t, a.String(), func(t *testing.T) {
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
				wait := testkit.Must(strconv.ParseInt(rec.Header().Get("Retry-After"), 10, 64))
				for _, limit := range limitsOf(t, rec) {
					require.LessOrEqual(t, limit.t, wait, "seed %d, request %d, %v", seed, i, rec.Header())
				}
			}
			require.Greater(t, denied, 50)
		})
	}
}

// TestANameStandsOnce in a limiter, for one policy and those that With derives from it.
func TestANameStandsOnce(t *testing.T) {
	t.Parallel()
	const taken = `ginlimit: the limiter has a policy named "p" already; keep it and call its With, or choose another name`
	hour := ginlimit.PerHour(5)
	l := testkit.NewLocal(t)
	_, err := l.Policy("p")
	requireInvalid(t, err, "ginlimit: invalid argument: no limit given")
	p := testkit.NewPolicy(t, l, "p", hour) // a construction that failed has not taken the name
	_, err = l.Policy("p", hour)
	requireInvalid(t, err, taken)
	_, err = l.Policy("p", hour.WithBurst(-1), ginlimit.WithFloor(-1))
	requireInvalid(t, err, "ginlimit: WithFloor(-1): want at least 0",
		"ginlimit: invalid argument: 5/h burst -1: the burst is negative", taken)
	requireInvalid(t, testkit.PanicError(func() { l.Handler("p", hour) }), taken)
	for range 2 {
		testkit.Derive(t, testkit.Derive(t, p, ginlimit.WithFloor(1)), ginlimit.WithDryRun())
	}
	testkit.NewPolicy(t, l, "q", hour)
	testkit.NewPolicy(t, testkit.NewLocal(t), "p", hour)
	source := func(context.Context, string) ([]ginlimit.Limit, error) { return nil, nil }
	for _, want := range []string{"", `ginlimit: the limiter has plans named "p" already; keep them, or choose another name`} {
		if _, err := l.NewPlans("p", time.Minute, source); want != "" {
			requireInvalid(t, err, want)
		} else {
			require.NoError(t, err, "plans have names of their own")
		}
	}
}

// TestANameIsTakenByOneOfMany who want it at once.
func TestANameIsTakenByOneOfMany(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t).Limiter
	var made atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := l.Policy("p", ginlimit.PerHour(5)); err == nil {
				made.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, made.Load())
}

// TestNamesAreBounded: a program that makes a policy for each request hears of it, and keeps no memory for more.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t).Limiter
	for i := range 65_536 {
		if _, err := l.Policy(strconv.Itoa(i), ginlimit.Unlimited()); err != nil {
			require.NoError(t, err)
		}
	}
	_, err := l.Policy("one more", ginlimit.Unlimited())
	requireInvalid(t, err,
		"ginlimit: the limiter has made 65536 policies; make each policy once, at start, not for each request")
}
