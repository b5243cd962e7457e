package ginlimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Nothing is given back twice: what has flowed back by itself, or was given back by others, is not given back again.

// backend is where the buckets of a test are.
type backend struct {
	limiter *ginlimit.Limiter
	other   *ginlimit.Limiter // of another process, if there is one
}

// onEveryBackend runs a test in a bubble: with one server, with a client whose keys may be on several, in the process, and in
// an outage.
func onEveryBackend(t *testing.T, test func(t *testing.T, b backend)) {
	t.Helper()
	for name, start := range map[string]func(t *testing.T, b *testkit.Bubble) backend{
		"server": func(t *testing.T, b *testkit.Bubble) backend {
			return backend{testkit.NewLimiter(t, b.Redis), testkit.NewLimiter(t, b.Connect(t))}
		},
		"in turn": func(t *testing.T, b *testkit.Bubble) backend {
			wrap := func() redis.UniversalClient { return struct{ redis.UniversalClient }{b.Connect(t)} }
			return backend{testkit.NewLimiter(t, wrap()), testkit.NewLimiter(t, wrap())}
		},
		"local": func(t *testing.T, _ *testkit.Bubble) backend {
			l := newLocal(t)
			return backend{l, l}
		},
		"outage": func(t *testing.T, b *testkit.Bubble) backend {
			b.Late.Store(true)
			l, err := ginlimit.NewLimiter(b.Redis)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			for range 5 {
				_, err := l.Allow(t.Context(), "breaker", ginlimit.PerHour(100))
				require.NoError(t, err)
			}
			return backend{l, l}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { test(t, start(t, b)) })
		})
	}
}

// admittedNow takes all tokens that there are, one by one.
func admittedNow(t *testing.T, l *ginlimit.Limiter, key string, limits ...ginlimit.Limit) (n int) {
	t.Helper()
	for {
		r, err := l.Allow(t.Context(), key, limits...)
		require.NoError(t, err)
		if !r.Allowed {
			return n
		}
		n++
	}
}

// made wants that a change was made, in an outage in this process.
func made(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
}

// TestSlowRequestsGiveBackNothingTwice serves five requests, each of which takes a whole bucket that is full again when the
// next one comes. Their refunds come together, and others take what there is after each.
func TestSlowRequestsGiveBackNothingTwice(t *testing.T) {
	limit, everybody := ginlimit.PerSecond(10), ginlimit.PerSecond(10)
	for name, option := range map[string]ginlimit.Option{
		"refund": ginlimit.WithRefund(func(*gin.Context) bool { return true }),
		"settle": ginlimit.WithSettle(func(*gin.Context) int { return 0 }),
	} {
		for _, identities := range []int{0, 1, 2} {
			t.Run(name+[]string{"", ", an identity", ", two identities"}[identities], func(t *testing.T) {
				onEveryBackend(t, func(t *testing.T, b backend) {
					opts := []ginlimit.Option{
						ginlimit.WithName("slow"), option, ginlimit.WithCost(func(*gin.Context) int { return 10 }),
					}
					for i := range identities {
						opts = append(opts, ginlimit.WithIdentity([]string{"all", "each"}[i],
							func(*gin.Context) (string, error) { return "everybody", nil }, everybody))
					}
					release, ended := make(chan struct{}), make(chan int)
					r := gin.New()
					_ = r.SetTrustedProxies(nil)
					r.GET("/", b.limiter.Handler(limit, opts...), func(*gin.Context) { <-release })
					for range 5 {
						go func() { ended <- get(r, "/").Code }()
						time.Sleep(time.Second)
					}
					key := ginlimit.Key("slow", "192.0.2.1")
					admitted := admittedNow(t, b.limiter, key, limit)
					for range 5 {
						release <- struct{}{}
						require.Equal(t, http.StatusOK, <-ended)
						admitted += admittedNow(t, b.other, key, limit)
					}
					require.Equal(t, 10, admitted, "in no time")
				})
			})
		}
	}
}

// TestReservationsGiveBackWhatIsLeft: a reservation that has flowed back since another was given back, or since a reset, gives
// back nothing of what others have taken meanwhile.
func TestReservationsGiveBackWhatIsLeft(t *testing.T) {
	limit := ginlimit.PerSecond(100)
	for name, between := range map[string]func(t *testing.T, b backend, first *ginlimit.Reservation){
		"another is canceled": func(t *testing.T, _ backend, first *ginlimit.Reservation) {
			require.NoError(t, first.Cancel(t.Context()))
			time.Sleep(500 * time.Millisecond)
		},
		"another process cancels": func(t *testing.T, b backend, first *ginlimit.Reservation) {
			time.Sleep(time.Millisecond)
			require.NoError(t, first.Cancel(t.Context()))
			mine, err := b.other.Reserve(t.Context(), "k", 30, limit)
			require.NoError(t, err)
			require.NoError(t, mine.Cancel(t.Context()))
			time.Sleep(500 * time.Millisecond)
		},
		"a refund": func(t *testing.T, b backend, _ *ginlimit.Reservation) {
			made(t, b.other.Refund(t.Context(), "k", 50, limit))
			time.Sleep(500 * time.Millisecond)
		},
		"a reset": func(t *testing.T, b backend, _ *ginlimit.Reservation) {
			made(t, b.limiter.Reset(t.Context(), "k", limit))
		},
		"another process resets": func(t *testing.T, b backend, _ *ginlimit.Reservation) {
			time.Sleep(time.Millisecond)
			made(t, b.other.Reset(t.Context(), "k", limit))
			time.Sleep(time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryBackend(t, func(t *testing.T, b backend) {
				first, err := b.limiter.Reserve(t.Context(), "k", 50, limit)
				require.NoError(t, err)
				second, err := b.limiter.Reserve(t.Context(), "k", 49, limit)
				require.NoError(t, err)
				between(t, b, first)
				require.Equal(t, 100, admittedNow(t, b.limiter, "k", limit))
				require.NoError(t, second.Cancel(t.Context()))
				require.Zero(t, admittedNow(t, b.other, "k", limit))
			})
		})
	}
}

// TestAGiveBackBeforeAReservationIsNotCountedAgainstIt: its level has that already.
func TestAGiveBackBeforeAReservationIsNotCountedAgainstIt(t *testing.T) {
	limit := ginlimit.PerSecond(1000)
	onEveryBackend(t, func(t *testing.T, b backend) {
		_, err := b.other.AllowN(t.Context(), "k", 470, limit)
		require.NoError(t, err)
		before, err := b.limiter.Reserve(t.Context(), "k", 437, limit)
		require.NoError(t, err)
		require.NoError(t, before.Cancel(t.Context()))
		time.Sleep(2 * time.Millisecond)
		r, err := b.limiter.Reserve(t.Context(), "k", 185, limit)
		require.NoError(t, err)
		time.Sleep(210 * time.Millisecond)
		least, err := b.other.Peek(t.Context(), "k", limit)
		require.NoError(t, err)
		require.NoError(t, r.Cancel(t.Context()))
		after, err := b.other.Peek(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Equal(t, 185, after.Remaining-least.Remaining)
	})
}

// TestResetsOfTwoProcesses right after one another: the reservation between them gives nothing back.
func TestResetsOfTwoProcesses(t *testing.T) {
	limit := ginlimit.PerMinute(100)
	onEveryBackend(t, func(t *testing.T, b backend) {
		made(t, b.limiter.Reset(t.Context(), "k", limit))
		_, err := b.limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		made(t, b.limiter.Reset(t.Context(), "k", limit))
		time.Sleep(time.Millisecond)
		r, err := b.limiter.Reserve(t.Context(), "k", 50, limit)
		require.NoError(t, err)
		made(t, b.other.Reset(t.Context(), "k", limit))
		require.Equal(t, 100, admittedNow(t, b.other, "k", limit))
		require.NoError(t, r.Cancel(t.Context()))
		require.Zero(t, admittedNow(t, b.limiter, "k", limit))
	})
}

// TestReservationsOfWindowsGiveBackWhatIsLeft after a reset, in the window that began then.
func TestReservationsOfWindowsGiveBackWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		for _, limits := range [][]ginlimit.Limit{
			{ginlimit.PerMinute(100)}, {ginlimit.PerMinute(100), ginlimit.PerHour(1000)},
			{ginlimit.PerMinute(100), ginlimit.PerCalendar(1000, ginlimit.CalendarMonth(nil, 1))},
		} {
			for _, local := range []bool{false, true} {
				t.Run(a.String(), func(t *testing.T) {
					t.Parallel()
					testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
						l := testkit.NewLimiter(t, b.Redis, ginlimit.WithAlgorithm(a))
						if local {
							l = newLocal(t, ginlimit.WithAlgorithm(a))
						}
						r, err := l.Reserve(t.Context(), "k", 49, limits...)
						require.NoError(t, err)
						require.NoError(t, l.Reset(t.Context(), "k", limits...))
						require.Equal(t, 100, admittedNow(t, l, "k", limits...))
						require.NoError(t, r.Cancel(t.Context()))
						require.Zero(t, admittedNow(t, l, "k", limits...))

						require.NoError(t, l.Reset(t.Context(), "k", limits...))
						r, err = l.Reserve(t.Context(), "k", 49, limits...)
						require.NoError(t, err)
						require.NoError(t, r.Cancel(t.Context()), "it was taken after the reset")
						require.Equal(t, 100, admittedNow(t, l, "k", limits...))
					})
				})
			}
		}
	}
}

// TestReservationsGiveBackAllThatIsLeft, in any order, while nothing has flowed back of them.
func TestReservationsGiveBackAllThatIsLeft(t *testing.T) {
	limit := ginlimit.PerHour(100)
	onEveryBackend(t, func(t *testing.T, b backend) {
		for _, order := range [][]int{{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}} {
			var all []*ginlimit.Reservation
			for range order {
				r, err := b.limiter.Reserve(t.Context(), "k", 20, limit)
				require.NoError(t, err)
				require.True(t, r.Result().Allowed)
				all = append(all, r)
			}
			for _, i := range order {
				require.NoError(t, all[i].Cancel(t.Context()))
			}
			r, err := b.other.Peek(t.Context(), "k", limit)
			require.NoError(t, err)
			require.Equal(t, 100, r.Remaining)
		}
	})
}

// TestBusyBucketsGiveBackWhatIsLeft: in a bucket that others keep empty, what a request took long ago is still there.
func TestBusyBucketsGiveBackWhatIsLeft(t *testing.T) {
	limit := ginlimit.PerMinute(6000)
	onEveryBackend(t, func(t *testing.T, b backend) {
		_, err := b.other.AllowN(t.Context(), "k", 5000, limit)
		require.NoError(t, err)
		r, err := b.limiter.Reserve(t.Context(), "k", 1000, limit)
		require.NoError(t, err)
		time.Sleep(20 * time.Second) // 2000 of the 5000 have flowed back
		_, err = b.other.AllowUpTo(t.Context(), "k", 6000, limit)
		require.NoError(t, err)
		require.NoError(t, r.Settle(t.Context(), 412))
		after, err := b.other.Peek(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Equal(t, 588, after.Remaining)
	})
}
