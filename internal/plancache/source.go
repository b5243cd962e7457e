package plancache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/throttle"
)

// semaphore bounds concurrency.
type semaphore chan struct{}

// acquire waits at most wait, and reports whether it acquired the semaphore.
func (p semaphore) acquire(wait time.Duration) bool {
	select {
	case p <- struct{}{}:
		return true
	case <-time.After(wait):
		return false
	}
}

// release releases the semaphore.
func (p semaphore) release() { <-p }

// query returns the source's answer. It waits at most a second longer than the source's context. A
// longer query keeps the semaphore until the source returns.
func (c *Cache[T]) query(client string) (plan[T], error) {
	// an answer that comes in this second counts
	late, cancel := context.WithTimeout(context.Background(), sourceTimeout+recheck)
	defer cancel()
	return goroutine.Bounded(late, 0, func() (plan[T], error) {
		defer c.queries.release()
		ctx, end := context.WithTimeout(late, sourceTimeout)
		defer end()
		value, err := c.config.Source(ctx, client)
		if errors.Is(err, c.config.Unknown) {
			return plan[T]{err: c.config.Unknown}, nil
		}
		return plan[T]{value: value}, err
	})
}

// fallback returns the newer of two old plans for another second, or the error if neither is
// usable.
func (c *Cache[T]) fallback(err error, cached, shared *plan[T]) *plan[T] {
	now, old, next := time.Now(), cached, &plan[T]{err: c.config.Failed(err)}
	if shared.ends.After(cached.ends) {
		old = shared
	}
	switch {
	case old.usable(now):
		next = old.usedUntil(now, old.ends.Add(retention))
	case err != errBusy: // the next request waits for its own turn
		next.until = now.Add(recheck)
	}
	next.newer, next.invalid = cached.newer, cached.invalid
	return next
}

// health logs failures of the source. It never logs a text from the source's errors.
type health struct {
	log      *slog.Logger
	failures throttle.Log              // limits the lines about failures
	failing  atomic.Pointer[time.Time] // the last failure since such a line; nil once recovery is logged
}

// record logs a failure, at most once a minute, and then the recovery, once the source has not
// failed for a second.
func (h *health) record(err error, took time.Duration, reason func(error) string) {
	last, now, line := h.failing.Load(), time.Now(), func() {}
	switch {
	case err != nil && h.failures.Allow():
		h.failing.Store(&now)
		text := reasonFor(err, took, reason)
		line = func() { h.log.Warn("ginlimit: the source of plans fails; old plans serve", "reason", text) }
	case err != nil && last != nil:
		h.failing.CompareAndSwap(last, &now)
	case last != nil && now.Sub(*last) >= recheck && h.failing.CompareAndSwap(last, nil):
		line = func() { h.log.Info("ginlimit: the source of plans answers again") }
	}
	<-goroutine.Isolate(func() (any, error) { line(); return nil, nil }) // a log handler may panic too
}

// reasonFor returns the logged reason of a failure.
func reasonFor(err error, took time.Duration, reason func(error) string) string {
	if err == goroutine.ErrPanic || err == goroutine.ErrGoexit {
		return err.Error()
	}
	if text := reason(err); text != "" {
		return text
	}
	if took >= sourceTimeout {
		return "timeout"
	}
	return fmt.Sprintf("%T", err)
}
