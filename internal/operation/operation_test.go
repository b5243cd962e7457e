package operation

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// counted is a store that other processes may change, too, and counts calls.
type counted struct {
	*Local
	calls atomic.Int64
}

func (c *counted) Stamp(ctx context.Context) (string, error) {
	c.calls.Add(1)
	return c.Local.Stamp(ctx)
}

func (c *counted) Publish(ctx context.Context, p *wire.Publication) (int, error) {
	c.calls.Add(1)
	return c.Local.Publish(ctx, p)
}

// TestAnIdleProcessRests a day after its last decision, until the next one, and once it has ended.
func TestAnIdleProcessRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{Local: new(Local)}
		o := New(Config[string]{Store: store, Process: "P", Failed: func(err error) { t.Error(err) },
			Denied: func(error) bool { return false }})
		o.Serve(Policy{Name: "api"})
		calls := func(d time.Duration) int64 {
			before := store.calls.Load()
			time.Sleep(d)
			return store.calls.Load() - before
		}
		decide := func() { o.Find("api", "ann") }
		hour := float64(time.Hour/interval + time.Hour/republish)
		require.Zero(t, calls(time.Hour), "nobody has decided")
		decide()
		time.Sleep(22 * time.Hour)
		decide()
		time.Sleep(22 * time.Hour)
		require.InDelta(t, hour, calls(time.Hour), 2)
		time.Sleep(2 * time.Hour)
		require.Zero(t, calls(time.Hour), "it rests")
		decide()
		require.InDelta(t, hour, calls(time.Hour), 2)
		o.End()
		time.Sleep(republish)
		require.Zero(t, calls(time.Hour), "it has ended")
	})
}

// refusing is a store that denies rights for as long as it says so.
type refusing struct {
	counted
	refuses atomic.Bool
}

var errDenied = errors.New("denied")

func (r *refusing) Stamp(ctx context.Context) (string, error) {
	stamp, err := r.counted.Stamp(ctx)
	if r.refuses.Load() {
		err = errDenied
	}
	return stamp, err
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
		store := &refusing{counted: counted{Local: new(Local)}}
		store.refuses.Store(true)
		var failures atomic.Int64
		o := New(Config[string]{Store: store, Process: "P",
			Limits: func(text string) (string, error) { return text, nil },
			Failed: func(error) { failures.Add(1) }, Changed: func() {},
			Denied: func(err error) bool { return errors.Is(err, errDenied) }})
		defer o.End()
		o.Serve(Policy{Name: "api"})
		o.Find("api", "ann")
		time.Sleep(time.Hour - time.Minute)
		require.EqualValues(t, 2*6, store.calls.Load(), "a look and a publication in ten minutes")
		require.EqualValues(t, 2*6, failures.Load())
		change := Override{Policy: "api", Limits: "9/m", Until: time.Now().Add(time.Hour).UnixMilli()}.Change(false)
		_, err := store.Change(t.Context(), "stamp", 9, []wire.OverrideChange{change})
		require.NoError(t, err)
		store.refuses.Store(false)
		time.Sleep(deniedRetry)
		found, ok := o.Find("api", "ann")
		require.True(t, ok)
		require.Equal(t, "9/m", found)
		before := store.calls.Load()
		time.Sleep(time.Hour)
		require.InDelta(t, float64(time.Hour/interval+time.Hour/republish), store.calls.Load()-before, 2)
		require.EqualValues(t, 2*6, failures.Load())
	})
}
