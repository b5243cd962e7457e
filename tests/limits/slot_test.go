package limits_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSlotsAndTokensAreTakenTogether(t *testing.T) {
	t.Parallel()
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		p, err := e.Limiter.Policy(ginlimit.PerHour(4), ginlimit.WithName("api"), ginlimit.WithConcurrency(2))
		require.NoError(t, err)
		one, two := testkit.Acquire(t, p), testkit.Acquire(t, p)
		require.True(t, one.Result().Allowed)
		require.True(t, two.Result().Allowed)
		require.Equal(t, 2, two.Result().Remaining, "tokens")
		require.Equal(t, "api", two.Result().Name)

		none := testkit.Acquire(t, p)
		require.Equal(t, ginlimit.Result{
			Limit: ginlimit.Limit{InFlight: 2}, Name: "api-c", RetryAfter: time.Second,
			ResetAfter: time.Second, Source: none.Result().Source,
		}, none.Result())
		none.Release() // holds nothing

		two.Release()
		two.Release()
		three := testkit.Acquire(t, p)
		require.True(t, three.Result().Allowed)
		require.Equal(t, 1, three.Result().Remaining, "the refusal took no token")
		require.False(t, testkit.Acquire(t, p).Result().Allowed, "a slot is released once")

		three.Release()
		require.True(t, testkit.Acquire(t, p).Result().Allowed)
		one.Release()
		res := testkit.Acquire(t, p).Result()
		require.False(t, res.Allowed)
		require.Equal(t, "api", res.Name, "no token is left")
		peek, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.Equal(t, "api", peek.Name)

		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.True(t, testkit.Acquire(t, p).Result().Allowed, "a refusal for tokens takes no slot")
		require.Equal(t, "api-c", testkit.Acquire(t, p).Result().Name, "a reset leaves slots alone")
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
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		p, err := e.Limiter.Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithName("api"), ginlimit.WithConcurrency(1))
		require.NoError(t, err)
		slot := testkit.Acquire(t, p)
		require.True(t, slot.Result().Allowed)
		require.Equal(t, "api-c", slot.Result().Name)
		require.Equal(t, 0, slot.Result().Remaining)
		require.False(t, testkit.Acquire(t, p).Result().Allowed)
		res, err := p.Allow(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		slot.Release()
		require.True(t, testkit.Acquire(t, p).Result().Allowed)
	})
}

// TestSlotsAreSharedByProcesses uses limiters in place of processes: each has a name and counts of its own.
func TestSlotsAreSharedByProcesses(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var all []*ginlimit.Policy
		for range 3 {
			p, err := testkit.NewLimiter(t, b.Redis).Policy(ginlimit.PerHour(1000),
				ginlimit.WithName("api"), ginlimit.WithConcurrency(4))
			require.NoError(t, err)
			all = append(all, p)
		}
		slots := []*ginlimit.Slot{testkit.Acquire(t, all[0]), testkit.Acquire(t, all[0]),
			testkit.Acquire(t, all[1]), testkit.Acquire(t, all[2])}
		for _, slot := range slots {
			require.True(t, slot.Result().Allowed)
		}
		for _, p := range all {
			require.False(t, testkit.Acquire(t, p).Result().Allowed)
		}
		slots[1].Release()
		synctest.Wait() // until Redis is told of the release
		require.True(t, testkit.Acquire(t, all[2]).Result().Allowed)
		require.False(t, testkit.Acquire(t, all[0]).Result().Allowed)
	})
}

// TestSlotsOfADeadProcess are free 10 s after it last told of them, though others keep the key.
// That it dies is that Redis' clock runs on, and its own does not.
func TestSlotsOfADeadProcess(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		now := time.Now()
		b.Mini.SetTime(now)
		advance := func(d time.Duration) {
			now = now.Add(d)
			b.Mini.SetTime(now)
		}
		policy := func() *ginlimit.Policy {
			p, err := testkit.NewLimiter(t, b.Redis).Policy(ginlimit.PerHour(1000),
				ginlimit.WithName("api"), ginlimit.WithConcurrency(2))
			require.NoError(t, err)
			return p
		}
		dead, one, two := policy(), policy(), policy()
		require.True(t, testkit.Acquire(t, dead).Result().Allowed)
		advance(6 * time.Second)
		slot := testkit.Acquire(t, one)
		require.True(t, slot.Result().Allowed)
		advance(4*time.Second - time.Millisecond)
		require.False(t, testkit.Acquire(t, two).Result().Allowed)
		advance(time.Millisecond)
		last := testkit.Acquire(t, two)
		require.True(t, last.Result().Allowed)
		require.False(t, testkit.Acquire(t, two).Result().Allowed, "one lives")
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
					ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit), ginlimit.WithKey(
						func(*gin.Context) (string, error) { return "alice", nil })))
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
		p, err := l.Policy(ginlimit.PerHour(100), ginlimit.WithConcurrency(1),
			ginlimit.WithQueue(3, time.Second), ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		holds := testkit.Acquire(t, p)
		require.True(t, holds.Result().Allowed)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				slot := testkit.Acquire(t, p)
				require.True(t, slot.Result().Allowed)
				order <- i
				time.Sleep(100 * time.Millisecond)
				slot.Release()
			}()
			synctest.Wait()
		}
		start := time.Now()
		require.False(t, testkit.Acquire(t, p).Result().Allowed, "the queue is full")
		require.Zero(t, time.Since(start))
		holds.Release()
		for i := range 3 {
			require.Equal(t, i, <-order)
		}
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		time.Sleep(100 * time.Millisecond)

		holds = testkit.Acquire(t, p)
		start = time.Now()
		require.False(t, testkit.Acquire(t, p).Result().Allowed)
		require.Equal(t, time.Second, time.Since(start), "as long as it may wait")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = p.Acquire(ctx, "alice")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		holds.Release()
		require.True(t, testkit.Acquire(t, p).Result().Allowed, "who waits for a slot is not banned")
	})
}

// TestLateAttemptTakesNothing has an attempt reach Redis when nobody waits for it any more.
func TestLateAttemptTakesNothing(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		hook := &testkit.LateHook{}
		late := b.Connect(t)
		late.AddHook(hook)
		limiter := testkit.NewLimiter(t, late)
		p, err := limiter.Policy(ginlimit.PerHour(10), ginlimit.WithName("api"),
			ginlimit.WithConcurrency(1), ginlimit.WithBan(time.Hour, time.Hour))
		require.NoError(t, err)
		_, err = p.Acquire(t.Context(), "alice")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		const key = "ginlimit:{api|alice}:slots"
		synctest.Wait() // until Redis is told that nobody waits
		require.NoError(t, b.Redis.Do(t.Context(), hook.Args...).Err())
		require.Regexp(t, "^P[A-Z2-7]{13} 1 0 $", b.Redis.Get(t.Context(), key).Val())
		slot := testkit.Acquire(t, p)
		require.True(t, slot.Result().Allowed)
		require.Equal(t, 9, slot.Result().Remaining, "nor a token, nor is the client banned")
		require.NoError(t, b.Redis.Do(t.Context(), hook.Args...).Err())
		slot.Release()
		require.True(t, testkit.Acquire(t, p).Result().Allowed)
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
			p, err := l.Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithConcurrency(1),
				ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil }))
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
		opts := []ginlimit.Option{ginlimit.WithName("api"), alice, ginlimit.WithConcurrency(1),
			ginlimit.WithQueue(1, time.Hour), ginlimit.WithBan(time.Hour, time.Hour)}
		p, err := l.Policy(ginlimit.PerHour(3), opts...)
		require.NoError(t, err)
		router := gin.New()
		router.GET("/free",
			l.Handler(ginlimit.PerHour(3), append(opts, ginlimit.WithCost(func(*gin.Context) int { return 0 }))...))
		router.GET("/dry", l.Handler(ginlimit.PerHour(3), append(opts, ginlimit.WithDryRun())...))
		router.GET("/", p.Handler())
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w
		}
		holds := testkit.Acquire(t, p)
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
	rdb, _ := testkit.NewMiniredis(t)
	p, err := testkit.NewLimiter(t, rdb, testkit.Patient()).Policy(ginlimit.Limit{Rate: -1},
		ginlimit.WithName("api"), ginlimit.WithConcurrency(1))
	require.NoError(t, err)
	for range 50 {
		slot := testkit.Acquire(t, p)
		require.True(t, slot.Result().Allowed)
		slot.Release()
		res, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		require.Equal(t, 1, res.Remaining)
	}
}

// TestCloseFreesTheSlotsOfDecisionsInFlight that end without one: Redis knows when Close returns.
func TestCloseFreesTheSlotsOfDecisionsInFlight(t *testing.T) {
	t.Parallel()
	key := func(name string) ginlimit.KeyFunc { return func(*gin.Context) (string, error) { return name, nil } }
	for name, ask := range map[string]func(t *testing.T, l *ginlimit.Limiter, p *ginlimit.Policy){
		"the caller leaves": func(t *testing.T, _ *ginlimit.Limiter, p *ginlimit.Policy) {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Millisecond)
			defer cancel()
			_, err := p.Acquire(ctx, "alice")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		},
		"another identity is refused": func(t *testing.T, l *ginlimit.Limiter, _ *ginlimit.Policy) {
			router := gin.New()
			router.GET("/", l.Handler(ginlimit.PerHour(100), ginlimit.WithName("api"),
				ginlimit.WithConcurrency(1), ginlimit.WithKey(key("alice")),
				ginlimit.WithIdentity("all", key("all"), ginlimit.PerDay(1))))
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				rdb, slow := b.Connect(t), false
				rdb.AddHook(testkit.EveryCall(func(send func() error) error {
					err := send()
					if slow {
						time.Sleep(20 * time.Millisecond)
					}
					return err
				}))
				opts := []ginlimit.Option{ginlimit.WithName("api"), ginlimit.WithConcurrency(1)}
				limiter := testkit.NewLimiter(t, rdb, ginlimit.WithFailure(ginlimit.FailClosed))
				p, err := limiter.Policy(ginlimit.PerHour(100), opts...)
				require.NoError(t, err)
				testkit.Acquire(t, p).Release() // connects
				_, err = limiter.Allow(t.Context(), ginlimit.Key("all", "all"), ginlimit.PerDay(1))
				require.NoError(t, err)
				synctest.Wait()

				slow = true
				var asks sync.WaitGroup
				asks.Go(func() { ask(t, limiter, p) })
				time.Sleep(10 * time.Millisecond)
				require.NoError(t, limiter.Close())
				other, err := testkit.NewLimiter(t, b.Redis).Policy(ginlimit.PerHour(100), opts...)
				require.NoError(t, err)
				require.True(t, testkit.Acquire(t, other).Result().Allowed)
				asks.Wait()
			})
		})
	}
}

// TestCloseIsBounded though a hook of the client hangs in a decision, and then in what Close sends itself.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var hangs atomic.Bool
		rdb := b.ConnectInline(t)
		rdb.AddHook(testkit.EveryCall(func(send func() error) error {
			if hangs.Load() {
				time.Sleep(time.Minute)
			}
			return send()
		}))
		limiter := testkit.NewLimiter(t, rdb, testkit.TrustsClock(), ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		p, err := limiter.Policy(ginlimit.PerHour(100), ginlimit.WithName("api"), ginlimit.WithConcurrency(3))
		require.NoError(t, err)
		leased, err := limiter.Policy(testkit.LeasePerMinute, ginlimit.WithName("leased"),
			ginlimit.WithLease(testkit.LeaseLife))
		require.NoError(t, err)
		held := testkit.Acquire(t, p)
		for range 10 {
			_, err = leased.Allow(t.Context(), "alice")
			require.NoError(t, err)
		}
		require.Positive(t, limiter.Stats().Leases)

		hangs.Store(true)
		var asks sync.WaitGroup
		asks.Go(func() {
			begin := time.Now()
			_, err := p.Acquire(t.Context(), "alice")
			assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			assert.Equal(t, time.Minute, time.Since(begin), "the hook hangs in its caller")
		})
		synctest.Wait()
		held.Release()
		start := time.Now()
		require.NoError(t, limiter.Close())
		require.Greater(t, time.Since(start), 2*time.Second, "it waits for the decision, and then for its call")
		require.LessOrEqual(t, time.Since(start), 2200*time.Millisecond)
		asks.Wait()
	})
}

// TestAProcessThatIsCutOffKeepsItsSlots for as long as WithConcurrency says, whenever the cut
// begins. If it is cut off for good, its slots are free within 10 s.
func TestAProcessThatIsCutOffKeepsItsSlots(t *testing.T) {
	t.Parallel()
	const promised = 7 * time.Second
	// decisions notice the cut, and have Redis searched for
	for _, what := range []string{"makes no decision", "makes decisions", "dies"} {
		for begins := 10 * time.Second; begins < 14*time.Second; begins += 500 * time.Millisecond {
			t.Run(fmt.Sprintf("%s, after %s", what, begins), func(t *testing.T) {
				t.Parallel()
				testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
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
					opts := []ginlimit.Option{ginlimit.WithName("api"), ginlimit.WithConcurrency(1)}
					l := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
					one, err := l.Policy(ginlimit.Limit{Rate: -1}, opts...)
					require.NoError(t, err)
					other, err := testkit.NewLimiter(t, b.Redis).Policy(ginlimit.Limit{Rate: -1}, opts...)
					require.NoError(t, err)
					slot := testkit.Acquire(t, one)
					require.True(t, slot.Result().Allowed)
					time.Sleep(begins)

					cut.Store(true)
					defer cut.Store(false)
					start := time.Now()
					for time.Since(start) < promised || what == "dies" {
						if what == "makes decisions" {
							_, err := l.Allow(t.Context(), "k", ginlimit.PerSecond(100))
							require.ErrorIs(t, err, ginlimit.ErrUnavailable)
						}
						if testkit.Acquire(t, other).Result().Allowed {
							require.Equal(t, "dies", what, "%s after the cut began", time.Since(start))
							require.Greater(t, time.Since(start), promised)
							require.LessOrEqual(t, time.Since(start), 10*time.Second+20*time.Millisecond, "one try more")
							return
						}
						time.Sleep(20 * time.Millisecond)
					}
					cut.Store(false)
					for time.Since(start) < 12*time.Second {
						require.False(t, testkit.Acquire(t, other).Result().Allowed, "%s after the cut began", time.Since(start))
						time.Sleep(20 * time.Millisecond)
					}
					slot.Release()
				})
			})
		}
	}
}

// TestWhoWaitsAsksRedisSomeHundredTimesASecond, however many clients wait for slots of other
// processes: a slot that another process releases is found within 100 ms, or 2 ms for each client
// that waits. One that this process releases is taken at once.
func TestWhoWaitsAsksRedisSomeHundredTimesASecond(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		clients int
		within  time.Duration
	}{{1, 100 * time.Millisecond}, {100, 200 * time.Millisecond}} {
		t.Run(fmt.Sprint(row.clients, " clients"), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				opts := []ginlimit.Option{ginlimit.WithName("api"), ginlimit.WithConcurrency(1), ginlimit.WithQueue(1, time.Hour)}
				l, rdb := testkit.NewLimiter(t, b.Redis), b.Connect(t)
				p, err := l.Policy(ginlimit.Limit{Rate: -1}, opts...)
				require.NoError(t, err)
				other, err := testkit.NewLimiter(t, rdb).Policy(ginlimit.Limit{Rate: -1}, opts...)
				require.NoError(t, err)
				ctx, leave := context.WithCancel(t.Context())
				var held []*ginlimit.Slot
				var all sync.WaitGroup
				var taken atomic.Int64
				wait := func(client string, holder *ginlimit.Policy) {
					slot, err := holder.Acquire(t.Context(), client)
					require.NoError(t, err)
					require.True(t, slot.Result().Allowed)
					held = append(held, slot)
					all.Go(func() {
						if slot, err := p.Acquire(ctx, client); err == nil {
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
