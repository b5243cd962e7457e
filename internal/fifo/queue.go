// Package fifo keeps callers of the same key in order of arrival, and wakes the first of them.
//
// It owns the queues, and what the first caller of each expects. It never waits itself: it knows neither for how
// long its callers wait nor for what.
package fifo

import (
	"container/list"
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

// queue holds the callers of a name. Queues.mu guards it.
type queue struct {
	name    Name
	waiting list.List // of *Turn
	wants   int64     // of all callers
	expects Expectation
}

// Expectation is what the first caller of a queue waits for.
type Expectation struct {
	At       time.Time // when it has that; zero if nobody knows
	Resource int
}

// Caller is one that waits.
type Caller struct {
	Since   time.Time // it stands before those that came later, but for the one whose turn it is
	Wants   int64
	Expects Expectation // of a queue that was empty
}

// Turn is a caller's place in a queue. Its turn has come once it is the first. It lasts until the caller calls
// Leave, once.
type Turn struct {
	AtOnce bool          // the queue was empty
	Wake   chan struct{} // receives when the turn comes, unless that is at once, and then the calls of [Queues.Wake]

	since   time.Time
	wants   int64
	queues  *Queues
	queue   *queue
	element *list.Element
}

// Join adds a caller to a queue. It returns nil if the queue has that many callers at most.
func (q *Queues) Join(name Name, most int, c Caller) *Turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.findLocked(name)
	t := &Turn{AtOnce: l == nil, Wake: make(chan struct{}, 1), since: c.Since, wants: c.Wants, queues: q}
	switch {
	case l == nil:
		l = &queue{name: name, expects: c.Expects}
		if q.keys == nil {
			q.keys = map[string][]*queue{}
		}
		q.keys[name.Key] = append(q.keys[name.Key], l)
	case l.waiting.Len() >= most:
		return nil
	}
	t.queue, t.element = l, l.insertLocked(t)
	return t
}

// insertLocked adds a caller behind those that came before it, and behind the first.
func (l *queue) insertLocked(t *Turn) *list.Element {
	l.wants += t.wants
	before := l.waiting.Back()
	for before != nil && before.Prev() != nil && t.since.Before(before.Value.(*Turn).since) {
		before = before.Prev()
	}
	if before == nil {
		return l.waiting.PushBack(t)
	}
	return l.waiting.InsertAfter(t, before)
}

// Expect sets what the caller waits for, whose turn it is.
func (t *Turn) Expect(e Expectation) {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	t.queue.expects = e
}

// Leave removes the caller. If it was the first, the next caller's turn comes.
func (t *Turn) Leave() {
	q, l := t.queues, t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	first := l.waiting.Front() == t.element
	l.waiting.Remove(t.element)
	l.wants -= t.wants
	switch {
	case l.waiting.Len() == 0:
		q.removeLocked(l)
	case first:
		l.wakeLocked()
	}
}

// Wake wakes the first callers of the queues of a key.
func (q *Queues) Wake(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.keys[key] {
		l.wakeLocked()
	}
}

// wakeLocked wakes the first caller. One that has not noticed yet is not woken twice.
func (l *queue) wakeLocked() {
	select {
	case l.waiting.Front().Value.(*Turn).Wake <- struct{}{}:
	default:
	}
}

// Empty reports whether all queues are empty.
func (q *Queues) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys) == 0
}

// Line is the callers of a queue that stand before another one.
type Line struct {
	Callers int
	Wants   int64 // of all of them
	First   int64 // of the one whose turn it is
	Expects Expectation
}

// Before returns the callers of a queue that stand before one that has waited since a time.
func (q *Queues) Before(name Name, since time.Time) Line {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.findLocked(name)
	if l == nil {
		return Line{}
	}
	first := l.waiting.Front()
	line := Line{Callers: l.waiting.Len(), Wants: l.wants, First: first.Value.(*Turn).wants, Expects: l.expects}
	for e := l.waiting.Back(); e != first && since.Before(e.Value.(*Turn).since); e = e.Prev() {
		line.Callers--
		line.Wants -= e.Value.(*Turn).wants
	}
	return line
}

// findLocked returns the queue of a name, or nil if it is empty.
func (q *Queues) findLocked(name Name) *queue {
	for _, l := range q.keys[name.Key] {
		if l.name == name {
			return l
		}
	}
	return nil
}

// removeLocked removes a queue.
func (q *Queues) removeLocked(l *queue) {
	key := l.name.Key
	q.keys[key] = slices.DeleteFunc(q.keys[key], func(other *queue) bool { return other == l })
	if len(q.keys[key]) == 0 {
		delete(q.keys, key)
	}
}
