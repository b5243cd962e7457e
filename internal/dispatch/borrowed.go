package dispatch

import (
	"context"
	"sync"
)

// Borrowed is a context that has the values of a caller's context, such as the span of its request,
// until the caller calls End. It ends when the context inside does, not when the caller's does.
//
// A batch may outlive its caller, whose context may then be used for something else: a *gin.Context
// serves another request. So no value is read after End.
type Borrowed struct {
	context.Context // has no values

	mu     sync.RWMutex
	caller context.Context // nil once it has ended
}

// Borrow returns a context that ends with one context and has the values of another, the caller's.
func Borrow(ends, caller context.Context) *Borrowed { return &Borrowed{Context: ends, caller: caller} }

// Value implements [context.Context].
func (b *Borrowed) Value(key any) any {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.caller == nil {
		return nil
	}
	return b.caller.Value(key)
}

// AfterFunc calls f in a goroutine of its own once the context has ended, unless stop is called before.
// Package context calls it for contexts that are derived from this one, and so needs no goroutine.
func (b *Borrowed) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.Context, f) }

// End stops the reading of values. The caller calls it before it returns.
func (b *Borrowed) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.caller = nil
}
