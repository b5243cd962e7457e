package limits_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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
