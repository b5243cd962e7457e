package operation

import (
	"context"
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
		o := New(Config[string]{Store: store, Process: "P", Failed: func(err error) { t.Error(err) }})
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
