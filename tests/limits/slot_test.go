package limits_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSlotsAndTokensAreTakenTogether(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		p := testkit.Must(e.Limiter.Policy("api", ginlimit.PerHour(4).WithAlgorithm(e.Algorithm), ginlimit.InFlight(2)))
		one, two := testkit.Reserve(t, p), testkit.Reserve(t, p)
		require.True(t, one.Result().Allowed)
		require.True(t, two.Result().Allowed)
		require.Equal(t, 2, two.Result().Remaining, "tokens")
		require.Equal(t, "api", two.Result().Name)

		none := testkit.Reserve(t, p)
		require.Equal(t, ginlimit.Result{
			Limit: ginlimit.Limit{InFlight: 2}, Name: "api-c", RetryAfter: time.Second,
			ResetAfter: time.Second, Source: none.Result().Source, Cause: ginlimit.CauseInFlight,
		}, none.Result())
		none.Release() // holds nothing

		two.Release()
		two.Release()
		three := testkit.Reserve(t, p)
		require.True(t, three.Result().Allowed)
		require.Equal(t, 1, three.Result().Remaining, "the denial took no token")
		require.False(t, testkit.Reserve(t, p).Result().Allowed, "a slot is released once")

		three.Release()
		require.True(t, testkit.Reserve(t, p).Result().Allowed)
		one.Release()
		res := testkit.Reserve(t, p).Result()
		require.False(t, res.Allowed)
		require.Equal(t, "api", res.Name, "no token is left")
		peek := testkit.Must(p.Peek(t.Context(), "alice"))
		require.Equal(t, "api", peek.Name)

		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.True(t, testkit.Reserve(t, p).Result().Allowed, "a denial for tokens takes no slot")
		require.Equal(t, "api-c", testkit.Reserve(t, p).Result().Name, "a reset leaves slots alone")
		peek = testkit.Must(p.Peek(t.Context(), "alice"))
		require.Equal(t, "api-c", peek.Name)
		for name, take := range map[string]func() error{
			"Allow":     func() error { _, err := p.Allow(t.Context(), "alice"); return err },
			"AllowN":    func() error { _, err := p.AllowN(t.Context(), "alice", 3); return err },
			"AllowUpTo": func() error { _, err := p.AllowUpTo(t.Context(), "alice", 3); return err },
			"Wait":      func() error { return p.Wait(t.Context(), "alice") },
			"WaitN":     func() error { return p.WaitN(t.Context(), "alice", 3) },
		} {
			require.ErrorIs(t, take(), ginlimit.ErrInvalidArgument, "%s releases no slot", name)
			require.ErrorContains(t, take(), "Reserve", name)
		}
	})
}

func TestRequestsHoldSlots(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*gin.Context){
		"returns": func(*gin.Context) {},
		"panics":  func(*gin.Context) { panic("on purpose") },
		"aborts":  func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testkit.Must(ginlimit.NewLocal())
				began, finish := make(chan struct{}), make(chan struct{})
				router := testkit.Serve(
					gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }),
					l.Handler("api", testkit.All(), ginlimit.PerHour(100), ginlimit.InFlight(2),
						ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit)),
					func(c *gin.Context) {
						began <- struct{}{}
						<-finish
						end(c)
					})
				serve := func() *httptest.ResponseRecorder { return testkit.Get(router, "/") }
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

// Slots beside each other feature: see docs/reference.md.

// admits acquires a slot of the client "alice".
func admits(t *testing.T, p *ginlimit.Policy) *ginlimit.Reservation {
	t.Helper()
	slot := testkit.Reserve(t, p)
	require.True(t, slot.Result().Allowed, "%+v", slot.Result())
	return slot
}

// denies wants the client "alice" to be denied a slot, by a limit or the slots, and returns for how long.
func denies(t *testing.T, p *ginlimit.Policy, name string) time.Duration {
	t.Helper()
	res := testkit.Reserve(t, p).Result()
	require.False(t, res.Allowed, "%+v", res)
	require.Equal(t, name, res.Name)
	return res.RetryAfter
}

// TestADenialForWantOfASlotIsNotRemembered, as a slot may be free at any time. One for want of
// tokens is, and takes no slot.
func TestADenialForWantOfASlotIsNotRemembered(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ginlimit.Limit{"with tokens": ginlimit.PerHour(3),
		"slots alone": ginlimit.Unlimited()} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			policy := func() (*testkit.Limiter, *ginlimit.Policy) {
				l := testkit.NewLimiter(t, b.Connect(t), testkit.RemembersDenials())
				return l, testkit.NewPolicy(t, l, "api", limit, ginlimit.InFlight(1))
			}
			l, p := policy()
			_, other := policy()
			slot := admits(t, other)
			for range 3 {
				res := testkit.Reserve(t, p).Result()
				require.Equal(t, "api-c", res.Name)
				require.Equal(t, ginlimit.FromRedis, res.Source)
			}
			slot.Release()
			synctest.Wait() // until Redis knows
			slot = admits(t, p)
			denies(t, p, "api-c")
			slot.Release()
			slot = admits(t, p)
			slot.Release()
			if limit.Rate < 0 {
				return
			}
			for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache, ginlimit.FromCache} {
				res := testkit.Reserve(t, p).Result()
				require.False(t, res.Allowed)
				require.Equal(t, "api", res.Name)
				require.Equal(t, source, res.Source)
			}
			require.Zero(t, l.Stats().Slots)
			require.NoError(t, p.Refund(t.Context(), "alice", 1))
			admits(t, p).Release()
		})
	}
}

// TestSlotsOfAClientWhosePlanChanges: slots are the policy's, whatever plan the client has. A plan
// without a limit still needs one, and a plan of none takes none.
func TestSlotsOfAClientWhosePlanChanges(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		plan := []ginlimit.Limit{ginlimit.PerHour(2)}
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.InFlight(2),
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return plan, nil }))
		one, two := admits(t, p), admits(t, p)
		for _, other := range [][]ginlimit.Limit{
			{ginlimit.PerDay(100)}, {ginlimit.PerHour(-1)},
			{ginlimit.PerMinute(50), ginlimit.PerCalendar(9, ginlimit.CalendarDay(nil))},
		} {
			plan = other
			denies(t, p, "api-c")
			two.Release()
			two = admits(t, p)
			denies(t, p, "api-c")
		}
		plan = []ginlimit.Limit{ginlimit.PerHour(0)}
		require.Equal(t, ginlimit.Never, denies(t, p, "api"))
		two.Release()
		require.Equal(t, ginlimit.Never, denies(t, p, "api"))
		require.Equal(t, 1, b.Limiter.Stats().Slots)
		plan = []ginlimit.Limit{ginlimit.PerHour(2)}
		denies(t, p, "api")
		one.Release()
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}

// TestADenialForWantOfASlotBans, unless there is a queue for slots. A client that is banned takes no slot.
func TestADenialForWantOfASlotBans(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerMinute(100), ginlimit.InFlight(1),
			ginlimit.WithBan(time.Minute, time.Minute))
		queued := testkit.Derive(t, p, ginlimit.WithQueue(1, time.Second))
		slot := admits(t, queued)
		require.Equal(t, time.Second, denies(t, queued, "api-c"), "after it has waited")
		slot.Release()
		slot = admits(t, p)
		require.InDelta(t, time.Minute, testkit.Reserve(t, p).Result().RetryAfter, float64(time.Second))
		slot.Release()
		for range 2 {
			res := testkit.Reserve(t, p).Result()
			require.False(t, res.Allowed)
			require.InDelta(t, time.Minute, res.RetryAfter, float64(time.Second))
		}
		require.Zero(t, b.Limiter.Stats().Slots)
		time.Sleep(time.Minute)
		admits(t, p).Release()

		for range 99 { // what the limit denies bans too, and takes no slot
			admits(t, p).Release()
		}
		require.Greater(t, denies(t, p, "api"), 50*time.Second)
		require.Zero(t, b.Limiter.Stats().Slots)
		testkit.RequireMade(t, p.Reset(t.Context(), "alice"))
		admits(t, p).Release()
	})
}

// TestLateAttemptTakesNothing has an attempt reach Redis when nobody waits for it any more.
func TestLateAttemptTakesNothing(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var args []any
		late := b.Connect(t)
		late.AddHook(testkit.FirstIsLate(&args))
		limiter := testkit.NewLimiter(t, late)
		p := testkit.Must(limiter.Policy("api", ginlimit.PerHour(10),
			ginlimit.InFlight(1), ginlimit.WithBan(time.Hour, time.Hour)))
		require.ErrorIs(t, testkit.Err(p.Reserve(t.Context(), "alice", 1)), ginlimit.ErrUnavailable)
		const key = "ginlimit:{api|alice}:slots"
		synctest.Wait() // until Redis is told that nobody waits
		require.NoError(t, b.Redis.Do(t.Context(), args...).Err())
		require.Equal(t, "10000 10000 0 1", b.Redis.HGet(t.Context(), key, "all").Val())
		slot := testkit.Reserve(t, p)
		require.True(t, slot.Result().Allowed)
		require.Equal(t, 9, slot.Result().Remaining, "nor a token, nor is the client banned")
		require.NoError(t, b.Redis.Do(t.Context(), args...).Err())
		slot.Release()
		require.True(t, testkit.Reserve(t, p).Result().Allowed)
	})
}

// TestSlotsOutliveNoPanic has what an application gives panic, between the decision and the handlers that follow.
func TestSlotsOutliveNoPanic(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]ginlimit.LimiterOption{
		"observer":    {ginlimit.WithObserver(func(context.Context, ginlimit.Event) { panic("on purpose") })},
		"header func": {ginlimit.WithHeaderFunc(func(http.Header, []ginlimit.Result) { panic("on purpose") })},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			l := testkit.Must(ginlimit.NewLocal(opts...))
			p := testkit.Must(l.Policy("api", ginlimit.InFlight(1), testkit.All()))
			router := testkit.Serve(p.Handler())
			require.Panics(t, func() { testkit.Get(router, "/") })
			require.Zero(t, l.Stats().Slots)
			if name == "observer" {
				require.Panics(t, func() { _, _ = p.Reserve(t.Context(), "alice", 1) })
				require.Zero(t, l.Stats().Slots)
			}
		})
	}
}

// TestAProcessThatIsCutOffKeepsItsSlots for as long as InFlight says, whenever the cut
// begins. If it is cut off for good, its slots are free within 10 s.
func TestAProcessThatIsCutOffKeepsItsSlots(t *testing.T) {
	t.Parallel()
	const promised, between = 7 * time.Second, 50 * time.Millisecond
	// decisions notice the cut, and have Redis searched for
	apart := time.Second
	if testkit.Full() {
		apart /= 2
	}
	for _, what := range []string{"makes no decision", "makes decisions", "dies"} {
		for begins := 10 * time.Second; begins < 14*time.Second; begins += apart {
			testkit.RunInBubble(t, fmt.Sprintf("%s, after %s", what, begins), func(t *testing.T, b *testkit.Bubble) {
				var cut atomic.Bool
				rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379",
					Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
						if cut.Load() {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return b.Dial(ctx, network, addr)
					}})
				defer rdb.Close()
				rdb.AddHook(testkit.EveryCall(func(send func() error) error {
					if cut.Load() {
						time.Sleep(200 * time.Millisecond)
						return io.ErrUnexpectedEOF
					}
					return send()
				}))
				l := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
				one := testkit.Must(l.Policy("api", ginlimit.InFlight(1)))
				other := testkit.Must(testkit.NewLimiter(t, b.Redis).Policy("api", ginlimit.InFlight(1)))
				slot := testkit.Reserve(t, one)
				require.True(t, slot.Result().Allowed)
				time.Sleep(begins)

				cut.Store(true)
				defer cut.Store(false)
				start := time.Now()
				for time.Since(start) < promised || what == "dies" {
					if what == "makes decisions" {
						require.ErrorIs(t, testkit.Err(l.Allow(t.Context(), "k", ginlimit.PerSecond(100))), ginlimit.ErrUnavailable)
					}
					if testkit.Reserve(t, other).Result().Allowed {
						require.Equal(t, "dies", what, "%s after the cut began", time.Since(start))
						require.Greater(t, time.Since(start), promised)
						require.LessOrEqual(t, time.Since(start), 10*time.Second+between, "one try more")
						return
					}
					time.Sleep(between)
				}
				cut.Store(false)
				for time.Since(start) < 12*time.Second {
					require.False(t, testkit.Reserve(t, other).Result().Allowed, "%s after the cut began", time.Since(start))
					time.Sleep(between)
				}
				slot.Release()
			})
		}
	}
}
