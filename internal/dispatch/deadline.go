package dispatch

import (
	"context"
	"sync"
	"time"
)

// sharedDeadline hands out contexts that end after a span of time, or at most a tenth of it later,
// so that many calls share one timer. Its mutex guards the context that is handed out now.
type sharedDeadline struct {
	span time.Duration

	mu    sync.Mutex
	ctx   context.Context
	stop  context.CancelFunc
	fresh time.Time // until when ctx is handed out
}

// slack is how much later than its span a context may end.
func (d *sharedDeadline) slack() time.Duration { return d.span / 10 }

func (d *sharedDeadline) context() context.Context {
	now, slack := time.Now(), d.slack()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !now.Before(d.fresh) {
		d.ctx, d.stop = context.WithTimeout(context.Background(), d.span+slack)
		d.fresh = now.Add(slack)
	}
	return d.ctx
}

// end ends the last context, when no call uses it any more.
func (d *sharedDeadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}
