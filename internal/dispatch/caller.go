package dispatch

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// errEnded stands for the error of a caller's context (see [orErr]).
var errEnded = errors.New("the context has ended")

// caller is who waits for the answer to a call, and leaves without it if a context ends. Only the
// caller's goroutine uses abandoned and late, within [Dispatcher.Do] and after it.
//
// A context of the application may hang or panic. So only the caller's goroutine calls its Deadline, Done and Err,
// without a lock: the first two before the call is queued, and Err once the caller has left.
type caller struct {
	ctx       context.Context     // its own
	deadline  time.Time           // of ctx; zero if there is none
	ended     <-chan struct{}     // is closed when ctx ends
	timedOut  <-chan struct{}     // is closed at the timeout
	done      chan struct{}       // has room for the one answer
	err       error               // of the answer
	borrowed  *goroutine.Borrowed // the context of a batch that has its values, or nil
	abandoned bool                // Do returned without an answer that may still come
	late      bool                // that answer comes
}

// comes notes the context of a caller.
func (c *caller) comes(ctx context.Context) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Time{}
	}
	c.ctx, c.deadline, c.ended = ctx, deadline, ctx.Done()
}

// orErr returns the error of a call, or what it stands for.
func orErr(ctx context.Context, err error) error {
	if err != errEnded {
		return err
	}
	return cmp.Or(ctx.Err(), context.Canceled)
}

// wait waits for the answer and returns its error, or why the caller leaves before.
func (c *caller) wait() (answered bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-c.ended:
		return false, errEnded
	case <-c.timedOut:
		return false, ErrLate
	}
}

// answeredInline returns the error of the answer to a call that this caller has sent itself.
func (c *caller) answeredInline() error {
	<-c.done
	c.abandoned = false
	return c.err
}

// hasAnswer takes the answer if there is one.
func (c *caller) hasAnswer() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// answer hands the outcome to the caller, and with it the call.
func (c *caller) answer(err error) {
	c.err = err
	c.done <- struct{}{}
}

// leaves reports whether the caller is about to leave.
func (c *caller) leaves() bool { return isClosed(c.ended) || isClosed(c.timedOut) }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// forget forgets the contexts.
func (c *caller) forget() { c.ctx, c.ended, c.timedOut = nil, nil, nil }

// endBorrowed ends the reading of the caller's values, before the caller returns.
func (c *caller) endBorrowed() {
	if c.borrowed != nil {
		c.borrowed.End()
		c.borrowed = nil
	}
}
