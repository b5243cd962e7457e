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

// Name names a queue.
type Name struct {
	Key string // its queues are woken together; a key has few
	Of  string // distinguishes the queues of a key
}

// Queues holds a queue for each name that callers wait for. The zero Queues is empty. A name
// without callers takes no memory.
//
// The cost of a call depends only on the number of queues of its key.
type Queues struct {
	mu   sync.Mutex
	keys map[string][]*queue // the nonempty queues of each key; guarded by mu
}

// queue holds the callers of a name. It is the first caller's turn. Queues.mu guards it.
type queue struct {
	name    string
	waiting list.List     // of *caller
	wake    chan struct{} // buffered; wakes the caller whose turn it is
	next    time.Time     // set by Expect
}

// caller is one that waits.
type caller struct {
	turn  chan struct{} // closed when its turn begins
	since time.Time
	wants int64
}

// ErrFull means that the queue has no place left.
var ErrFull = errors.New("the queue is full")

// Join waits for the caller's turn. The turn lasts until the caller calls leave, once; wake
// receives the calls of [Queues.Wake]. Join returns early with the context's error, with a nil
// error and a nil leave if stop is closed, or with [ErrFull] if maxLen callers are already in the
// queue.
func (q *Queues) Join(ctx context.Context, stop <-chan struct{}, name Name, maxLen int) (leave func(),
	wake <-chan struct{}, err error) {
	return q.JoinAt(ctx, stop, name, maxLen, time.Now(), 1)
}

// JoinAt is Join of a caller that has waited elsewhere since a time, and wants so much: it stands
// before those that came later, but for the one whose turn it is.
func (q *Queues) JoinAt(ctx context.Context, stop <-chan struct{}, name Name, maxLen int, since time.Time,
	wants int64) (leave func(), wake <-chan struct{}, err error) {
	turn := make(chan struct{})
	q.mu.Lock()
	l := q.findLocked(name)
	if l != nil && l.waiting.Len() >= maxLen {
		q.mu.Unlock()
		return nil, nil, ErrFull
	}
	if l == nil {
		l = q.addLocked(name)
		close(turn)
	}
	element := l.insertLocked(&caller{turn, since, wants})
	q.mu.Unlock()
	select {
	case <-turn:
		return func() { q.leave(name, l, element) }, l.wake, nil
	default:
	}
	select {
	case <-turn:
		return func() { q.leave(name, l, element) }, l.wake, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
	}
	q.leave(name, l, element)
	return nil, nil, err
}

// insertLocked adds a caller behind those that came before it, and behind the first.
func (l *queue) insertLocked(c *caller) *list.Element {
	before := l.waiting.Back()
	for before != nil && before.Prev() != nil && c.since.Before(before.Value.(*caller).since) {
		before = before.Prev()
	}
	if before == nil {
		return l.waiting.PushBack(c)
	}
	return l.waiting.InsertAfter(c, before)
}

// Expect sets when the caller whose turn it is expects what it waits for.
func (q *Queues) Expect(name Name, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.findLocked(name); l != nil {
		l.next = next
	}
}

// Next returns the time set by Expect, or the zero time.
func (q *Queues) Next(name Name) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.findLocked(name); l != nil {
		return l.next
	}
	return time.Time{}
}

// Wake wakes the callers whose turn it is in the queues of a key.
func (q *Queues) Wake(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.keys[key] {
		l.wakeLocked()
	}
}

// WakeOne wakes the caller whose turn it is in one queue.
func (q *Queues) WakeOne(name Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.findLocked(name); l != nil {
		l.wakeLocked()
	}
}

// wakeLocked wakes the caller whose turn it is.
func (l *queue) wakeLocked() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Empty reports whether all queues are empty.
func (q *Queues) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys) == 0
}

// Before returns how many callers of a queue stand before one that has waited since a time, and how
// much they want together.
func (q *Queues) Before(name Name, since time.Time) (callers int, want int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.findLocked(name)
	if l == nil {
		return 0, 0
	}
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*caller); e.Prev() == nil || !since.Before(c.since) {
			callers, want = callers+1, want+c.wants
		}
	}
	return callers, want
}

// Len returns the number of callers in a queue.
func (q *Queues) Len(name Name) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.findLocked(name); l != nil {
		return l.waiting.Len()
	}
	return 0
}

// leave removes a caller. If it was the first, the next caller's turn begins.
func (q *Queues) leave(name Name, l *queue, element *list.Element) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := l.waiting.Front() == element
	l.waiting.Remove(element)
	switch {
	case l.waiting.Len() == 0:
		q.removeLocked(name)
	case first:
		close(l.waiting.Front().Value.(*caller).turn)
	}
}

// findLocked returns the queue of a name, or nil if it is empty.
func (q *Queues) findLocked(name Name) *queue {
	for _, l := range q.keys[name.Key] {
		if l.name == name.Of {
			return l
		}
	}
	return nil
}

// addLocked adds a queue.
func (q *Queues) addLocked(name Name) *queue {
	if q.keys == nil {
		q.keys = map[string][]*queue{}
	}
	l := &queue{name: name.Of, wake: make(chan struct{}, 1)}
	q.keys[name.Key] = append(q.keys[name.Key], l)
	return l
}

// removeLocked removes a queue.
func (q *Queues) removeLocked(name Name) {
	rest := slices.DeleteFunc(q.keys[name.Key], func(l *queue) bool { return l.name == name.Of })
	if len(rest) == 0 {
		delete(q.keys, name.Key)
		return
	}
	q.keys[name.Key] = rest
}
