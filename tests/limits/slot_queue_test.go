package limits_test

import (
	"context"
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
		l := testkit.Must(ginlimit.NewLocal())
		p := testkit.Must(l.Policy("100/h", ginlimit.PerHour(100), ginlimit.InFlight(1),
			ginlimit.WithQueue(3, time.Second), ginlimit.WithBan(time.Hour, time.Hour)))
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
		require.ErrorIs(t, testkit.Err(p.Reserve(ctx, "alice", 1)), context.DeadlineExceeded)
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
			p := testkit.Must(testkit.NewLimiter(t, b.Connect(t)).Policy("api",
				ginlimit.InFlight(1), ginlimit.WithQueue(2, time.Hour)))
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
		l := testkit.Must(ginlimit.NewLocal())
		alice := ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil })
		hasty := testkit.Must(l.Policy("api", ginlimit.PerHour(3), alice, ginlimit.InFlight(1),
			ginlimit.WithBan(time.Hour, time.Hour)))
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
