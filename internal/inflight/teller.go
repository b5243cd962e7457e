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
	// tick is how often it is looked what is to be renewed, or told again.
	tick = Renewal / 4
)

// Tell tells Redis of updates, and returns of which of them it could.
type Tell func(ctx context.Context, updates []Update) (told []bool)

// teller tells Redis what has changed, and renews what has not. Its goroutine ends when no slot is held and nothing has changed.
type teller struct {
	tell    Tell          // nil if there is nobody to tell
	changed chan struct{} // has room for one: there are changes
	running atomic.Bool

	// The goroutine's own:
	looked  time.Time // when it was last looked what is to be renewed
	renewed time.Time // when all slots were last told again, as a server was back
	from    int       // the shard whose changes come first
	scan    int       // and the one whose renewals do

	ctx     context.Context // of the goroutine
	stop    context.CancelFunc
	sending context.Context // of what it sends, which may take longer
	abandon context.CancelFunc
	mu      sync.Mutex // guards done, and that nothing is added to all once it is set
	done    bool
	all     sync.WaitGroup
}

func (t *teller) init(tell Tell) {
	t.tell, t.changed = tell, make(chan struct{}, 1)
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.sending, t.abandon = context.WithCancel(context.Background())
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
	for t.ctx.Err() == nil {
		var updates []Update
		if now := time.Now(); now.Sub(t.looked) >= tick { // however much has changed
			if updates = c.renewals(now, maxUpdates); len(updates) < maxUpdates {
				t.looked = now
			}
		}
		updates = c.changes(updates, maxUpdates)
		switch {
		case len(updates) > 0:
			c.send(t.sending, updates)
			continue
		case c.Total() == 0 && c.told() && len(t.changed) == 0:
			if t.running.Store(false); c.Total() == 0 && c.told() && len(t.changed) == 0 || !t.running.CompareAndSwap(false, true) {
				return
			}
		}
		timer.Reset(time.Until(t.looked.Add(tick)))
		select {
		case <-t.changed:
		case <-timer.C:
		case <-t.ctx.Done():
		}
	}
}

// send tells Redis. If it could not be told of one of the keys before, all slots are told again: it may have forgotten them.
func (c *Counts) send(ctx context.Context, updates []Update) {
	t := &c.teller
	sent := time.Now()
	back := c.tellEnded(updates, t.tell(ctx, updates), sent)
	if now := time.Now(); back && now.Sub(t.renewed) >= Renewal {
		t.looked, t.renewed = time.Time{}, now
		c.renewAll()
	}
}

// Close tells Redis what has changed, within a context, and ends. What could not be told before is tried once more. Slots that
// are still held are not renewed any more.
func (c *Counts) Close(ctx context.Context) {
	t := &c.teller
	t.mu.Lock()
	t.done = true
	t.mu.Unlock()
	t.stop()
	defer t.abandon()
	defer context.AfterFunc(ctx, t.abandon)()
	t.all.Wait()
	c.retryFailed()
	for t.tell != nil && ctx.Err() == nil {
		updates := c.changes(nil, maxUpdates)
		if len(updates) == 0 {
			return
		}
		c.send(ctx, updates)
	}
}
