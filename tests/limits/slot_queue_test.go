package limits_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestSlotQueue has callers wait for a slot, in order of arrival, so many and so long.
func TestSlotQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
		p, err := l.Policy("100/h", ginlimit.PerHour(100), ginlimit.InFlight(1),
			ginlimit.WithQueue(3, time.Second), ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		holds := testkit.Reserve(t, p)
		require.True(t, holds.Result().Allowed)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				slot := testkit.Reserve(t, p)
				require.True(t, slot.Result().Allowed)
				order <- i
				time.Sleep(100 * time.Millisecond)
				slot.Release()
			}()
			synctest.Wait()
		}
		start := time.Now()
		require.False(t, testkit.Reserve(t, p).Result().Allowed, "the queue is full")
		require.Zero(t, time.Since(start))
		holds.Release()
		for i := range 3 {
			require.Equal(t, i, <-order)
		}
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		time.Sleep(100 * time.Millisecond)

		holds = testkit.Reserve(t, p)
		start = time.Now()
		require.False(t, testkit.Reserve(t, p).Result().Allowed)
		require.Equal(t, time.Second, time.Since(start), "as long as it may wait")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = p.Reserve(ctx, "alice", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		holds.Release()
		require.True(t, testkit.Reserve(t, p).Result().Allowed, "who waits for a slot is not banned")
	})
}

// TestEachProcessHasAQueueOfItsOwn: two processes serve one request at once, and then the two that
// wait in each.
func TestEachProcessHasAQueueOfItsOwn(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var served, denied atomic.Int64
		var all sync.WaitGroup
		for range 2 {
			p, err := testkit.NewLimiter(t, b.Connect(t)).Policy("api",
				ginlimit.InFlight(1), ginlimit.WithQueue(2, time.Hour))
			require.NoError(t, err)
			for range 4 {
				all.Go(func() {
					slot := testkit.Reserve(t, p)
					if !slot.Result().Allowed {
						denied.Add(1)
						return
					}
					time.Sleep(100 * time.Millisecond)
					served.Add(1)
					slot.Release()
				})
				time.Sleep(time.Millisecond)
			}
		}
		all.Wait()
		require.EqualValues(t, 5, served.Load())
		require.EqualValues(t, 3, denied.Load())
	})
}

// TestWhoWaitsForNoSlot has requests not be kept waiting: one that is free, one of a dry run, and one that is banned.
func TestWhoWaitsForNoSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
		alice := ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil })
		hasty, err := l.Policy("api", ginlimit.PerHour(3), alice, ginlimit.InFlight(1),
			ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		p := testkit.Derive(t, hasty, ginlimit.WithQueue(1, time.Hour))
		router := gin.New()
		router.GET("/free", testkit.Derive(t, p, ginlimit.WithCost(func(*gin.Context) int { return 0 })).Handler())
		router.GET("/dry", testkit.Derive(t, p, ginlimit.WithDryRun()).Handler())
		router.GET("/", p.Handler())
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w
		}
		holds := testkit.Reserve(t, p)
		go func() {
			slot, err := p.Reserve(context.Background(), "alice", 1)
			assert.NoError(t, err)
			slot.Release()
		}()
		synctest.Wait()
		start := time.Now()
		require.Equal(t, http.StatusOK, get("/free").Code)
		require.Equal(t, http.StatusOK, get("/dry").Code)
		require.Equal(t, "1", get("/").Header().Get("Retry-After"), "the queue is full")
		require.Zero(t, time.Since(start))
		require.False(t, testkit.Reserve(t, hasty).Result().Allowed)
		require.Equal(t, "3600", get("/").Header().Get("Retry-After"), "it is banned")
		require.Zero(t, time.Since(start))
		holds.Release()
		synctest.Wait()
	})
}

// TestHeaderFuncBehindAFullQueue claims no token of a limit that nobody has looked at.
func TestHeaderFuncBehindAFullQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rows []ginlimit.Result
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "api", ginlimit.PerHour(3), ginlimit.Unlimited(), testkit.ByUser(),
			ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Hour),
			ginlimit.WithHeaderFunc(func(_ http.Header, all []ginlimit.Result) { rows = all }))
		holds := testkit.Reserve(t, p)
		waits := make(chan *ginlimit.Reservation)
		go func() { waits <- testkit.Reserve(t, p) }()
		synctest.Wait()
		require.Equal(t, http.StatusTooManyRequests, testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("alice")).Code)
		require.Equal(t, []ginlimit.Result{
			{Allowed: true, Limit: ginlimit.PerHour(3), Name: "api", Source: ginlimit.FromPolicy},
			{Allowed: true, Limit: ginlimit.Unlimited(), Name: "api", Remaining: math.MaxInt, Source: ginlimit.FromPolicy},
			{Limit: ginlimit.InFlight(1), Name: "api-c", RetryAfter: time.Second, ResetAfter: time.Second,
				Source: ginlimit.FromPolicy, Cause: ginlimit.CauseQueueFull},
		}, rows)
		holds.Release()
		(<-waits).Release()
	})
}

// TestWhoWaitsAsksRedisSomeHundredTimesASecond, however many clients wait for slots of other
// processes: a slot that another process releases is found within 20 ms, or 2 ms for each client
// that waits. One that this process releases is taken at once.
func TestWhoWaitsAsksRedisSomeHundredTimesASecond(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		clients int
		within  time.Duration
	}{{1, 20 * time.Millisecond}, {100, 200 * time.Millisecond}} {
		t.Run(fmt.Sprint(row.clients, " clients"), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				opts := []ginlimit.PolicyOption{ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Hour)}
				l, rdb := testkit.NewLimiter(t, b.Redis), b.Connect(t)
				p, err := l.Policy("api", opts...)
				require.NoError(t, err)
				other, err := testkit.NewLimiter(t, rdb).Policy("api", opts...)
				require.NoError(t, err)
				ctx, leave := context.WithCancel(t.Context())
				var held []*ginlimit.Reservation
				var all sync.WaitGroup
				var taken atomic.Int64
				wait := func(client string, holder *ginlimit.Policy) {
					slot, err := holder.Reserve(t.Context(), client, 1)
					require.NoError(t, err)
					require.True(t, slot.Result().Allowed)
					held = append(held, slot)
					all.Go(func() {
						if slot, err := p.Reserve(ctx, client, 1); err == nil {
							taken.Add(1)
							slot.Release()
						}
					})
					time.Sleep(2 * time.Millisecond) // as the connections of a bubble carry no large pipeline
				}
				for i := range row.clients - 1 {
					wait(fmt.Sprint("client ", i), other)
				}
				wait("alice", other)
				time.Sleep(row.within)
				before, start := l.Stats().Decisions, time.Now()
				time.Sleep(400 * time.Millisecond)
				decisions := float64(l.Stats().Decisions - before)
				require.InDelta(t, float64(row.clients)/row.within.Seconds(), decisions/time.Since(start).Seconds(), 30)

				held[len(held)-1].Release()
				time.Sleep(row.within)
				require.EqualValues(t, 1, taken.Load())
				wait("bob", p)
				held[len(held)-1].Release()
				synctest.Wait()
				require.EqualValues(t, 2, taken.Load())
				leave()
				all.Wait()
				for _, slot := range held {
					slot.Release()
				}
			})
		})
	}
}
