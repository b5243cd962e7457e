package inflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxUpdates is how many keys are reported at once.
	maxUpdates = 512
	// tick is how often the reporter looks for slots to be reported again.
	tick = Renewal / 4
)

// Report sends updates to Redis, and returns which of them have reached it.
type Report func(ctx context.Context, updates []Update) (reached []bool)

// reporter reports to Redis what has changed, and again what has not. Its goroutine ends when no
// slot is held and nothing has changed.
type reporter struct {
	report  Report        // nil if there is nobody to report to
	changed chan struct{} // has room for one: there are changes
	running atomic.Bool

	// The goroutine's own:
	looked  time.Time // when it was last looked what is to be renewed
	renewed time.Time // when all slots were last reported again, as a server was back
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

func (r *reporter) init(report Report) {
	r.report, r.changed = report, make(chan struct{}, 1)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.sending, r.abandon = context.WithCancel(context.Background())
}

// wake says that there are changes.
func (r *reporter) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// start starts the goroutine unless it runs.
func (c *Counts) start() {
	r := &c.reporter
	if r.report == nil || r.running.Load() || !r.running.CompareAndSwap(false, true) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.all.Go(c.run)
	}
}

func (c *Counts) run() {
	r := &c.reporter
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		var updates []Update
		if now := time.Now(); now.Sub(r.looked) >= tick { // however much has changed
			if updates = c.renewals(now, maxUpdates); len(updates) < maxUpdates {
				r.looked = now
			}
		}
		updates = c.changes(updates, maxUpdates)
		switch {
		case len(updates) > 0:
			c.send(r.sending, updates)
			continue
		case c.Total() == 0 && c.reported() && len(r.changed) == 0:
			if r.running.Store(false); c.Total() == 0 && c.reported() && len(r.changed) == 0 || !r.running.CompareAndSwap(false, true) {
				return
			}
		}
		timer.Reset(time.Until(r.looked.Add(tick)))
		select {
		case <-r.changed:
		case <-timer.C:
		case <-r.ctx.Done():
		}
	}
}

// send sends a report. If the report of one of its keys had failed before, all slots are reported
// again: Redis may have forgotten them.
func (c *Counts) send(ctx context.Context, updates []Update) {
	r := &c.reporter
	sent := time.Now()
	back := c.reportEnded(updates, r.report(ctx, updates), sent)
	if now := time.Now(); back && now.Sub(r.renewed) >= Renewal {
		r.looked, r.renewed = time.Time{}, now
		c.renewAll()
	}
}

// Close reports what has changed, within a context, and ends. Failed reports are tried once more.
// Slots that are still held are not reported any more.
func (c *Counts) Close(ctx context.Context) {
	r := &c.reporter
	r.mu.Lock()
	r.done = true
	r.mu.Unlock()
	r.stop()
	defer r.abandon()
	defer context.AfterFunc(ctx, r.abandon)()
	r.all.Wait()
	c.retryFailed()
	for r.report != nil && ctx.Err() == nil {
		updates := c.changes(nil, maxUpdates)
		if len(updates) == 0 {
			return
		}
		c.send(ctx, updates)
	}
}
