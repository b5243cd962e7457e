package plans_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Sources and hooks that fail.

// refusal is an error that a source passes on from a Redis of its own.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// TestLogHoldsNothingOfTheSourcesError has sources fail with the client's id in the error.
func TestLogHoldsNothingOfTheSourcesError(t *testing.T) {
	t.Parallel()
	const secret = "alice@example.com"
	fails := func(err error) func(context.Context) (ginlimit.Limit, error) {
		return func(context.Context) (ginlimit.Limit, error) { return ginlimit.Limit{}, err }
	}
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(secret)}
	for reason, source := range map[string]func(context.Context) (ginlimit.Limit, error){
		"*fmt.wrapError":           fails(fmt.Errorf("user %s: %w", secret, dial)),
		"*net.OpError":             fails(dial),
		"*net.DNSError":            fails(&net.DNSError{Err: secret, Name: secret, IsTimeout: true}),
		"*errors.joinError":        fails(errors.Join(errors.New(secret), io.EOF, context.DeadlineExceeded)),
		"plans_test.refusal":       fails(refusal(secret + " is not known")),
		"panic":                    func(context.Context) (ginlimit.Limit, error) { panic(secret) },
		"goexit":                   func(context.Context) (ginlimit.Limit, error) { runtime.Goexit(); panic("not reached") },
		`"invalid argument: none"`: func(context.Context) (ginlimit.Limit, error) { return ginlimit.Limit{}, nil },
		"timeout": func(ctx context.Context) (ginlimit.Limit, error) {
			<-ctx.Done()
			return ginlimit.Limit{}, fmt.Errorf("user %s: %w", secret, ctx.Err())
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				var log testkit.Buffer
				plans := testkit.PlansOfProcess(t, b,
					func(ctx context.Context, _ string) (ginlimit.Limit, error) { return source(ctx) },
					ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				_, err := testkit.LimitOf(plans, t.Context(), secret)
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				time.Sleep(time.Second)
				require.Contains(t, log.String(), " reason="+reason+"\n")
				require.NotContains(t, log.String(), "alice")
				rec := testkit.Get(testkit.Serve(testkit.NewLimiter(t, b.Redis).Handler("plan",
					ginlimit.WithLimitFunc(plans.Limits))), "/")
				require.Equal(t, 503, rec.Code)
				require.NotContains(t, rec.Body.String(), "alice")
			})
		})
	}
}

// endings are how a function of the application's may end without a return.
var endings = map[string]func(){"panic": func() { panic("fault") }, "goexit": runtime.Goexit}

// TestPlansSurviveTheSource has it end without a return, for a client that is new and for one with an old plan.
func TestPlansSurviveTheSource(t *testing.T) {
	t.Parallel()
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				var ends atomic.Bool
				plans := testkit.PlansOfProcess(t, b, func(context.Context, string) (ginlimit.Limit, error) {
					if ends.Load() {
						end()
					}
					return ginlimit.PerMinute(3), nil
				})
				has(t, plans, "old", 3)
				time.Sleep(2 * time.Hour)
				ends.Store(true)
				for range 1000 { // more than may be asked for at a time
					has(t, plans, "old", 3)
					_, err := testkit.LimitOf(plans, t.Context(), "new")
					require.ErrorIs(t, err, ginlimit.ErrUnavailable)
					time.Sleep(time.Second)
				}
				ends.Store(false)
				has(t, plans, "new", 3)
			})
		})
	}
}

// TestPlansSurviveHooks of the client that end without a return, and a logger that does.
func TestPlansSurviveHooks(t *testing.T) {
	t.Parallel()
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				var ends atomic.Bool
				s := testkit.NewSource()
				rdb := b.Connect(t)
				rdb.AddHook(testkit.EveryCall(func(send func() error) error {
					if ends.Load() {
						end()
					}
					return send()
				}))
				plans, err := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout),
					ginlimit.WithLogger(slog.New(endingHandler{end: end}))).NewPlans("plans", time.Hour, testkit.SingleLimit(s.Ask))
				require.NoError(t, err)
				for range 3 {
					ends.Store(true)
					has(t, plans, "three", 3)
					require.ErrorIs(t, plans.Invalidate(t.Context(), "three"), ginlimit.ErrUnavailable)
					has(t, plans, "three", 3)
					ends.Store(false)
					time.Sleep(time.Second)
					require.NoError(t, plans.Invalidate(t.Context(), "three"))
					has(t, plans, "three", 3)
					require.True(t, b.Mini.Exists("ginlimit:plan:{plans|three}"))
				}
				s.Set("three", ginlimit.PerMinute(4), net.ErrClosed)
				require.NoError(t, plans.Invalidate(t.Context(), "three"))
				has(t, plans, "three", 3)
				_, err = testkit.LimitOf(plans, t.Context(), "new")
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				time.Sleep(time.Second)
				s.Set("three", ginlimit.PerMinute(4), nil)
				has(t, plans, "three", 4)
			})
		})
	}
}

// endingHandler is a handler of log lines that does not return.
type endingHandler struct {
	slog.Handler
	end func()
}

func (endingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h endingHandler) Handle(context.Context, slog.Record) error {
	h.end()
	return nil
}
