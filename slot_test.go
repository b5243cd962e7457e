package ginlimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// acquire takes a slot of the client "alice".
func acquire(t testing.TB, p *ginlimit.Policy) *ginlimit.Slot {
	t.Helper()
	slot, err := p.Acquire(t.Context(), "alice")
	require.NoError(t, err)
	return slot
}

func TestSlotsAndTokensAreTakenTogether(t *testing.T) {
	t.Parallel()
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		p, err := e.limiter.Policy(ginlimit.PerHour(4), ginlimit.WithName("api"), ginlimit.WithConcurrency(2))
		require.NoError(t, err)
		one, two := acquire(t, p), acquire(t, p)
		require.True(t, one.Result().Allowed)
		require.True(t, two.Result().Allowed)
		require.Equal(t, 2, two.Result().Remaining, "tokens")
		require.Equal(t, "api", two.Result().Name)

		none := acquire(t, p)
		require.Equal(t, ginlimit.Result{
			Limit: ginlimit.Limit{Rate: 2}, Name: "api-c", RetryAfter: time.Second, ResetAfter: time.Second, Source: none.Result().Source,
		}, none.Result())
		none.Release() // holds nothing

		two.Release()
		two.Release()
		three := acquire(t, p)
		require.True(t, three.Result().Allowed)
		require.Equal(t, 1, three.Result().Remaining, "the refusal took no token")
		require.False(t, acquire(t, p).Result().Allowed, "a slot is released once")

		three.Release()
		require.True(t, acquire(t, p).Result().Allowed)
		one.Release()
		res := acquire(t, p).Result()
		require.False(t, res.Allowed)
		require.Equal(t, "api", res.Name, "no token is left")
		peek, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.Equal(t, "api", peek.Name)

		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.True(t, acquire(t, p).Result().Allowed, "a refusal for tokens takes no slot")
		require.Equal(t, "api-c", acquire(t, p).Result().Name, "a reset leaves slots alone")
		peek, err = p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.Equal(t, "api-c", peek.Name)
		res, err = p.AllowN(t.Context(), "alice", 3)
		require.NoError(t, err)
		require.True(t, res.Allowed, "only Acquire wants a slot")
	})
}

func TestSlotsAlone(t *testing.T) {
	t.Parallel()
	onEveryEngine(t, func(t *testing.T, e engine) {
		p, err := e.limiter.Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithName("api"), ginlimit.WithConcurrency(1))
		require.NoError(t, err)
		slot := acquire(t, p)
		require.True(t, slot.Result().Allowed)
		require.Equal(t, "api-c", slot.Result().Name)
		require.Equal(t, 0, slot.Result().Remaining)
		require.False(t, acquire(t, p).Result().Allowed)
		res, err := p.Allow(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		slot.Release()
		require.True(t, acquire(t, p).Result().Allowed)
	})
}

// TestSlotsAreSharedByProcesses uses limiters in place of processes: each has a name and counts of its own.
func TestSlotsAreSharedByProcesses(t *testing.T) {
	t.Parallel()
	harness.InBubble(t, func(t *testing.T, b *harness.Bubble) {
		var all []*ginlimit.Policy
		for range 3 {
			p, err := harness.NewLimiter(t, b.Redis).Policy(ginlimit.PerHour(1000), ginlimit.WithName("api"), ginlimit.WithConcurrency(4))
			require.NoError(t, err)
			all = append(all, p)
		}
		slots := []*ginlimit.Slot{acquire(t, all[0]), acquire(t, all[0]), acquire(t, all[1]), acquire(t, all[2])}
		for _, slot := range slots {
			require.True(t, slot.Result().Allowed)
		}
		for _, p := range all {
			require.False(t, acquire(t, p).Result().Allowed)
		}
		slots[1].Release()
		synctest.Wait() // until Redis is told of the release
		require.True(t, acquire(t, all[2]).Result().Allowed)
		require.False(t, acquire(t, all[0]).Result().Allowed)
	})
}

// TestSlotsOfADeadProcess are free 10 s after it last told of them, though others keep the key. That it dies is that Redis' clock runs on,
// and its own does not.
func TestSlotsOfADeadProcess(t *testing.T) {
	t.Parallel()
	harness.InBubble(t, func(t *testing.T, b *harness.Bubble) {
		now := time.Now()
		b.Mini.SetTime(now)
		advance := func(d time.Duration) {
			now = now.Add(d)
			b.Mini.SetTime(now)
		}
		policy := func() *ginlimit.Policy {
			p, err := harness.NewLimiter(t, b.Redis).Policy(ginlimit.PerHour(1000), ginlimit.WithName("api"), ginlimit.WithConcurrency(2))
			require.NoError(t, err)
			return p
		}
		dead, one, two := policy(), policy(), policy()
		require.True(t, acquire(t, dead).Result().Allowed)
		advance(6 * time.Second)
		slot := acquire(t, one)
		require.True(t, slot.Result().Allowed)
		advance(4*time.Second - time.Millisecond)
		require.False(t, acquire(t, two).Result().Allowed)
		advance(time.Millisecond)
		last := acquire(t, two)
		require.True(t, last.Result().Allowed)
		require.False(t, acquire(t, two).Result().Allowed, "one lives")
		last.Release()
		slot.Release()
		synctest.Wait()
		require.False(t, b.Mini.Exists("ginlimit:{api|alice}:slots"))
	})
}

func TestRequestsHoldSlots(t *testing.T) {
	t.Parallel()
	gin.SetMode(gin.TestMode)
	for name, end := range map[string]func(*gin.Context){
		"returns": func(*gin.Context) {},
		"panics":  func(*gin.Context) { panic("on purpose") },
		"aborts":  func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := ginlimit.NewLocal()
				require.NoError(t, err)
				began, finish := make(chan struct{}), make(chan struct{})
				router := gin.New()
				router.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
				router.Use(l.Handler(ginlimit.PerHour(100), ginlimit.WithName("api"), ginlimit.WithConcurrency(2),
					ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit), ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil })))
				router.GET("/", func(c *gin.Context) {
					began <- struct{}{}
					<-finish
					end(c)
				})
				serve := func() *httptest.ResponseRecorder {
					w := httptest.NewRecorder()
					router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					return w
				}
				for range 2 {
					go serve()
					<-began
				}
				w := serve()
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				require.Equal(t, `"api";q=100;w=3600, "api-c";q=2;qu="concurrent-requests"`, w.Header().Get("RateLimit-Policy"))
				require.Equal(t, `"api";r=98, "api-c";r=0;t=1`, w.Header().Get("RateLimit"))
				require.Equal(t, "2", w.Header().Get("X-RateLimit-Limit"))
				require.Equal(t, "0", w.Header().Get("X-RateLimit-Remaining"))
				require.Contains(t, w.Body.String(), `"violated-policies":["api-c"]`)
				close(finish)
				synctest.Wait()
				go func() { <-began }()
				w = serve()
				require.NotEqual(t, http.StatusTooManyRequests, w.Code)
				require.Equal(t, "100", w.Header().Get("X-RateLimit-Limit"), "a slot is the closest limit if there is none left")
				require.Equal(t, `"api";r=97;t=36, "api-c";r=1`, w.Header().Get("RateLimit"))
			})
		})
	}
}

// TestSlotQueue has callers wait for a slot, in order of arrival, so many and so long.
func TestSlotQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
		p, err := l.Policy(ginlimit.PerHour(100), ginlimit.WithConcurrency(1), ginlimit.WithQueue(3, time.Second), ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		holds := acquire(t, p)
		require.True(t, holds.Result().Allowed)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				slot := acquire(t, p)
				require.True(t, slot.Result().Allowed)
				order <- i
				time.Sleep(100 * time.Millisecond)
				slot.Release()
			}()
			synctest.Wait()
		}
		start := time.Now()
		require.False(t, acquire(t, p).Result().Allowed, "the queue is full")
		require.Zero(t, time.Since(start))
		holds.Release()
		for i := range 3 {
			require.Equal(t, i, <-order)
		}
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		time.Sleep(100 * time.Millisecond)

		holds = acquire(t, p)
		start = time.Now()
		require.False(t, acquire(t, p).Result().Allowed)
		require.Equal(t, time.Second, time.Since(start), "as long as it may wait")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = p.Acquire(ctx, "alice")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		holds.Release()
		require.True(t, acquire(t, p).Result().Allowed, "who waits for a slot is not banned")
	})
}

// lateHook keeps the first decision from Redis, as if it were late.
type lateHook struct{ args []any }

func (*lateHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*lateHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *lateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || h.args != nil {
			return next(ctx, cmd)
		}
		for _, arg := range cmd.Args() {
			h.args = append(h.args, fmt.Sprint(arg))
		}
		cmd.SetErr(context.DeadlineExceeded)
		return context.DeadlineExceeded
	}
}

// TestLateAttemptTakesNothing has an attempt reach Redis when nobody waits for it any more.
func TestLateAttemptTakesNothing(t *testing.T) {
	t.Parallel()
	harness.InBubble(t, func(t *testing.T, b *harness.Bubble) {
		hook := &lateHook{}
		late := b.Connect(t)
		late.AddHook(hook)
		limiter := harness.NewLimiter(t, late)
		p, err := limiter.Policy(ginlimit.PerHour(10), ginlimit.WithName("api"), ginlimit.WithConcurrency(1), ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		_, err = p.Acquire(t.Context(), "alice")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		const key = "ginlimit:{api|alice}:slots"
		synctest.Wait() // until Redis is told that nobody waits
		require.NoError(t, b.Redis.Do(t.Context(), hook.args...).Err())
		require.Regexp(t, "^P[A-Z2-7]{13} 1 0 $", b.Redis.Get(t.Context(), key).Val())
		slot := acquire(t, p)
		require.True(t, slot.Result().Allowed)
		require.Equal(t, 9, slot.Result().Remaining, "nor a token, nor is the client banned")
		require.NoError(t, b.Redis.Do(t.Context(), hook.args...).Err())
		slot.Release()
		require.True(t, acquire(t, p).Result().Allowed)
	})
}

// TestSlotsOutliveNoPanic has what an application gives panic, between the decision and the handlers that follow.
func TestSlotsOutliveNoPanic(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]ginlimit.Option{
		"observer":    {ginlimit.WithObserver(func(context.Context, ginlimit.Event) { panic("on purpose") })},
		"header func": {ginlimit.WithHeaderFunc(func(http.Header, ginlimit.Result) { panic("on purpose") })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := ginlimit.NewLocal(opts...)
			require.NoError(t, err)
			p, err := l.Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithConcurrency(1), ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil }))
			require.NoError(t, err)
			router := gin.New()
			router.GET("/", p.Handler())
			require.Panics(t, func() { router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) })
			require.Zero(t, l.Stats().Slots)
			if name == "observer" {
				require.Panics(t, func() { _, _ = p.Acquire(t.Context(), "alice") })
				require.Zero(t, l.Stats().Slots)
			}
		})
	}
}

// TestWhoWaitsForNoSlot has requests not be kept waiting: one that is free, one of a dry run, and one that is banned.
func TestWhoWaitsForNoSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
		alice := ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil })
		opts := []ginlimit.Option{ginlimit.WithName("api"), alice, ginlimit.WithConcurrency(1), ginlimit.WithQueue(1, time.Hour), ginlimit.WithBan(time.Hour, time.Hour)}
		p, err := l.Policy(ginlimit.PerHour(3), opts...)
		require.NoError(t, err)
		router := gin.New()
		router.GET("/free", l.Handler(ginlimit.PerHour(3), append(opts, ginlimit.WithCost(func(*gin.Context) int { return 0 }))...))
		router.GET("/dry", l.Handler(ginlimit.PerHour(3), append(opts, ginlimit.WithDryRun())...))
		router.GET("/", p.Handler())
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w
		}
		holds := acquire(t, p)
		go func() {
			slot, err := p.Acquire(context.Background(), "alice")
			assert.NoError(t, err)
			slot.Release()
		}()
		synctest.Wait()
		start := time.Now()
		require.Equal(t, http.StatusOK, get("/free").Code)
		require.Equal(t, http.StatusOK, get("/dry").Code)
		require.Equal(t, "1", get("/").Header().Get("Retry-After"), "the queue is full")
		require.Zero(t, time.Since(start))
		for range 4 {
			_, err = p.Allow(t.Context(), "alice")
			require.NoError(t, err)
		}
		require.Equal(t, "3600", get("/").Header().Get("Retry-After"), "it is banned")
		require.Zero(t, time.Since(start))
		holds.Release()
		synctest.Wait()
	})
}

// TestPeekKnowsOfAReleaseAtOnce in the process that makes it.
func TestPeekKnowsOfAReleaseAtOnce(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	p, err := harness.NewLimiter(t, rdb, harness.Patient()).Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithName("api"), ginlimit.WithConcurrency(1))
	require.NoError(t, err)
	for range 50 {
		slot := acquire(t, p)
		require.True(t, slot.Result().Allowed)
		slot.Release()
		res, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		require.Equal(t, 1, res.Remaining)
	}
}
