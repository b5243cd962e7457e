// Package fifo serves callers of the same key one at a time, in order of arrival.
package fifo

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Name is what the callers of a queue wait for.
type Name struct {
	Key string // whose queues are woken together; a key has few
	Of  string // which of them it is
}

// Queues holds a queue for each name that callers wait for. The zero Queues is empty. A name
// without callers takes no memory.
//
// A call takes time for the queues of its key alone, however many callers wait in them and for
// other keys.
type Queues struct {
	mu   sync.Mutex
	keys map[string][]*queue // the queues of each key that are not empty; guarded by mu
}

// queue is the callers of a name. The first one has its turn. Queues.mu guards it.
type queue struct {
	of      string
	waiting list.List     // of chan struct{}, each closed when its caller's turn begins
	wake    chan struct{} // has room for one; whoever has its turn is to look again
	next    time.Time     // when the first one expects what it waits for
}

// ErrFull says that as many callers are in a queue as may be.
var ErrFull = errors.New("the queue is full")

// Join waits for the caller's turn, until a context ends or stop is closed. Unless that is an
// error, the turn lasts until leave is called, which is to be done once; wake tells of
// [Queues.Wake]. The error is the context's, or nil with a nil leave if stop was closed, or
// [ErrFull] if so many callers are in the queue.
func (q *Queues) Join(ctx context.Context, stop <-chan struct{}, name Name, most int) (leave func(), wake <-chan struct{}, err error) {
	turn := make(chan struct{})
	q.mu.Lock()
	of := q.findLocked(name)
	if of != nil && of.waiting.Len() >= most {
		q.mu.Unlock()
		return nil, nil, ErrFull
	}
	if of == nil {
		of = q.addLocked(name)
		close(turn)
	}
	place := of.waiting.PushBack(turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return func() { q.leave(name, of, place) }, of.wake, nil
	default:
	}
	select {
	case <-turn:
		return func() { q.leave(name, of, place) }, of.wake, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
	}
	q.leave(name, of, place)
	return nil, nil, err
}

// Expect says when the caller who has its turn expects what it waits for.
func (q *Queues) Expect(name Name, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.findLocked(name); of != nil {
		of.next = next
	}
}

// Next returns what the caller who has its turn expects; the zero time is not known.
func (q *Queues) Next(name Name) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.findLocked(name); of != nil {
		return of.next
	}
	return time.Time{}
}

// Wake wakes those who have their turn in the queues of a key.
func (q *Queues) Wake(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, of := range q.keys[key] {
		of.wakeLocked()
	}
}

// WakeOne wakes whoever has its turn in the queue of a name.
func (q *Queues) WakeOne(name Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.findLocked(name); of != nil {
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
	return len(q.keys) == 0
}

// Len returns how many callers are in the queue of a name.
func (q *Queues) Len(name Name) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.findLocked(name); of != nil {
		return of.waiting.Len()
	}
	return 0
}

// leave removes a caller, and begins the turn of the next one if it was the first.
func (q *Queues) leave(name Name, of *queue, place *list.Element) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := of.waiting.Front() == place
	of.waiting.Remove(place)
	switch {
	case of.waiting.Len() == 0:
		q.removeLocked(name)
	case first:
		close(of.waiting.Front().Value.(chan struct{}))
	}
}

// findLocked returns the queue of a name, or nil if nobody is in it.
func (q *Queues) findLocked(name Name) *queue {
	for _, of := range q.keys[name.Key] {
		if of.of == name.Of {
			return of
		}
	}
	return nil
}

// addLocked adds the queue of a name that has none.
func (q *Queues) addLocked(name Name) *queue {
	if q.keys == nil {
		q.keys = map[string][]*queue{}
	}
	of := &queue{of: name.Of, wake: make(chan struct{}, 1)}
	q.keys[name.Key] = append(q.keys[name.Key], of)
	return of
}

// removeLocked removes the queue of a name.
func (q *Queues) removeLocked(name Name) {
	left := slices.DeleteFunc(q.keys[name.Key], func(of *queue) bool { return of.of == name.Of })
	if len(left) == 0 {
		delete(q.keys, name.Key)
		return
	}
	q.keys[name.Key] = left
}
