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
	waiting list.List // of *place
	wants   int64     // of all callers
	wake    chan struct{}
	expects Expectation
}

// Expectation is what the caller whose turn it is waits for.
type Expectation struct {
	At       time.Time // when it has that; zero if nobody knows
	Resource int
}

// Caller is one that waits.
type Caller struct {
	Since   time.Time // it stands before those that came later, but for the one whose turn it is
	Until   time.Time // it waits no longer for its turn; zero is for ever
	Wants   int64
	Expects Expectation // of a queue that was empty
}

// place is a caller's place in a queue.
type place struct {
	turn  chan struct{} // closed when its turn begins
	since time.Time
	wants int64
}

// Errors of [Queues.Join], beside its context's.
var (
	ErrFull    = errors.New("the queue is full")
	ErrOver    = errors.New("the turn did not come in time")
	ErrStopped = errors.New("the queue was stopped")
)

// Turn is a caller's turn. It lasts until the caller calls Leave, once.
type Turn struct {
	Wake   <-chan struct{} // receives the calls of [Queues.Wake]
	AtOnce bool            // the queue was empty

	queues  *Queues
	name    Name
	queue   *queue
	element *list.Element
}

// Join waits for the caller's turn. It returns an error if the context or the caller's time ends
// before, if stop is closed, or if most callers are already in the queue.
func (q *Queues) Join(ctx context.Context, stop <-chan struct{}, name Name, most int, c Caller) (*Turn, error) {
	own := &place{make(chan struct{}), c.Since, c.Wants}
	q.mu.Lock()
	l := q.findLocked(name)
	if l != nil && l.waiting.Len() >= most {
		q.mu.Unlock()
		return nil, ErrFull
	}
	t := &Turn{AtOnce: l == nil, queues: q, name: name}
	if t.AtOnce {
		l = q.addLocked(name, c.Expects)
	}
	t.Wake, t.queue, t.element = l.wake, l, l.insertLocked(own)
	q.mu.Unlock()
	if t.AtOnce {
		return t, nil
	}
	if err := own.wait(ctx, stop, c.Until); err != nil {
		t.Leave()
		return nil, err
	}
	return t, nil
}

// wait returns when the caller's turn has begun, or an error if it goes before.
func (p *place) wait(ctx context.Context, stop <-chan struct{}, until time.Time) error {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return ErrStopped
	case <-over:
		return ErrOver
	}
}

// insertLocked adds a caller behind those that came before it, and behind the first.
func (l *queue) insertLocked(p *place) *list.Element {
	l.wants += p.wants
	before := l.waiting.Back()
	for before != nil && before.Prev() != nil && p.since.Before(before.Value.(*place).since) {
		before = before.Prev()
	}
	if before == nil {
		return l.waiting.PushBack(p)
	}
	return l.waiting.InsertAfter(p, before)
}

// Expect sets what the caller waits for.
func (t *Turn) Expect(e Expectation) {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	t.queue.expects = e
}

// Leave removes the caller. If it was the first, the next caller's turn begins.
func (t *Turn) Leave() {
	q, l := t.queues, t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	first := l.waiting.Front() == t.element
	l.wants -= l.waiting.Remove(t.element).(*place).wants
	switch {
	case l.waiting.Len() == 0:
		q.removeLocked(t.name)
	case first:
		close(l.waiting.Front().Value.(*place).turn)
	}
}

// Wake wakes the callers whose turn it is in the queues of a key.
func (q *Queues) Wake(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.keys[key] {
		select {
		case l.wake <- struct{}{}:
		default:
		}
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
	line := Line{Callers: l.waiting.Len(), Wants: l.wants, First: first.Value.(*place).wants, Expects: l.expects}
	for e := l.waiting.Back(); e != first && since.Before(e.Value.(*place).since); e = e.Prev() {
		line.Callers--
		line.Wants -= e.Value.(*place).wants
	}
	return line
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
func (q *Queues) addLocked(name Name, e Expectation) *queue {
	if q.keys == nil {
		q.keys = map[string][]*queue{}
	}
	l := &queue{name: name.Of, wake: make(chan struct{}, 1), expects: e}
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
