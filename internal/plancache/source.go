package plancache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// places bounds how many do something at a time.
type places chan struct{}

// take waits until a place is free, and reports whether it got one.
func (p places) take(patience time.Duration) bool {
	select {
	case p <- struct{}{}:
		return true
	case <-time.After(patience):
		return false
	}
}

// leave frees a place.
func (p places) leave() { <-p }

// ask returns the answer of the source. It waits no longer than a second after the source's context
// has ended. A question that takes longer keeps its place until the source returns.
func (c *Cache[T]) ask(client string) (plan[T], error) {
	late, cancel := context.WithTimeout(context.Background(), sourceTimeout+recheck) // an answer that is there counts
	defer cancel()
	return dispatch.Bounded(late, 0, func() (plan[T], error) {
		defer c.questions.leave()
		ctx, end := context.WithTimeout(late, sourceTimeout)
		defer end()
		value, err := c.config.Source(ctx, client)
		if errors.Is(err, c.config.Unknown) {
			return plan[T]{err: c.config.Unknown}, nil
		}
		return plan[T]{value: value}, err
	})
}

// fallback returns the newer of two old plans for a second more, or the error if none serves.
func (c *Cache[T]) fallback(err error, known, kept *plan[T]) *plan[T] {
	now, old, next := time.Now(), known, &plan[T]{err: c.config.Failed(err)}
	if kept.ends.After(known.ends) {
		old = kept
	}
	switch {
	case old.serves(now):
		next = old.goBy(now, old.ends.Add(rest))
	case err != errBusy: // the next request waits for a place of its own
		next.until = now.Add(recheck)
	}
	next.ahead, next.invalid = known.ahead, known.invalid
	return next
}

// health is what the log says of the source. It never has a text that the source has put into an
// error.
type health struct {
	log      *slog.Logger
	failures redisstore.Throttle       // of lines that say that the source fails
	failing  atomic.Pointer[time.Time] // the last failure since such a line; nil once the log says that the source answers
}

// note writes a line when the source fails, at most once a minute, and then one when it has not
// failed for a second.
func (h *health) note(err error, took time.Duration, reason func(error) string) {
	last, now, line := h.failing.Load(), time.Now(), func() {}
	switch {
	case err != nil && h.failures.Allow():
		h.failing.Store(&now)
		text := reasonOf(err, took, reason)
		line = func() { h.log.Warn("ginlimit: the source of plans fails; old plans serve", "reason", text) }
	case err != nil && last != nil:
		h.failing.CompareAndSwap(last, &now)
	case last != nil && now.Sub(*last) >= recheck && h.failing.CompareAndSwap(last, nil):
		line = func() { h.log.Info("ginlimit: the source of plans answers again") }
	}
	<-dispatch.Isolate(func() (any, error) { line(); return nil, nil }) // a log handler may panic too
}

// reasonOf returns what the log says of a failure.
func reasonOf(err error, took time.Duration, reason func(error) string) string {
	if err == dispatch.ErrPanic || err == dispatch.ErrGoexit {
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
