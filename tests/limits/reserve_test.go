package limits_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestSettle replaces an estimate by what was taken, once.
func TestSettle(t *testing.T) {
	limit := ginlimit.PerDay(20)
	for name, row := range map[string]struct{ estimate, actual, left int }{
		"less":                 {8, 3, 17},
		"nothing":              {8, 0, 20},
		"as estimated":         {8, 8, 12},
		"more":                 {8, 11, 9},
		"all":                  {8, 20, 0},
		"into debt":            {8, 30, 0},
		"a burst of debt":      {8, 40, 0},
		"more than that":       {8, 41, 0},
		"more than there are":  {8, math.MaxInt, 0},
		"from all to debt":     {20, 21, 0},
		"from all to nothing":  {20, 0, 20},
		"one more than nought": {1, 2, 18},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
				r := e.Reserve(t, row.estimate, limit)
				require.True(t, r.OK())
				require.Equal(t, 20-row.estimate, r.Result().Remaining)
				require.NoError(t, r.Settle(t.Context(), row.actual))
				if e.Frozen { // while the time went on by which what has drained is reckoned
					e.Advance(time.Second)
				}
				require.Equal(t, row.left, e.Left(t, limit))
				debt := min(row.actual, 40) - 20
				if debt > 0 && e.Algorithm == ginlimit.TokenBucket { // it is paid back before there is a token again
					got := testkit.Must(e.Limiter.Allow(t.Context(), "k", limit))
					require.InDelta(t, (time.Duration(debt+1) * 24 * time.Hour / 20).Seconds(), got.RetryAfter.Seconds(),
						1+e.Ahead().Seconds())
				}
				for _, again := range []int{0, 1, 20, math.MaxInt} {
					require.NoError(t, r.Settle(t.Context(), again), "more than once is once")
				}
				require.NoError(t, r.Cancel(t.Context()))
				require.Equal(t, row.left, e.Left(t, limit))
			})
		})
	}
}

// TestSettleChangesNothing where it cannot be done, and can be done later.
func TestSettleChangesNothing(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerDay(20)
		r := e.Reserve(t, 5, limit)
		require.ErrorIs(t, r.Settle(t.Context(), -1), ginlimit.ErrInvalidArgument)
		require.Equal(t, 15, e.Left(t, limit))
		require.NoError(t, r.Settle(t.Context(), 3))
		require.Equal(t, 17, e.Left(t, limit))

		denied := e.Reserve(t, 18, limit)
		require.False(t, denied.OK())
		require.ErrorIs(t, denied.Settle(t.Context(), 0), ginlimit.ErrInvalidArgument)
		require.ErrorIs(t, denied.Settle(t.Context(), 20), ginlimit.ErrInvalidArgument)
		require.NoError(t, denied.Cancel(t.Context()), "harmless")
		denied.Release()
		require.Equal(t, 17, e.Left(t, limit))

		r = e.Reserve(t, 5, limit)
		require.NoError(t, e.Limiter.Close())
		require.ErrorIs(t, r.Settle(t.Context(), 3), ginlimit.ErrUnavailable)
	})
}

// TestReserveRefusesArguments as AllowN does.
func TestReserveRefusesArguments(t *testing.T) {
	l := testkit.NewLocal(t)
	for _, n := range []int{0, -1, math.MinInt} {
		r, err := l.Reserve(t.Context(), "k", n, ginlimit.PerDay(1))
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.Nil(t, r)
	}
	_, err := l.Reserve(t.Context(), "", 1, ginlimit.PerDay(1))
	require.ErrorIs(t, err, ginlimit.ErrNoKey)
	_, err = l.Reserve(t.Context(), "k", 1)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	_, err = testkit.Wrap(new(ginlimit.Limiter), ginlimit.TokenBucket).Reserve(t.Context(), "k", 1, ginlimit.PerDay(1))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	_, err = new(ginlimit.Policy).Reserve(t.Context(), "k", 1)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	for _, none := range []*ginlimit.Reservation{nil, new(ginlimit.Reservation)} {
		require.ErrorIs(t, none.Settle(t.Context(), 1), ginlimit.ErrInvalidArgument)
		require.ErrorIs(t, none.Cancel(t.Context()), ginlimit.ErrInvalidArgument)
		none.Release()
		require.False(t, none.OK())
		require.Zero(t, none.Result())
		require.Empty(t, none.Results())
	}
	r, err := l.Reserve(t.Context(), "k", 5, ginlimit.PerDay(-1))
	require.NoError(t, err)
	require.NoError(t, r.Settle(t.Context(), 500), "unlimited")
}

// TestSettleWithoutRedis: what was taken in this process is settled there; what was taken of Redis stays as it is.
func TestSettleWithoutRedis(t *testing.T) {
	limit := ginlimit.PerDay(20)
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		made := testkit.Must(ginlimit.NewLimiter(b.Redis, ginlimit.WithReplicas(1)))
		defer made.Close()
		limiter := testkit.Wrap(made, ginlimit.TokenBucket)
		before := testkit.Must(limiter.Reserve(t.Context(), "k", 5, limit))
		b.Late.Store(true)
		require.ErrorIs(t, before.Settle(t.Context(), 1), ginlimit.ErrUnavailable)
		require.NoError(t, before.Settle(t.Context(), 1), "it is not tried again")
		for _, row := range [][3]int{{5, 2, 18}, {5, 9, 9}, {5, 100, 0}} {
			r := testkit.Must(limiter.Reserve(t.Context(), "k", row[0], limit))
			require.Equal(t, ginlimit.FromLocal, r.Result().Source)
			require.NoError(t, r.Settle(t.Context(), row[1]))
			require.Equal(t, row[2], testkit.Must(limiter.Peek(t.Context(), "k", limit)).Remaining)
		}
	})
}

// TestWithSettle charges what a request took, whatever becomes of it, or its cost if that is not known.
func TestWithSettle(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		actual, cost, left int
		serve              gin.HandlerFunc
	}{
		"less":           {3, 10, 97, testkit.OK},
		"more":           {30, 10, 70, testkit.OK},
		"into debt":      {150, 10, 0, testkit.OK},
		"all afterwards": {30, 0, 70, testkit.OK},
		"nothing":        {0, 0, 100, testkit.OK},
		"not known":      {-1, 10, 90, testkit.OK},
		"after a panic":  {3, 10, 97, func(*gin.Context) { panic("a handler's") }},
		"after an abort": {3, 10, 97, func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) }},
		"with nobody waiting": {3, 10, 97, func(c *gin.Context) {
			c.Request.Context().Value(cancelKey{}).(context.CancelFunc)()
		}},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			rdb, _ := testkit.NewMiniredis(t)
			limiter := testkit.NewLimiter(t, rdb)
			limit := ginlimit.PerDay(100)
			opts := []ginlimit.PolicyOption{
				limit, ginlimit.WithCost(func(*gin.Context) int { return row.cost }),
				ginlimit.WithSettle(func(*gin.Context) int { return row.actual }),
			}
			router := gin.New()
			var errs []*gin.Error
			router.Use(func(c *gin.Context) {
				defer func() { errs = c.Errors; _ = recover() }()
				c.Next()
			}, limiter.Must("x", opts...).Handler())
			router.GET("/", row.serve)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(context.WithValue(ctx, cancelKey{}, cancel), http.MethodGet, "/", nil)
			require.NoError(t, err)
			req.RemoteAddr = "192.0.2.1:1"
			router.ServeHTTP(httptest.NewRecorder(), req)
			require.Empty(t, errs)
			require.Equal(t, row.left, testkit.Must(limiter.Peek(t.Context(), ginlimit.Key("x", "192.0.2.1"), limit)).Remaining)
		})
	}
}

type cancelKey struct{}

// TestARequestSettlesUnderThePlanThatItBeganWith, and the new plan keeps the bucket.
func TestARequestSettlesUnderThePlanThatItBeganWith(t *testing.T) {
	for name, row := range map[string]struct {
		used   int
		plan   []ginlimit.Limit
		left   int
		inHour int // of 100 an hour
	}{
		"more, of a smaller plan":   {50, []ginlimit.Limit{ginlimit.PerHour(50)}, 25, 50},
		"less, of a larger plan":    {0, []ginlimit.Limit{ginlimit.PerHour(200)}, 200, 100},
		"more, of another period":   {50, []ginlimit.Limit{ginlimit.PerDay(10)}, 10, 50},
		"less, of another period":   {3, []ginlimit.Limit{ginlimit.PerDay(10)}, 10, 97},
		"more, of an unlimited one": {50, []ginlimit.Limit{{Rate: -1}}, math.MaxInt, 50},
		"less, of none":             {0, []ginlimit.Limit{ginlimit.PerHour(0)}, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				plan := []ginlimit.Limit{ginlimit.PerHour(100)}
				p := counts(t, b, ginlimit.WithCost(func(*gin.Context) int { return 10 }),
					ginlimit.WithSettle(func(*gin.Context) int { return row.used }),
					ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return plan, nil }))
				p.during = func() { plan = row.plan }
				p.wants(t, "alice", 200)
				p.left(t, "alice", row.left)
				plan = []ginlimit.Limit{ginlimit.PerHour(100)}
				p.left(t, "alice", row.inHour)
			})
		})
	}
}

// TestFloor: a policy with a floor stops where the one that it was derived from goes on.
func TestFloor(t *testing.T) {
	t.Parallel()
	for _, a := range append(testkit.WindowAlgorithms, ginlimit.TokenBucket) {
		for _, limits := range [][]ginlimit.Limit{
			{ginlimit.PerDay(10).WithAlgorithm(a)},
			{ginlimit.PerDay(10).WithAlgorithm(a), ginlimit.PerCalendar(100, ginlimit.CalendarMonth(nil, 1))},
		} {
			testkit.RunSynctest(t, a.String()+strconv.Itoa(len(limits)), func(t *testing.T) {
				limiter := testkit.NewLocal(t)
				people := testkit.NewPolicy(t, limiter, "x", ginlimit.WithLimits(limits...))
				batch := testkit.Derive(t, people, ginlimit.WithFloor(4))
				allow := func(p *ginlimit.Policy, allowed bool, remaining int) ginlimit.Result {
					t.Helper()
					r := testkit.Must(p.Allow(t.Context(), "k"))
					require.Equal(t, allowed, r.Allowed)
					require.Equal(t, remaining, r.Remaining)
					return r
				}
				allow(people, true, 9)
				allow(people, true, 8)
				for left := range 4 {
					allow(batch, true, 3-left)
				}
				denied := allow(batch, false, 0)
				for left := range 4 {
					allow(people, true, 3-left)
				}
				allow(people, false, 0)
				allow(batch, false, 0)
				if a != ginlimit.TokenBucket {
					time.Sleep(24 * time.Hour)
					allow(batch, true, 5)
					return
				}
				require.Equal(t, 24*time.Hour/10, denied.RetryAfter)
				r := testkit.Must(batch.Peek(t.Context(), "k"))
				require.Equal(t, 5*24*time.Hour/10, r.RetryAfter)
				time.Sleep(r.RetryAfter - time.Millisecond)
				allow(batch, false, 0)
				time.Sleep(time.Millisecond)
				allow(batch, true, 0)
				allow(people, true, 3)
			})
		}
	}
}

// TestAReservationOfACallerThatLeavesIsGivenBack, once Redis has answered.
func TestAReservationOfACallerThatLeavesIsGivenBack(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		takes := time.Duration(0)
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error {
			defer time.Sleep(takes)
			return send()
		}))
		p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis), "api", ginlimit.PerDay(20))
		testkit.Must(p.Allow(t.Context(), "ann"))
		takes = 20 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := p.Reserve(ctx, "ann", 5)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Equal(t, 19, testkit.Must(p.Peek(t.Context(), "ann")).Remaining)
	})
}

// TestADryRunDeniesNoReservation: whoever asks OK begins the work, and Result says what a policy in force would have
// decided. There is nothing to settle.
func TestADryRunDeniesNoReservation(t *testing.T) {
	t.Parallel()
	l := testkit.Must(ginlimit.NewLocal(ginlimit.WithClientObserver(func(_ context.Context, e ginlimit.Event, _ string) {
		assert.NotEqual(t, ginlimit.OutcomeSettled, e.Outcome)
	})))
	defer func() { require.NoError(t, l.Close()) }()
	dry := testkit.Must(l.Policy("dry", ginlimit.PerHour(3), ginlimit.WithDryRun()))
	other := testkit.Must(l.Policy("other", ginlimit.PerHour(9), ginlimit.WithDryRun()))
	inForce := testkit.Must(l.Policy("in force", ginlimit.PerHour(3)))
	r := testkit.Must(ginlimit.ReserveAll(t.Context(), charge(dry, "k", 4), charge(other, "k", 4)))
	require.True(t, r.OK())
	require.False(t, r.Result().Allowed)
	require.NoError(t, r.Settle(t.Context(), 1, 1))
	require.NoError(t, r.Cancel(t.Context()))
	require.Equal(t, 9, testkit.Must(other.Peek(t.Context(), "k")).Remaining)
	r = testkit.Must(ginlimit.ReserveAll(t.Context(), charge(dry, "k", 1), charge(inForce, "k", 4)))
	require.False(t, r.OK())
}
