package upkeep_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/overrides"
	"github.com/ginlimit/ginlimit/internal/published"
	"github.com/ginlimit/ginlimit/internal/upkeep"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// counted is a store that other processes may change, too, and counts calls.
type counted struct {
	overrides overrides.Local
	published published.Local
	calls     atomic.Int64
}

func (c *counted) Look(ctx context.Context, publication string) (string, bool, error) {
	c.calls.Add(1)
	return c.overrides.Look(ctx, publication)
}

func (c *counted) Publish(ctx context.Context, p *wire.Publication) (int, error) {
	c.calls.Add(1)
	return c.published.Publish(ctx, p)
}

func (c *counted) Overrides(ctx context.Context) (map[string]string, string, error) {
	return c.overrides.Overrides(ctx)
}

func (c *counted) Since(ctx context.Context, stamp, to string) (map[string]string, string, bool, error) {
	return c.overrides.Since(ctx, stamp, to)
}

func (c *counted) Change(ctx context.Context, all *wire.OverrideChanges) (string, error) {
	return c.overrides.Change(ctx, all)
}

func (c *counted) Published(ctx context.Context) (map[string]string, map[string]map[string]time.Time, error) {
	return c.published.Published(ctx)
}

// store is where overrides and policies are.
type store interface {
	overrides.Store
	published.Store
}

// limiter is what a limiter has of both.
type limiter struct {
	*upkeep.Upkeep
	overrides *overrides.View[string]
	published *published.Limiter
}

// newLimiter returns the only limiter of a client. It publishes a policy.
func newLimiter(s store, failed func(error)) *limiter {
	u := upkeep.New(upkeep.Config{
		Failed: failed, Denied: func(err error) bool { return errors.Is(err, errDenied) },
	})
	all := overrides.New(overrides.Config[string]{
		Store: s, Upkeep: u, Limits: func(text string) (string, error) { return text, nil },
	})
	view := all.Join(&overrides.View[string]{Changed: func() {}, Waits: func() bool { return false }})
	return &limiter{u, view, published.New(s, "P", u).Join()}
}

// decide makes a decision on a client, and returns what overrides its limits.
func (l *limiter) decide(client string) (limits string, ok bool) {
	l.Use(context.Background(), timeout)
	l.published.Serve(published.Policy{Name: "api"})
	return l.overrides.Find("api", client)
}

const (
	interval    = upkeep.Soon // between two looks at the overrides
	republish   = time.Minute
	deniedRetry = 10 * time.Minute
	idleLook    = 10 * time.Second
	timeout     = 50 * time.Millisecond // of a decision

	// hour is how many calls a process makes in the hour after a decision.
	hour = float64(time.Minute/interval + (time.Hour-time.Minute)/idleLook + time.Hour/republish)
)

// TestAnIdleProcessRests a day after its last decision, until the next one, and once it has ended.
func TestAnIdleProcessRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(counted)
		l := newLimiter(store, func(err error) { t.Error(err) })
		calls := func(d time.Duration) int64 {
			before := store.calls.Load()
			time.Sleep(d)
			return store.calls.Load() - before
		}
		decide := func() { l.decide("ann") }
		require.Zero(t, calls(time.Hour), "nobody has decided")
		decide()
		time.Sleep(22 * time.Hour)
		decide()
		time.Sleep(22 * time.Hour)
		require.InDelta(t, float64(time.Hour/idleLook+time.Hour/republish), calls(time.Hour), 2)
		time.Sleep(2 * time.Hour)
		require.Zero(t, calls(time.Hour), "it rests")
		decide()
		require.InDelta(t, hour, calls(time.Hour), 2)
		l.End()
		time.Sleep(republish)
		require.Zero(t, calls(time.Hour), "it has ended")
	})
}

// TestADecisionThatWaitsForATaskGoesOnAtItsEnd, however long the timeout, also if upkeep ends meanwhile.
func TestADecisionThatWaitsForATaskGoesOnAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		u := upkeep.New(upkeep.Config{Failed: func(error) {}, Denied: func(error) bool { return false }})
		u.Add(&upkeep.Task{Every: interval, Idle: idleLook, Do: func(ctx context.Context) error {
			if hangs.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		u.Use(t.Context(), time.Hour)
		time.Sleep(time.Hour)
		hangs.Store(true)
		time.AfterFunc(time.Second, u.End)
		require.Equal(t, 5*time.Second, u.Use(t.Context(), time.Hour))
	})
}

// refusing is a store that denies rights for as long as it says so.
type refusing struct {
	counted
	refuses atomic.Bool
}

var errDenied = errors.New("denied")

func (r *refusing) Look(ctx context.Context, publication string) (string, bool, error) {
	stamp, isThere, err := r.counted.Look(ctx, publication)
	if r.refuses.Load() {
		err = errDenied
	}
	return stamp, isThere, err
}

func (r *refusing) Publish(ctx context.Context, p *wire.Publication) (int, error) {
	n, err := r.counted.Publish(ctx, p)
	if r.refuses.Load() {
		err = errDenied
	}
	return n, err
}

// TestAProcessWithoutARightSeldomTries to use it, and knows the overrides soon after it is granted.
func TestAProcessWithoutARightSeldomTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(refusing)
		store.refuses.Store(true)
		var failures atomic.Int64
		l := newLimiter(store, func(error) { failures.Add(1) })
		defer l.End()
		l.decide("ann")
		time.Sleep(time.Hour - time.Minute)
		require.EqualValues(t, 2*6, store.calls.Load(), "a look and a publication in ten minutes")
		require.EqualValues(t, 2*6, failures.Load())
		change := overrides.Override{Policy: "api", Limits: "9/m", Until: time.Now().Add(time.Hour).UnixMilli()}.Change(false)
		_, err := store.Change(t.Context(), &wire.OverrideChanges{Limit: 9, Changes: []wire.OverrideChange{change}})
		require.NoError(t, err)
		store.refuses.Store(false)
		time.Sleep(deniedRetry)
		found, ok := l.decide("ann")
		require.True(t, ok)
		require.Equal(t, "9/m", found)
		before := store.calls.Load()
		time.Sleep(time.Hour)
		require.InDelta(t, hour, store.calls.Load()-before, 2)
		require.EqualValues(t, 2*6, failures.Load())
	})
}
