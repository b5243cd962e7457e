package inflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxUpdates is how many keys one report holds.
	maxUpdates = 512
	// tick is how often the reporter looks for slots to report again.
	tick = Renewal / 4
)

// Report sends updates to Redis, and returns which of them arrived. Nil ends the reports.
type Report func(ctx context.Context, updates []Update) (reached []bool)

// reporter reports changes to Redis, and renews unchanged slots. Its goroutine ends when no slot is
// held and nothing has changed.
type reporter struct {
	report  Report        // nil: nothing is reported
	changed chan struct{} // buffered; there are changes
	running atomic.Bool

	// The goroutine owns these fields.
	scanned      time.Time // the last scan for renewals
	renewed      time.Time // the last renewAll
	changesFrom  int       // the first shard for changes
	renewalsFrom int       // the first shard for renewals
	carried      bool      // attempts report changes; the next scan looks whether they have

	ctx        context.Context // ends the goroutine
	stop       context.CancelFunc
	sending    context.Context // ends reports, later than the goroutine
	abandon    context.CancelFunc
	mu         sync.Mutex // guards closed; goroutines grows only while it is false
	closed     bool
	goroutines sync.WaitGroup
}

func (r *reporter) init(report Report) {
	r.report, r.changed = report, make(chan struct{}, 1)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.sending, r.abandon = context.WithCancel(context.Background())
}

// wake tells the goroutine that there are changes.
func (r *reporter) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// start starts the goroutine unless it is running.
func (c *Counts) start() {
	r := &c.reporter
	if r.report == nil || r.running.Load() || !r.running.CompareAndSwap(false, true) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.goroutines.Go(c.run)
	}
}

func (c *Counts) run() {
	r := &c.reporter
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		var updates []Update
		if now := time.Now(); now.Sub(r.scanned) >= tick { // even if changes keep coming
			if updates = c.renewals(now, maxUpdates); len(updates) < maxUpdates {
				r.scanned = now
			}
		}
		updates = c.changes(updates, maxUpdates)
		switch {
		case len(updates) > 0:
			if !c.send(r.sending, updates) {
				return
			}
			continue
		case !r.carried && c.quiet():
			if r.running.Store(false); c.quiet() || !r.running.CompareAndSwap(false, true) {
				return
			}
		}
		timer.Reset(time.Until(r.scanned.Add(tick)))
		select {
		case <-r.changed:
		case <-timer.C:
		case <-r.ctx.Done():
		}
	}
}

// quiet reports whether no slot is held and nothing is left to report, so that the goroutine may
// end.
func (c *Counts) quiet() bool {
	return c.Total() == 0 && c.lingering.Load() == 0 && len(c.reporter.changed) == 0
}

// send sends a report. If one of its keys recovers from a failed report, all slots are reported
// again: Redis may have forgotten them. It is false if that was the last report.
func (c *Counts) send(ctx context.Context, updates []Update) bool {
	r := &c.reporter
	sent := time.Now()
	reached := r.report(ctx, updates)
	if reached == nil {
		return false
	}
	recovered := c.recordReport(updates, reached, sent)
	if now := time.Now(); recovered && now.Sub(r.renewed) >= Renewal {
		r.scanned, r.renewed = time.Time{}, now
		c.renewAll()
	}
	return true
}

// Close reports the changes, within a context, and stops. It tries failed reports once more. It
// does not wait for held slots.
func (c *Counts) Close(ctx context.Context) {
	r := &c.reporter
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	defer r.abandon()
	defer context.AfterFunc(ctx, r.abandon)()
	r.goroutines.Wait()
	c.listFailed()
	for r.report != nil && ctx.Err() == nil {
		updates := c.changes(nil, maxUpdates)
		if len(updates) == 0 || !c.send(ctx, updates) {
			return
		}
	}
}
