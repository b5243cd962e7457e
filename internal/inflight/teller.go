package inflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxUpdates is of how many keys Redis is told at once.
	maxUpdates = 512
	// tick is how often it is looked what is to be renewed.
	tick = time.Second
	// pause is for how long nothing is told after it could not be.
	pause = 250 * time.Millisecond
)

// teller tells Redis what has changed, and renews what has not. Its goroutine ends when no slot is held and nothing has changed.
type teller struct {
	tell    func(context.Context, []Update) error
	changed chan struct{} // has room for one: there are changes
	running atomic.Bool
	lost    bool      // the last time it could not be told; the goroutine's own
	looked  time.Time // when it was last looked what is to be renewed; the goroutine's own

	ctx  context.Context
	stop context.CancelFunc
	mu   sync.Mutex // guards done, and that nothing is added to all once it is set
	done bool
	all  sync.WaitGroup
}

func (t *teller) init(tell func(context.Context, []Update) error) {
	t.tell, t.changed = tell, make(chan struct{}, 1)
	t.ctx, t.stop = context.WithCancel(context.Background())
}

// wake says that there are changes.
func (t *teller) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// start starts the goroutine unless it runs.
func (c *Counts) start() {
	t := &c.teller
	if t.tell == nil || t.running.Load() || !t.running.CompareAndSwap(false, true) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done {
		t.all.Go(c.run)
	}
}

func (c *Counts) run() {
	t := &c.teller
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		updates := c.changes(maxUpdates)
		if now := time.Now(); len(updates) == 0 && now.Sub(t.looked) >= tick {
			if updates = c.renewals(now, maxUpdates); len(updates) < maxUpdates {
				t.looked = now
			}
		}
		switch {
		case len(updates) > 0:
			if !c.send(updates) {
				return
			}
			continue
		case c.Total() == 0 && len(t.changed) == 0:
			if t.running.Store(false); c.Total() == 0 && len(t.changed) == 0 || !t.running.CompareAndSwap(false, true) {
				return
			}
		}
		timer.Reset(tick)
		select {
		case <-t.changed:
		case <-timer.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// send tells Redis, and waits for a while if that fails. It is false if the counts are closed meanwhile. When Redis is back, it
// is told of all slots: it may have forgotten them.
func (c *Counts) send(updates []Update) bool {
	t := &c.teller
	err := t.tell(t.ctx, updates)
	c.tellEnded(updates, err == nil)
	if err != nil {
		t.lost = true
		select {
		case <-time.After(pause):
			return true
		case <-t.ctx.Done():
			return false
		}
	}
	if t.lost {
		t.lost, t.looked = false, time.Time{}
		c.renewAll()
	}
	return t.ctx.Err() == nil
}

// Close tells Redis what has changed, within a context, and ends. Slots that are still held are not renewed any more.
func (c *Counts) Close(ctx context.Context) {
	t := &c.teller
	t.mu.Lock()
	t.done = true
	t.mu.Unlock()
	t.stop()
	t.all.Wait()
	for updates := c.changes(maxUpdates); t.tell != nil && len(updates) > 0; updates = c.changes(maxUpdates) {
		if t.tell(ctx, updates) != nil {
			return
		}
	}
}
