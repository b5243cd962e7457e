package web_test

import (
	"context"
	"errors"
	"net/http"
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

// events collects what an observer sees.
type events struct {
	mu  sync.Mutex
	all []ginlimit.Event
}

func (e *events) observe(_ context.Context, event ginlimit.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// take returns what was seen since, without how long it took, which is more than nothing.
func (e *events) take(t *testing.T) []ginlimit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	for i := range all {
		assert.Positive(t, all[i].Duration)
		all[i].Duration = 0
	}
	return all
}

// TestObserverSeesAWaitOnce: one Event when it ends, however often it has tried.
func TestObserverSeesAWaitOnce(t *testing.T) {
	t.Parallel()
	limit := ginlimit.PerSecond(1)
	for name, row := range map[string]struct {
		wait func(t *testing.T, l *testkit.Limiter) // on a bucket that is empty
		want ginlimit.Event
	}{
		"until there is a token": {func(t *testing.T, l *testkit.Limiter) {
			require.NoError(t, l.Wait(t.Context(), "k", limit))
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit,
			Source: ginlimit.FromLocal, Cost: 1, Duration: time.Second, Waited: time.Second}},
		"until its context ends": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.Canceled)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			Cost: 1, Duration: 500 * time.Millisecond, Waited: 500 * time.Millisecond, Reason: "canceled"}},
		"not at all before the deadline": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.DeadlineExceeded)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			Cost: 1, Reason: "deadline"}},
		"until the limiter is closed": {func(t *testing.T, l *testkit.Limiter) {
			time.AfterFunc(500*time.Millisecond, func() { _ = l.Close() })
			require.ErrorIs(t, l.Wait(t.Context(), "k", limit), ginlimit.ErrUnavailable)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			Cost: 1, Duration: 500 * time.Millisecond, Waited: 500 * time.Millisecond, Reason: "closed"}},
		"with a context that has ended": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.Canceled)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy,
			Cost: 1, Reason: "canceled"}},
		"in vain": {func(t *testing.T, l *testkit.Limiter) {
			require.ErrorIs(t, l.Wait(t.Context(), "k", ginlimit.PerSecond(0)), ginlimit.ErrInvalidArgument)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseNever,
			Limit: ginlimit.PerSecond(0), Source: ginlimit.FromPolicy, Cost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				seen := &events{}
				limiter := testkit.NewLocal(t, ginlimit.WithObserver(seen.observe))
				require.NoError(t, limiter.Wait(t.Context(), "k", limit))
				synctest.Wait()
				seen.all = nil
				row.wait(t, limiter)
				synctest.Wait()
				require.Equal(t, []ginlimit.Event{row.want}, seen.all)
			})
		})
	}
}

func TestOutcomesAreNamed(t *testing.T) {
	t.Parallel()
	var names []string
	for o := range ginlimit.OutcomeFailed + 2 {
		names = append(names, o.String())
	}
	require.Equal(t, []string{"allowed", "denied", "skipped", "failed", "unknown"}, names)
}

func TestObserversAddUp(t *testing.T) {
	t.Parallel()
	var first, second, third events
	both := testkit.NewLocal(t, ginlimit.WithObserver(first.observe), ginlimit.WithObserver(second.observe))
	one := testkit.NewLocal(t, ginlimit.WithObserver(third.observe))
	p := testkit.NewPolicy(t, both, "p", ginlimit.PerDay(3), testkit.ByUser())
	require.Equal(t, http.StatusOK, testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("u")).Code)
	_, err := p.AllowN(t.Context(), "u", 2)
	require.NoError(t, err)
	_, err = p.AllowUpTo(t.Context(), "u", 2)
	require.NoError(t, err)
	require.ErrorIs(t, p.WaitN(t.Context(), "u", 4), ginlimit.ErrInvalidArgument)
	_, err = both.Allow(t.Context(), "u", ginlimit.PerDay(1))
	require.NoError(t, err)
	_, err = p.Peek(t.Context(), "u")
	require.NoError(t, err)
	require.NoError(t, errors.Join(p.Refund(t.Context(), "u", 1), p.Block(t.Context(), "u", time.Hour),
		p.Reset(t.Context(), "u")))
	_, err = p.Allow(t.Context(), "")
	require.Error(t, err)
	_, err = one.Allow(t.Context(), "u", ginlimit.PerDay(1))
	require.NoError(t, err)
	want := []ginlimit.Event{
		{Name: "p", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(3),
			Remaining: 2, Source: ginlimit.FromLocal, Cost: 1},
		{Name: "p", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 2},
		{Name: "p", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseRate, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 2},
		{Name: "p", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseNever, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 4},
		{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(1),
			Source: ginlimit.FromLocal, Cost: 1},
	}
	require.Equal(t, want, first.take(t))
	require.Equal(t, want, second.take(t))
	require.Equal(t, want[4:], third.take(t))

	_, err = ginlimit.NewLocal(ginlimit.WithObserver(first.observe), ginlimit.WithObserver(nil))
	require.ErrorContains(t, err, "WithObserver: the function is nil")
}

// TestClientObserverSeesTheClient: by its key as the key function returned it, also with a secret, or "" if
// nobody has found one.
func TestClientObserverSeesTheClient(t *testing.T) {
	t.Parallel()
	var seen []string
	note := ginlimit.WithClientObserver(func(_ context.Context, e ginlimit.Event, client string) {
		seen = append(seen, e.Name+" "+e.Outcome.String()+" "+client)
	})
	want := func(events ...string) {
		t.Helper()
		require.Equal(t, events, seen)
		seen = nil
	}
	for name, l := range map[string]*testkit.Limiter{
		"in process": testkit.NewLocal(t, note, testkit.ByUser()),
		"with a secret": testkit.WithoutRedis(t, note, testkit.ByUser(),
			ginlimit.WithKeySecret([]byte("sixteen bytes..."))),
	} {
		t.Run(name, func(t *testing.T) {
			p := testkit.NewPolicy(t, l, "p", ginlimit.PerDay(1),
				ginlimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("Skip") != "" }))
			slots := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(1))
			app := testkit.Serve(p.Handler())
			testkit.Get(app, "/", testkit.User("a|b"))
			testkit.Get(app, "/", testkit.User("a|b"))
			testkit.Get(app, "/", testkit.User("c"), testkit.With("Skip", "1"))
			testkit.Get(app, "/")
			want("p allowed a|b", "p denied a|b", "p skipped ", "p failed ")
			_, err := p.Allow(t.Context(), "d")
			require.NoError(t, err)
			require.ErrorIs(t, p.WaitN(t.Context(), "e", 2), ginlimit.ErrInvalidArgument)
			want("p allowed d", "p denied e")
			r, err := ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: p, Client: "f", N: 1},
				ginlimit.Charge{Policy: slots, Client: "g", N: 1})
			require.NoError(t, err)
			r.Release()
			want("p allowed f", "slots allowed g")
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, p.Wait(ended, "h"))
			want("p failed h")
		})
	}
}
