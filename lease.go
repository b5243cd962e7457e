package ginlimit

import (
	"context"
	"sync"
	"time"
)

// lease hands out contexts that end after a span of time, or at most a tenth of it later, so that
// many calls share one timer.
type lease struct {
	span time.Duration

	mu    sync.Mutex
	ctx   context.Context
	stop  context.CancelFunc
	fresh time.Time // until when ctx is handed out
}

// slack is how much later than its span a context may end.
func (l *lease) slack() time.Duration { return l.span / 10 }

func (l *lease) context() context.Context {
	now, slack := time.Now(), l.slack()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Before(l.fresh) {
		l.ctx, l.stop = context.WithTimeout(context.Background(), l.span+slack)
		l.fresh = now.Add(slack)
	}
	return l.ctx
}

// end ends the last context, when no call uses it any more.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop != nil {
		l.stop()
	}
}
