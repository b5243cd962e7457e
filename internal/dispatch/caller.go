package dispatch

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// caller is who waits for the answer to a call, and leaves without it if a context ends. Only the
// caller's goroutine uses abandoned and late, within [Dispatcher.Do] and after it.
type caller struct {
	ends      [2]context.Context  // when it leaves: its own context, and the timeout
	done      chan struct{}       // has room for the one answer
	err       error               // of the answer
	borrowed  *goroutine.Borrowed // the context of a batch that has its values, or nil
	abandoned bool                // Do returned without an answer that may still come
	late      bool                // that answer comes
}

// wait waits for the answer and returns its error, or why the caller leaves before.
func (c *caller) wait() (answered bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-c.ends[0].Done():
		return false, c.ends[0].Err()
	case <-c.ends[1].Done():
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
func (c *caller) leaves() bool { return c.ends[0].Err() != nil || c.ends[1].Err() != nil }

// endBorrowed ends the reading of the caller's values, before the caller returns.
func (c *caller) endBorrowed() {
	if c.borrowed != nil {
		c.borrowed.End()
		c.borrowed = nil
	}
}
