package limits_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What limiters of one client and prefix do in the background, once in a process.

// TestLimitersOfAClientLookOnce, and seldom after an idle minute.
func TestLimitersOfAClientLookOnce(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var sent atomic.Int64
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error { sent.Add(1); return send() }))
		for i := range 100 {
			l := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis}) // the hooks of others see no looks
			testkit.Must(testkit.NewPolicy(t, l, fmt.Sprint("p", i), ginlimit.PerMinute(3)).Allow(t.Context(), "ann"))
		}
		minute := func() int64 {
			before := sent.Load()
			time.Sleep(time.Minute)
			return sent.Load() - before
		}
		time.Sleep(inForce)
		require.InDelta(t, 2*(60/0.7+1), minute(), 10) // a look is a command and a pipeline
		require.InDelta(t, 2*(60/10+1), minute(), 4)
		time.Sleep(time.Hour)
		require.InDelta(t, 2*(60/10+1), minute(), 4)
		require.Len(t, testkit.Must(testkit.NewOperated(t, b.Connect(t)).Policies(t.Context())), 100)
	})
}

// TestAnIdleProcessKnowsAnOverrideAtOnce: its first decision goes by it, in whatever way it is made.
func TestAnIdleProcessKnowsAnOverrideAtOnce(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(t *testing.T, p *ginlimit.Policy) ginlimit.Limit{
		"a method": func(t *testing.T, p *ginlimit.Policy) ginlimit.Limit {
			return testkit.Must(p.Allow(t.Context(), "ann")).Limit
		},
		"a reservation": func(t *testing.T, p *ginlimit.Policy) ginlimit.Limit {
			return testkit.Must(p.Reserve(t.Context(), "ann", 1)).Result().Limit
		},
		"a request": func(t *testing.T, p *ginlimit.Policy) (limit ginlimit.Limit) {
			router := gin.New()
			router.GET("/", p.Handler(), func(c *gin.Context) {
				r, _ := ginlimit.FromContext(c)
				limit = r.Limit
			})
			require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
			return limit
		},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			operator := testkit.NewOperated(t, b.Connect(t))
			byName := ginlimit.WithKey(func(*gin.Context) (string, error) { return "ann", nil })
			p := testkit.NewPolicy(t, testkit.NewOperated(t, b.Redis), "api", ginlimit.PerMinute(3), byName)
			require.Equal(t, ginlimit.PerMinute(3), decide(t, p))
			time.Sleep(inForce)
			testkit.NewPolicy(t, operator, "api", ginlimit.PerMinute(3))
			idles := []time.Duration{time.Hour}
			if name == "a method" {
				idles = append(idles, 30*time.Hour) // nothing is done in the background by then
			}
			for _, idle := range idles {
				time.Sleep(idle)
				want := ginlimit.PerMinute(int(idle / time.Minute))
				o := override("ann", want)
				o.Until = time.Now().Add(20 * 24 * time.Hour)
				require.NoError(t, operator.Override(t.Context(), o))
				require.Equal(t, want, decide(t, p))
			}
		})
	}
}

// TestACallerThatWaitsKnowsAnOverrideWithinASecond, though nobody else decides.
func TestACallerThatWaitsKnowsAnOverrideWithinASecond(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := testkit.NewPolicy(t, testkit.NewOperated(t, b.Redis), "api", ginlimit.PerDay(1))
		testkit.NewPolicy(t, testkit.NewOperated(t, b.Redis, ginlimit.WithoutOverrides()), "other", ginlimit.PerDay(1))
		testkit.Must(p.Allow(t.Context(), "ann"))
		done := make(chan error, 1)
		go func() { done <- p.Wait(t.Context(), "ann") }()
		time.Sleep(time.Hour + 3*time.Second) // and not just before a look of an idle process
		o := override("ann", ginlimit.PerSecond(100))
		require.NoError(t, testkit.NewOperated(t, b.Connect(t)).Override(t.Context(), o))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, done, 1)
		require.NoError(t, <-done)
	})
}

// TestARequestInAQueueKeepsItsLimits when an override changes; a request that comes later goes by it.
func TestARequestInAQueueKeepsItsLimits(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, router := testkit.NewOperated(t, b.Redis), gin.New()
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(1), ginlimit.WithQueue(2, 2*time.Hour),
			ginlimit.WithKey(func(*gin.Context) (string, error) { return "ann", nil }))
		router.GET("/", p.Handler())
		require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
		start, waited := time.Now(), make(chan time.Duration, 1)
		go func() {
			_ = testkit.Get(router, "/")
			waited <- time.Since(start)
		}()
		time.Sleep(time.Second)
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerHour(360))))
		time.Sleep(30 * time.Minute)
		require.Empty(t, waited)
		require.InDelta(t, time.Hour, <-waited, float64(time.Minute))
	})
}

// TestALateLookDelaysNoDecision by more than its timeout and a tenth, which is for the look too.
func TestALateLookDelaysNoDecision(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const timeout = 50 * time.Millisecond
		var hangs atomic.Bool
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error {
			if hangs.Load() {
				time.Sleep(3 * time.Second)
			}
			return send()
		}))
		l := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis}, ginlimit.WithTimeout(timeout),
			ginlimit.WithFailureMode(ginlimit.FailLocal))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.FromRedis, testkit.Must(p.Allow(t.Context(), "ann")).Source)
		time.Sleep(time.Hour)
		hangs.Store(true)
		start := time.Now()
		require.Equal(t, ginlimit.FromLocal, testkit.Must(p.Allow(t.Context(), "ann")).Source)
		require.LessOrEqual(t, time.Since(start), timeout+timeout/10)
		require.Greater(t, time.Since(start), timeout/2)
		for range 5 {
			start = time.Now()
			testkit.Must(p.Allow(t.Context(), "ann"))
		}
		require.Zero(t, time.Since(start), "the breaker is open, though the look is not over")
		time.Sleep(time.Hour)
		start = time.Now()
		testkit.Must(p.Allow(t.Context(), "ann"))
		require.LessOrEqual(t, time.Since(start), timeout+timeout/10)
		hangs.Store(false)
		time.Sleep(time.Minute)
	})
}

// TestALateLookDelaysNoMethod by more than that either.
func TestALateLookDelaysNoMethod(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	for name, call := range map[string]func(ctx context.Context, p *ginlimit.Policy) error{
		"Peek":   func(ctx context.Context, p *ginlimit.Policy) error { return testkit.Err(p.Peek(ctx, "ann")) },
		"Status": func(ctx context.Context, p *ginlimit.Policy) error { return testkit.Err(p.Status(ctx, "ann")) },
		"Refund": func(ctx context.Context, p *ginlimit.Policy) error { return p.Refund(ctx, "ann", 1) },
		"Block":  func(ctx context.Context, p *ginlimit.Policy) error { return p.Block(ctx, "ann", time.Second) },
		"Reset":  func(ctx context.Context, p *ginlimit.Policy) error { return p.Reset(ctx, "ann") },
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var hangs atomic.Bool
			b.Redis.AddHook(testkit.EveryCall(func(send func() error) error {
				if hangs.Load() {
					time.Sleep(3 * time.Second)
				}
				return send()
			}))
			l := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis}, ginlimit.WithTimeout(timeout))
			p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
			testkit.Must(p.Allow(t.Context(), "ann"))
			time.Sleep(time.Hour)
			hangs.Store(true)
			start := time.Now()
			require.ErrorIs(t, call(t.Context(), p), ginlimit.ErrUnavailable)
			require.LessOrEqual(t, time.Since(start), timeout+timeout/10)
			hangs.Store(false)
			time.Sleep(time.Minute)
		})
	}
}

// TestLimitersOfAClientKeepTheirOptions, and none ends what another does.
func TestLimitersOfAClientKeepTheirOptions(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		secret := ginlimit.WithKeySecret([]byte("sixteen bytes..."))
		of := func(opts ...ginlimit.LimiterOption) (*testkit.Limiter, *ginlimit.Policy) {
			l := testkit.NewOperated(t, b.Redis, opts...)
			return l, testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		}
		plain, p := of()
		ignoring, ignores := of(ginlimit.WithoutOverrides())
		_, hashed := of(secret)
		_, elsewhere := of(ginlimit.WithPrefix("elsewhere"))
		_, twin := of(ginlimit.WithTimeout(time.Second))
		limits := func() (all [5]int) {
			for i, p := range []*ginlimit.Policy{p, ignores, hashed, elsewhere, twin} {
				all[i] = limitOf(t, p, "ann").Rate
			}
			return all
		}
		require.Equal(t, [5]int{3, 3, 3, 3, 3}, limits())
		for _, p := range []*ginlimit.Policy{p, ignores, hashed, twin} {
			testkit.Must(p.Allow(t.Context(), "bob"))
		}
		time.Sleep(inForce)
		process := testkit.NewOperated(t, b.Connect(t))
		require.NoError(t, process.Override(t.Context(), override("ann", ginlimit.PerMinute(7))))
		time.Sleep(inForce)
		require.Equal(t, [5]int{7, 3, 3, 3, 7}, limits())
		require.Zero(t, ignoring.Stats().Overrides)
		require.Equal(t, 1, plain.Stats().Overrides)
		require.NoError(t, plain.Close())
		withSecret := testkit.NewOperated(t, b.Connect(t), secret)
		require.NoError(t, withSecret.Override(t.Context(), override("ann", ginlimit.PerMinute(8))))
		require.NoError(t, process.Override(t.Context(), override("ann", ginlimit.PerMinute(9))))
		time.Sleep(inForce)
		require.Equal(t, 9, limitOf(t, twin, "ann").Rate)
		require.Equal(t, 8, limitOf(t, hashed, "ann").Rate)
		require.Equal(t, 3, limitOf(t, ignores, "ann").Rate)
		time.Sleep(10 * time.Minute)
		published := testkit.Must(process.Policies(t.Context()))
		require.Len(t, published, 3, "another limiter serves what the ended limiter served")
		require.Equal(t, 1, published[0].Processes)
	})
}

// TestEachLogIsToldOnce of what limiters of a client do together.
func TestEachLogIsToldOnce(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var logs [2]testkit.Buffer
		loggers := [...]*slog.Logger{
			slog.New(slog.NewTextHandler(&logs[0], nil)), slog.New(slog.NewTextHandler(&logs[1], nil)),
		}
		var p *ginlimit.Policy
		for i := range 6 {
			l := testkit.NewOperated(t, b.Redis, ginlimit.WithLogger(loggers[i%2]))
			p = testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		}
		b.Mini.HSet("ginlimit:{overrides}", "api|cat", `{"v":2,"policy":"api"}`, "", "stamp")
		limitOf(t, p, "ann")
		time.Sleep(inForce)
		for i := range logs {
			require.Equal(t, 1, strings.Count(logs[i].String(), "overrides cannot be read"))
		}
	})
}

// TestDroppedLimitersKeepNoClient, though nobody has closed them.
func TestDroppedLimitersKeepNoClient(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	var client weak.Pointer[redis.Client]
	func() {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		client = weak.Make(rdb)
		router := gin.New()
		for i := range 100 {
			path := fmt.Sprint("/", i)
			router.GET(path, ginlimit.New(rdb, path, ginlimit.PerMinute(3)))
			require.Equal(t, http.StatusOK, testkit.Get(router, path).Code)
		}
	}()
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		runtime.GC()
		return client.Value() == nil
	}))
}

// TestALimiterDroppedInABubble of testing/synctest ends its background without touching the bubble's timers: Go ends
// the process of whoever does that from outside.
func TestALimiterDroppedInABubble(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var dropped atomic.Int64
		for range 10 {
			l := testkit.Must(ginlimit.NewLimiter(b.Connect(t), ginlimit.WithReplicas(1)))
			testkit.Must(testkit.Must(l.Policy("api", ginlimit.PerMinute(3))).Allow(t.Context(), "k"))
			runtime.AddCleanup(l, func(*atomic.Int64) { dropped.Add(1) }, &dropped)
		}
		for dropped.Load() < 9 { // the last may be on the stack
			runtime.GC()
		}
		time.Sleep(inForce)
	})
}
