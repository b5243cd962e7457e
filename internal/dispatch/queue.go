package dispatch

import "slices"

const (
	// MaxQueue is how many calls may wait for a batch; further ones fail.
	MaxQueue = 1 << 14
	// A batch takes its share of the queue, from minCalls to maxCalls calls.
	minCalls, maxCalls = 128, 1024
)

// queue holds the calls that wait for a batch, the oldest first. It has no lock of its own: its
// owner, a dispatcher, calls it behind its lock.
type queue struct {
	calls     []*Call
	abandoned int // calls whose callers have left
}

// waiting returns how many callers wait.
func (q *queue) waiting() int { return len(q.calls) - q.abandoned }

// full reports whether n further calls may not wait. It removes abandoned calls if they are many.
func (q *queue) full(n int) bool {
	if len(q.calls)+n > MaxQueue && q.abandoned >= MaxQueue/4 {
		q.abandoned = 0
		q.calls = slices.DeleteFunc(q.calls, func(c *Call) bool { return c.progress == left })
	}
	return len(q.calls)+n > MaxQueue
}

func (q *queue) add(c *Call) {
	c.progress = queued
	q.calls = append(q.calls, c)
}

// abandon notes that the caller of a call has left, if the call is still queued.
func (q *queue) abandon(c *Call) {
	if c.progress == queued {
		c.progress = left
		q.abandoned++
	}
}

// fill moves the oldest calls into an empty batch, whose share is the queue divided by batches. Calls
// whose callers have left, or are about to leave, are dropped.
func (q *queue) fill(b *Batch, batches int) {
	for len(b.calls) == 0 && len(q.calls) > 0 {
		n := min(len(q.calls), max(minCalls, len(q.calls)/batches), maxCalls)
		for _, c := range q.calls[:n] {
			if c.progress == left {
				q.abandoned--
				continue
			}
			if c.progress = taken; c.caller.leaves() {
				c.progress = left
				continue
			}
			b.calls = append(b.calls, c)
		}
		q.calls = slices.Delete(q.calls, 0, n)
	}
}

// fail answers all queued calls with an error.
func (q *queue) fail(err error) {
	for _, c := range q.calls {
		if c.progress == queued {
			c.caller.err = err
			c.caller.done <- struct{}{}
		}
	}
	q.calls, q.abandoned = nil, 0
}
