package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// closeTimeout is how long Close waits for what is in flight, or a timeout where that is longer.
const closeTimeout = time.Second

// lifetime is the time of a dispatcher from New to Close or Retire. Dispatcher.mu guards ended.
type lifetime struct {
	ctx     context.Context    // of the prober
	stop    context.CancelFunc // ends ctx
	running sync.WaitGroup     // the batches in flight, and the prober
	ended   error              // why no call is taken any more: ErrClosed, or ErrRetired; else nil
}

func (l *lifetime) begin() { l.ctx, l.stop = context.WithCancel(context.Background()) }

// Close fails the queued calls, and returns when no batch is in flight and the prober has ended, or
// after closeTimeout. A call that hangs in the client ends with the client's own timeouts. A ping
// may go on, for as long as the application's Dialer, or go-redis' own for TLS, takes to connect
// after its context has ended.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	if d.life.ended == nil {
		d.life.ended = ErrClosed
	}
	d.life.stop()
	d.queue.fail(ErrClosed)
	d.mu.Unlock()
	goroutine.Wait(&d.life.running, max(closeTimeout, d.timeout.span))
	d.timeout.end()
	d.sending.end()
}

// Retire ends the dispatcher if it is idle, and returns its last figures. If its server is gone for
// good, its prober may still run. A caller that was about to call Do gets [ErrRetired], and nothing is
// sent: another dispatcher must do its call.
func (d *Dispatcher) Retire(gone bool) (last Stats, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.unusedLocked() || d.probing && !gone {
		return Stats{}, false
	}
	d.life.ended = ErrRetired
	d.life.stop()
	return d.stats, true
}

func (d *Dispatcher) unusedLocked() bool { return len(d.queue.calls) == 0 && d.slots.batches() == 0 }
