// Package fifo keeps callers of the same key in order of arrival, and wakes the first of them.
//
// It owns the queues, and what the first caller of each expects. It never waits itself: it knows neither for how
// long its callers wait nor for what.
package fifo

import (
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
// A call takes a time that grows with the number of queues of its key, and with the logarithm of the callers in one.
type Queues struct {
	mu   sync.Mutex
	keys map[string][]*queue // the nonempty queues of each key; guarded by mu
}

// queue holds the callers of a name. Queues.mu guards it.
type queue struct {
	name    Name
	first   *Turn  // whose turn it is
	waiting order  // the others
	joined  uint64 // callers, ever
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

	since  time.Time
	wants  int64
	queues *Queues
	queue  *queue
	node
}

// Join adds a caller to a queue.
func (q *Queues) Join(name Name, c Caller) *Turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.findLocked(name)
	t := &Turn{AtOnce: l == nil, Wake: make(chan struct{}, 1), since: c.Since, wants: c.Wants, queues: q}
	if l == nil {
		l = &queue{name: name, expects: c.Expects, first: t}
		if q.keys == nil {
			q.keys = map[string][]*queue{}
		}
		q.keys[name.Key] = append(q.keys[name.Key], l)
	} else {
		l.joined++
		t.number = l.joined
		l.waiting.add(t)
	}
	t.queue = l
	return t
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
	if l.first != t {
		l.waiting.remove(t)
		return
	}
	if l.first = l.waiting.first(); l.first == nil {
		q.removeLocked(l)
		return
	}
	l.waiting.remove(l.first)
	l.wakeLocked()
}

// Wake wakes the first callers of the queues of a key.
func (q *Queues) Wake(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.keys[key] {
		l.wakeLocked()
	}
}

// WakeAll wakes the first callers of all queues.
func (q *Queues) WakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, queues := range q.keys {
		for _, l := range queues {
			l.wakeLocked()
		}
	}
}

// wakeLocked wakes the first caller. One that has not noticed yet is not woken twice.
func (l *queue) wakeLocked() {
	select {
	case l.first.Wake <- struct{}{}:
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
	callers, wants := l.waiting.until(since)
	return Line{Callers: callers + 1, Wants: wants + l.first.wants, First: l.first.wants, Expects: l.expects}
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
