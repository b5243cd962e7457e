package limits_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
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
	testkit.InSynctest(t, func(t *testing.T) {
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

// demand has callers of each process ask for slots again and again, and returns how long they waited in each.
func demand(t *testing.T, processes []*testkit.Limiter, slots int, work, lasts time.Duration) [][]time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	waits := make([][]time.Duration, len(processes))
	for i, l := range processes {
		p := testkit.NewPolicy(t, l, fmt.Sprint(slots, " slots"), ginlimit.InFlight(slots),
			ginlimit.WithQueue(100, time.Minute))
		for range 6 {
			all.Go(func() {
				for ctx.Err() == nil {
					start := time.Now()
					slot, err := p.Reserve(ctx, "alice", 1)
					if ctx.Err() != nil {
						slot.Release()
						return
					}
					assert.NoError(t, err)
					assert.True(t, slot.Result().Allowed)
					mu.Lock()
					waits[i] = append(waits[i], time.Since(start))
					mu.Unlock()
					time.Sleep(work)
					slot.Release()
				}
			})
		}
	}
	all.Wait()
	return waits
}

// requireFair requires that all processes were served about as often, and that the largest p95 of the waits is less
// than a multiple of the smallest.
func requireFair(t *testing.T, waits [][]time.Duration, times int) {
	t.Helper()
	var served []int
	var p95 []time.Duration
	for _, own := range waits {
		require.NotEmpty(t, own)
		slices.Sort(own)
		served, p95 = append(served, len(own)), append(p95, own[len(own)*95/100])
	}
	t.Logf("served %d, p95 of the waits %s", served, p95)
	require.Less(t, slices.Max(p95), time.Duration(times)*slices.Min(p95))
	require.Less(t, slices.Max(served), (times+1)*slices.Min(served))
}

// TestNoProcessStarvesAnother: four processes of equal demand wait equally for slots.
func TestNoProcessStarvesAnother(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("it takes a minute, and the p95 of fewer waits is random")
	}
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var processes []*testkit.Limiter
		for range 4 {
			processes = append(processes, testkit.NewLimiter(t, b.Connect(t)))
		}
		const lasts = 8 * time.Second // the p95 of fewer waits is random
		for slots, work := range map[int]time.Duration{1: 5 * time.Millisecond, 8: 47 * time.Millisecond} {
			waits := demand(t, processes, slots, work, lasts)
			requireFair(t, waits, 5) // whoever starves waits many times as long
			all := 0
			for _, own := range waits {
				all += len(own)
			}
			most := float64(slots) * float64(lasts/work)
			t.Logf("%d slots of %s: %.0f %% of the time in use", slots, work, 100*float64(all)/most)
		}
	})
}

// TestCallersOfOneBatchLeaveASlotToAProcessThatWaits: a process whose callers share a batch gets the slots that are
// free but for one, as another process has waited for longer. No caller is allowed without a slot.
func TestCallersOfOneBatchLeaveASlotToAProcessThatWaits(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const slots = 3
		policy := func() *ginlimit.Policy {
			rdb := b.Connect(t)
			rdb.AddHook(testkit.EveryCall(func(send func() error) error {
				time.Sleep(time.Millisecond) // meanwhile others come
				return send()
			}))
			return testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "api", ginlimit.InFlight(slots),
				ginlimit.WithQueue(100, time.Second))
		}
		holder, waiting, together := policy(), policy(), policy()
		var held []*ginlimit.Reservation
		for range slots {
			slot := testkit.Must(holder.Reserve(t.Context(), "alice", 1))
			held = append(held, slot)
		}
		var mu sync.Mutex
		var all sync.WaitGroup
		admitted := 0
		acquire := func(p *ginlimit.Policy) {
			all.Go(func() {
				slot, err := p.Reserve(t.Context(), "alice", 1)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				if testkit.Keep(t, slot).OK() { // and it is not released
					admitted++
				}
			})
		}
		acquire(waiting)
		time.Sleep(30 * time.Millisecond)
		for _, slot := range held {
			slot.Release()
		}
		time.Sleep(5 * time.Millisecond) // Redis knows
		for range 6 {
			acquire(together)
		}
		all.Wait()
		require.Equal(t, slots, admitted)
	})
}

// TestWhoWaitsForNoSlot has requests not be kept waiting: one that is free, one of a dry run, and one that is banned.
func TestWhoWaitsForNoSlot(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		l := testkit.Must(ginlimit.NewLocal())
		alice := ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil })
		hasty := testkit.Must(l.Policy("api", ginlimit.PerHour(3), alice, ginlimit.InFlight(1),
			ginlimit.WithBan(time.Hour, time.Hour)))
		p := testkit.Derive(t, hasty, ginlimit.WithQueue(1, time.Hour))
		router := gin.New()
		router.GET("/free", testkit.Derive(t, p, ginlimit.WithCost(func(*gin.Context) int { return 0 })).Handler())
		router.GET("/dry", testkit.Derive(t, p, ginlimit.WithDryRun()).Handler())
		router.GET("/", p.Handler())
		holds := testkit.Reserve(t, p)
		go func() { testkit.Reserve(t, p).Release() }()
		synctest.Wait()
		start := time.Now()
		require.Equal(t, http.StatusOK, testkit.Get(router, "/free").Code)
		require.Equal(t, http.StatusOK, testkit.Get(router, "/dry").Code)
		require.Equal(t, "1", testkit.Get(router, "/").Header().Get("Retry-After"), "the queue is full")
		require.Zero(t, time.Since(start))
		require.False(t, testkit.Reserve(t, hasty).Result().Allowed)
		require.Equal(t, "3600", testkit.Get(router, "/").Header().Get("Retry-After"), "it is banned")
		require.Zero(t, time.Since(start))
		holds.Release()
		synctest.Wait()
	})
}

// TestADryRunBansForNoSlot if the policy in force would not, as its requests wait for one.
func TestADryRunBansForNoSlot(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		opts []ginlimit.PolicyOption
		want [2]ginlimit.Cause // while there is no slot, and then
	}{
		"with a queue": {[]ginlimit.PolicyOption{ginlimit.WithQueue(1, time.Second)},
			[...]ginlimit.Cause{ginlimit.CauseInFlight, 0}},
		"without a queue": {nil, [...]ginlimit.Cause{ginlimit.CauseBan, ginlimit.CauseBan}},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				p := b.Limiter.Must("api", append(row.opts, testkit.All(), ginlimit.PerHour(100), ginlimit.InFlight(1),
					ginlimit.WithBan(time.Hour, time.Hour), ginlimit.WithDryRun())...)
				var got [2]ginlimit.Cause
				read := func(i int) gin.HandlerFunc {
					return func(c *gin.Context) {
						r, _ := ginlimit.FromContext(c)
						got[i] = r.Cause
					}
				}
				router := gin.New()
				router.GET("/", p.Handler(), func(*gin.Context) { testkit.Get(router, "/inner") })
				router.GET("/inner", p.Handler(), read(0))
				router.GET("/after", p.Handler(), read(1))
				testkit.Get(router, "/")
				testkit.Get(router, "/after")
				require.Equal(t, row.want, got)
			})
		})
	}
}

// TestABanReportsTheSlots that the request lacks, too.
func TestABanReportsTheSlots(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		var rows []ginlimit.Result
		p := b.Limiter.Must("api", testkit.All(), ginlimit.PerHour(1), ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Second),
			ginlimit.WithBan(time.Hour, time.Hour), ginlimit.WithHeaders(ginlimit.RateLimitDraft),
			ginlimit.WithHeaderFunc(func(_ http.Header, r []ginlimit.Result) { rows = r }))
		router := gin.New()
		router.GET("/", p.Handler(), func(c *gin.Context) {
			denied := testkit.Get(router, "/denied")
			require.Contains(t, denied.Header().Get("RateLimit"), `"api-c";r=0`)
			require.Contains(t, denied.Body.String(), `"violated-policies":["api","api-c"]`)
			require.Equal(t, ginlimit.CauseBan, rows[0].Cause)
			require.Zero(t, rows[1].Remaining)
		})
		router.GET("/denied", p.Handler())
		require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
	})
}

// TestFewRequestsWait in a process, whatever keys they invent: further ones are denied at once, until others leave.
func TestFewRequestsWait(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector knows 8,128 goroutines at most")
	}
	testkit.InSynctest(t, func(t *testing.T) {
		const most = 16384
		l := testkit.Must(ginlimit.NewLocal())
		p := testkit.Must(l.Policy("queue", ginlimit.PerMinute(1), ginlimit.WithQueue(1, time.Hour)))
		reserve := func(i int) ginlimit.Result {
			return testkit.Must(p.Reserve(t.Context(), fmt.Sprint("client ", i), 1)).Result()
		}
		for i := range most + 1 {
			require.True(t, reserve(i).Allowed)
		}
		start := time.Now()
		for i := range most {
			go func() { assert.True(t, reserve(i).Allowed) }()
		}
		synctest.Wait()
		r := reserve(most)
		require.Zero(t, time.Since(start))
		require.Equal(t, ginlimit.CauseQueueFull, r.Cause)
		require.Equal(t, time.Minute, r.RetryAfter)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, reserve(most).Allowed)
		require.True(t, reserve(most).Allowed, "it waits")
	})
}

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
