package limits_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWaitN waits for several tokens at once.
func TestWaitN(t *testing.T) {
	t.Parallel()
	ten := ginlimit.PerSecond(10)
	for name, row := range map[string]struct {
		limits   []ginlimit.Limit
		first, n int
		waits    time.Duration
		err      error
	}{
		"there are so many":   {[]ginlimit.Limit{ten}, 5, 5, 0, nil},
		"some are missing":    {[]ginlimit.Limit{ten}, 8, 5, 300 * time.Millisecond, nil},
		"all are missing":     {[]ginlimit.Limit{ten}, 10, 10, time.Second, nil},
		"of several limits":   {[]ginlimit.Limit{ten, ginlimit.PerMinute(60).WithBurst(10)}, 10, 2, 2 * time.Second, nil},
		"of a fixed window":   {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.FixedWindow)}, 9, 2, time.Second, nil},
		"of a sliding window": {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.SlidingWindow)}, 9, 2, time.Second, nil},
		"more than there are": {[]ginlimit.Limit{ten}, 1, 11, 0, ginlimit.ErrInvalidArgument},
		"more than one holds": {[]ginlimit.Limit{ten.WithBurst(20), ginlimit.PerHour(12)},
			1, 13, 0, ginlimit.ErrInvalidArgument},
		"none":               {[]ginlimit.Limit{ten}, 1, 0, 0, ginlimit.ErrInvalidArgument},
		"prohibited":         {[]ginlimit.Limit{ginlimit.PerHour(0)}, 1, 2, 0, ginlimit.ErrInvalidArgument},
		"unlimited":          {[]ginlimit.Limit{ginlimit.PerHour(-1)}, 1, 1 << 30, 0, nil},
		"at the deadline":    {[]ginlimit.Limit{ginlimit.PerMinute(60)}, 60, 10, 10 * time.Second, nil},
		"after the deadline": {[]ginlimit.Limit{ginlimit.PerMinute(60)}, 60, 11, 0, context.DeadlineExceeded},
		"never before the end": {[]ginlimit.Limit{ginlimit.PerMinute(60).WithAlgorithm(ginlimit.FixedWindow)},
			60, 1, 0, context.DeadlineExceeded},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			p := testkit.NewPolicy(t, testkit.NewLocal(t), "test", ginlimit.WithLimits(row.limits...))
			testkit.Must(p.AllowN(t.Context(), "k", row.first))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Nanosecond)
			defer cancel()
			start := time.Now()
			err := p.WaitN(ctx, "k", row.n)
			require.Equal(t, row.waits, time.Since(start))
			if row.err != nil {
				require.ErrorIs(t, err, row.err)
				return
			}
			require.NoError(t, err)
		})
	}
}

// queued are the options of policies with one slot and a queue of two.
func queued(opts ...ginlimit.PolicyOption) []ginlimit.PolicyOption {
	return append([]ginlimit.PolicyOption{testkit.ByUser(),
		ginlimit.InFlight(1), ginlimit.WithQueue(2, time.Hour)}, opts...)
}

// acquired is what Reserve returned, and how long it took.
type acquired struct {
	slot *ginlimit.Reservation
	took time.Duration
}

// acquiring takes a slot of alice in another goroutine, which has begun to wait when acquiring returns.
func acquiring(t *testing.T, p *ginlimit.Policy) <-chan acquired {
	t.Helper()
	done := make(chan acquired, 1)
	go func() {
		start := time.Now()
		slot, err := p.Reserve(context.Background(), "alice", 1)
		if err == nil {
			done <- acquired{slot, time.Since(start)}
		}
		close(done)
	}()
	synctest.Wait()
	return done
}

// atOnce requires that a denial came at once.
func atOnce(t *testing.T, done <-chan acquired) ginlimit.Result {
	t.Helper()
	got := <-done
	require.NotNil(t, got.slot)
	require.False(t, got.slot.Result().Allowed)
	require.Zero(t, got.took)
	return got.slot.Result()
}

// TestQueueThroughAnOutage: a caller that waits for a slot of another process gets one of this
// process' share when Redis is lost.
func TestQueueThroughAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b)
		other := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Connect(t)), "api", queued(ginlimit.PerHour(10))...)
		held := testkit.Reserve(t, other)
		require.True(t, held.Result().Allowed)
		waits := acquiring(t, testkit.NewPolicy(t, l, "api", queued(ginlimit.PerHour(10))...))
		time.Sleep(5 * time.Second)
		require.Empty(t, waits)
		b.Late.Store(true)
		got := <-waits
		require.True(t, got.slot.Result().Allowed)
		require.Equal(t, ginlimit.FromLocal, got.slot.Result().Source)
		require.Less(t, got.took, 6*time.Second)
		b.Late.Store(false)
		got.slot.Release()
		held.Release()
	})
}

// TestQueueOfAClientWhosePlanChanges: a caller goes by the limits of when it came. A client that is
// prohibited meanwhile, or asks for more than its plan ever holds, is denied at once, though others
// wait.
func TestQueueOfAClientWhosePlanChanges(t *testing.T) {
	t.Parallel()
	for name, prohibited := range map[string]ginlimit.Limit{"prohibited": ginlimit.PerHour(0),
		"by the floor": ginlimit.PerHour(1)} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			l, limit := testkit.NewLocal(t), ginlimit.PerHour(4)
			p := testkit.NewPolicy(t, l, "api",
				queued(ginlimit.WithFloor(1), ginlimit.WithCost(func(c *gin.Context) int {
					return len(c.Query("n"))
				}), ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
					return []ginlimit.Limit{limit}, nil
				}))...)
			router := testkit.Serve(p.Handler())
			request := func(path string) (*httptest.ResponseRecorder, time.Duration) {
				start := time.Now()
				rec := testkit.Get(router, path, testkit.User("alice"))
				return rec, time.Since(start)
			}
			holds := testkit.Reserve(t, p)
			require.True(t, holds.Result().Allowed)
			waits := acquiring(t, p)
			time.AfterFunc(time.Minute, holds.Release)

			rec, took := request("/?n=nnnn") // more than there ever are
			require.Equal(t, http.StatusTooManyRequests, rec.Code)
			require.Zero(t, took)
			require.Empty(t, rec.Header().Get("Retry-After"))
			limit = prohibited
			rec, took = request("/?n=n")
			require.Equal(t, http.StatusTooManyRequests, rec.Code)
			require.Zero(t, took)
			require.Empty(t, rec.Header().Get("Retry-After"))
			require.Negative(t, atOnce(t, acquiring(t, p)).RetryAfter)

			got := <-waits
			require.True(t, got.slot.Result().Allowed)
			require.Equal(t, 1, got.slot.Result().Remaining)
			require.Equal(t, time.Minute, got.took)
			got.slot.Release()
		})
	}
}
