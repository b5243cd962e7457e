package goroutine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// valueTime is how long the values of a caller's context may take together. They are usually there at once.
	valueTime = 10 * time.Millisecond
	// maxStuckValues is how many values of one owner's contexts may take longer. Each has a goroutine.
	maxStuckValues = 64
)

// Stuck counts the goroutines that wait for a value that took too long, of the contexts that one owner borrows.
type Stuck struct{ n atomic.Int64 }

// Borrowed is a context that has the values of a caller's context, such as the span of its request,
// until the caller calls End. It ends when the context inside does, not when the caller's does.
//
// A batch may outlive its caller, whose context may then be used for something else: a *gin.Context
// serves another request. So no value is read after End. A context's Value is the application's code,
// which may wait, even for the caller, or panic. So it runs in a goroutine of its own, and neither the
// batch nor End waits for all values together longer than valueTime. After that the context has no values.
type Borrowed struct {
	context.Context // has no values

	stuck  *Stuck
	mu     sync.Mutex
	caller context.Context // nil once it has ended
	values *values         // nil until one is read
}

// values are the readings of a context's values.
type values struct {
	reads int           // that End waits for
	idle  chan struct{} // is closed when there are none; nil if End does not wait
	since time.Time     // when the first of them began
	spent time.Duration // on those before
}

// reading is one reading of a value. The mutex of its context guards begun, over and stuck.
type reading struct {
	begun, over, stuck bool
	left               time.Duration // that it may take
	done               chan any      // has room for the value
}

// Borrow returns a context that ends with one context and has the values of another, the caller's.
func Borrow(ends, caller context.Context, stuck *Stuck) *Borrowed {
	return &Borrowed{Context: ends, caller: caller, stuck: stuck}
}

// Lender makes contexts that are borrowed often, some at once. It has no lock of its own.
type Lender struct {
	stuck Stuck
	spare []Borrowed
}

// lentAtOnce is how many contexts a Lender allocates at once.
const lentAtOnce = 16

// Lend returns a context with the values of a caller's. Whoever uses it sets its Context first. No context is lent
// twice, because a hook of the client may keep it.
func (l *Lender) Lend(caller context.Context) *Borrowed {
	if len(l.spare) == 0 {
		l.spare = make([]Borrowed, lentAtOnce)
	}
	b := &l.spare[0]
	b.caller, b.stuck, l.spare = caller, &l.stuck, l.spare[1:]
	return b
}

// Value implements [context.Context].
func (b *Borrowed) Value(key any) any {
	r := b.begin()
	if r == nil {
		return nil
	}
	go b.read(key, r)
	late := time.NewTimer(r.left)
	defer late.Stop()
	select {
	case value := <-r.done:
		return value
	case <-late.C:
		b.giveUp(r)
		return nil
	}
}

// begin returns a new reading, or nil if there are no values any more.
func (b *Borrowed) begin() *reading {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.caller == nil || b.stuck.n.Load() >= maxStuckValues {
		return nil
	}
	if b.values == nil {
		b.values = new(values)
	}
	v, now := b.values, time.Now()
	if v.reads == 0 {
		v.since = now
	}
	left := valueTime - v.spent - now.Sub(v.since)
	if left <= 0 {
		return nil
	}
	v.reads++
	return &reading{left: left, done: make(chan any, 1)}
}

// read reads a value, unless the context has ended.
func (b *Borrowed) read(key any, r *reading) {
	var value any
	defer func() { // Value may panic, or end the goroutine
		_ = recover()
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.stuck {
			b.stuck.n.Add(-1)
		}
		b.readLocked(r)
		r.done <- value
	}()
	b.mu.Lock()
	caller := b.caller
	r.begun = caller != nil
	b.mu.Unlock()
	if r.begun {
		value = caller.Value(key)
	}
}

// readLocked notes that nobody need wait for a reading any more.
func (b *Borrowed) readLocked(r *reading) {
	if r.over {
		return
	}
	r.over = true
	v := b.values
	if v.reads--; v.reads > 0 {
		return
	}
	if v.spent += time.Since(v.since); v.idle != nil {
		close(v.idle)
		v.idle = nil
	}
}

// giveUp stops waiting for a value.
func (b *Borrowed) giveUp(r *reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.caller = nil
	if r.begun && !r.over {
		r.stuck = true
		b.stuck.n.Add(1)
	}
	b.readLocked(r)
}

// AfterFunc calls f in a goroutine of its own once the context has ended, unless stop is called before.
// Package context calls it for contexts that are derived from this one, and so needs no goroutine.
func (b *Borrowed) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.Context, f) }

// End stops the reading of values. The caller calls it before it returns.
func (b *Borrowed) End() {
	b.mu.Lock()
	b.caller = nil
	v := b.values
	if v == nil || v.reads == 0 {
		b.mu.Unlock()
		return
	}
	if v.idle == nil {
		v.idle = make(chan struct{})
	}
	idle := v.idle
	b.mu.Unlock()
	<-idle // no longer than valueTime: then who reads gives up
}
