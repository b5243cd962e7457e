package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// valueTime is how long a value of a caller's context may take. It is usually there at once.
	valueTime = 10 * time.Millisecond
	// maxStuckValues is how many values of this process may take longer. Each has a goroutine.
	maxStuckValues = 64
)

// stuckValues is how many goroutines of this process wait for a value that took too long.
var stuckValues atomic.Int64

// Borrowed is a context that has the values of a caller's context, such as the span of its request,
// until the caller calls End. It ends when the context inside does, not when the caller's does.
//
// A batch may outlive its caller, whose context may then be used for something else: a *gin.Context
// serves another request. So no value is read after End. A context's Value is the application's code,
// which may wait, even for the caller, or panic. So it runs in a goroutine of its own, and neither the
// batch nor End waits for it longer than valueTime. A context with such a value has no values from then on.
type Borrowed struct {
	context.Context // has no values

	mu     sync.Mutex
	caller context.Context // nil once it has ended
	reads  int             // of values, that End waits for
	idle   chan struct{}   // is closed when there are none; nil if End does not wait
}

// Borrow returns a context that ends with one context and has the values of another, the caller's.
func Borrow(ends, caller context.Context) *Borrowed { return &Borrowed{Context: ends, caller: caller} }

// Value implements [context.Context].
func (b *Borrowed) Value(key any) any {
	b.mu.Lock()
	ended := b.caller == nil
	b.mu.Unlock()
	if ended || stuckValues.Load() >= maxStuckValues {
		return nil
	}
	r := &reading{done: make(chan any, 1)}
	go b.read(key, r)
	late := time.NewTimer(valueTime)
	defer late.Stop()
	select {
	case value := <-r.done:
		return value
	case <-late.C:
		b.giveUp(r)
		return nil
	}
}

// reading is one reading of a value. The mutex of its context guards begun, over and stuck.
type reading struct {
	begun, over, stuck bool
	done               chan any // has room for the value
}

// read reads a value, unless the context has ended.
func (b *Borrowed) read(key any, r *reading) {
	var value any
	defer func() { // Value may panic, or end the goroutine
		_ = recover()
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.over = true; r.stuck {
			stuckValues.Add(-1)
		} else if r.begun {
			b.readLocked()
		}
		r.done <- value
	}()
	b.mu.Lock()
	caller := b.caller
	if r.begun = caller != nil; r.begun {
		b.reads++
	}
	b.mu.Unlock()
	if r.begun {
		value = caller.Value(key)
	}
}

// readLocked notes that End need not wait for a reading any more.
func (b *Borrowed) readLocked() {
	if b.reads--; b.reads == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

// giveUp stops waiting for a value.
func (b *Borrowed) giveUp(r *reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.caller = nil
	if r.begun && !r.over {
		r.stuck = true
		stuckValues.Add(1)
		b.readLocked()
	}
}

// AfterFunc calls f in a goroutine of its own once the context has ended, unless stop is called before.
// Package context calls it for contexts that are derived from this one, and so needs no goroutine.
func (b *Borrowed) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.Context, f) }

// End stops the reading of values. The caller calls it before it returns.
func (b *Borrowed) End() {
	b.mu.Lock()
	b.caller = nil
	if b.reads == 0 {
		b.mu.Unlock()
		return
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	<-idle // no longer than valueTime: then who reads gives up
}
