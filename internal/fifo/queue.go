// Package fifo serves callers of the same key one at a time, in order of arrival.
package fifo

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// Queues holds a queue for each key that callers wait for. The zero Queues is empty. A key without callers takes no memory.
type Queues struct {
	mu     sync.Mutex
	queues map[string]*queue // those that are not empty; guarded by mu
}

// queue is the callers of a key. The first one has its turn. Queues.mu guards it.
type queue struct {
	waiting []chan struct{} // each closed when its caller's turn begins
	wake    chan struct{}   // has room for one; whoever has its turn is to look again
	next    time.Time       // when the first one expects what it waits for
}

// ErrFull says that as many callers are in a queue as may be.
var ErrFull = errors.New("the queue is full")

// Join waits for the caller's turn, until a context ends or stop is closed. Unless that is an error, the turn lasts until leave
// is called, which is to be done once; wake tells of [Queues.Wake]. The error is the context's, or nil with a nil leave if stop was
// closed, or [ErrFull] if so many callers are in the queue.
func (q *Queues) Join(ctx context.Context, stop <-chan struct{}, key string, most int) (leave func(), wake <-chan struct{}, err error) {
	turn := make(chan struct{})
	q.mu.Lock()
	if q.queues == nil {
		q.queues = map[string]*queue{}
	}
	of := q.queues[key]
	if of != nil && len(of.waiting) >= most {
		q.mu.Unlock()
		return nil, nil, ErrFull
	}
	if of == nil {
		of = &queue{wake: make(chan struct{}, 1)}
		q.queues[key] = of
		close(turn)
	}
	of.waiting = append(of.waiting, turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return func() { q.leave(key, of, turn) }, of.wake, nil
	default:
	}
	select {
	case <-turn:
		return func() { q.leave(key, of, turn) }, of.wake, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
	}
	q.leave(key, of, turn)
	return nil, nil, err
}

// Expect says when the caller who has its turn expects what it waits for.
func (q *Queues) Expect(key string, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.queues[key]; of != nil {
		of.next = next
	}
}

// Next returns what the caller who has its turn expects; the zero time is not known.
func (q *Queues) Next(key string) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.queues[key]; of != nil {
		return of.next
	}
	return time.Time{}
}

// Wake wakes those who have their turn in the queues whose keys begin so.
func (q *Queues) Wake(prefix string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, of := range q.queues {
		if strings.HasPrefix(key, prefix) {
			of.wakeLocked()
		}
	}
}

// WakeOne wakes whoever has its turn in the queue of a key.
func (q *Queues) WakeOne(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.queues[key]; of != nil {
		of.wakeLocked()
	}
}

// wakeLocked wakes whoever has its turn.
func (of *queue) wakeLocked() {
	select {
	case of.wake <- struct{}{}:
	default:
	}
}

// Empty reports whether nobody waits.
func (q *Queues) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queues) == 0
}

// Len returns how many callers are in the queue of a key.
func (q *Queues) Len(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.queues[key]; of != nil {
		return len(of.waiting)
	}
	return 0
}

// leave removes a caller, and begins the turn of the next one if it was the first.
func (q *Queues) leave(key string, of *queue, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(of.waiting, turn)
	of.waiting = slices.Delete(of.waiting, i, i+1)
	switch {
	case len(of.waiting) == 0:
		delete(q.queues, key)
	case i == 0:
		close(of.waiting[0])
	}
}
