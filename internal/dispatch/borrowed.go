package dispatch

import (
	"context"
	"sync"
	"time"
)

// Borrowed is a context that has the values of a caller's context, such as the span of its request,
// until the caller calls End.
//
// It ends when the context inside does, not when the caller's does. After a caller has returned,
// its context may be used for something else, as Gin does, so no value is read after End.
//
// Each value is read in a goroutine of its own, with a timer. That costs some 2 µs for a value, and
// nothing where no hook reads one. Nothing simpler keeps the promise, because Value is the
// application's code. It may panic, or wait for a lock that the caller holds until it is answered.
// A hook that called it directly would then wait for ever, in the caller's goroutine or in that of
// a batch with other callers in it. Only a goroutine can be left behind, and only a timer says
// when. A lock around Value would make End wait for it too. Values cannot be copied before, because
// the keys that a hook will read are not known.
type Borrowed struct {
	// Context has no value but its own canceler, if it has one. Value looks there first, and AfterFunc is
	// passed on, so that a context derived from this one needs no goroutine.
	context.Context

	mu     sync.Mutex
	caller context.Context // nil once it has ended
	reads  int             // reads of values that have not returned
	read   chan struct{}   // closed when all reads have returned; nil unless End waits for that
}

// readGrace is how long the application's Value may take. After one that takes longer, no more
// values are read.
const readGrace = 10 * time.Millisecond

// endWaits is how often End waits, each time for a part of EndGrace. If the machine holds the
// process up for longer than that, one of the waits has passed, and the reading goes on during the
// others.
const endWaits = 5

// Borrow returns a context that ends with one context and has the values of another, the caller's.
func Borrow(ends, caller context.Context) *Borrowed { return &Borrowed{Context: ends, caller: caller} }

// Value implements [context.Context].
func (b *Borrowed) Value(key any) any {
	if value := b.Context.Value(key); value != nil || key == cancelerKey {
		return value
	}
	b.mu.Lock()
	caller := b.caller
	if caller == nil {
		b.mu.Unlock()
		return nil
	}
	b.reads++
	b.mu.Unlock()
	done := Isolate(func() (any, error) {
		defer b.hasRead()
		if b.ended() { // a busy machine may run this late
			return nil, nil
		}
		return caller.Value(key), nil
	})
	select {
	case out := <-done:
		return out.Value
	case <-b.Done():
	case <-time.After(readGrace):
		b.mu.Lock() // others wait for this batch too
		b.caller = nil
		b.mu.Unlock()
	}
	return nil
}

// cancelerKey is the key by which package context looks for a context's canceler when it derives another
// one. The batch does not end by the caller's canceler, and the caller's Value is the application's code.
var cancelerKey = func() any {
	parent := &keyCatcher{Context: context.Background(), done: make(chan struct{})}
	_, cancel := context.WithCancel(parent)
	cancel()
	return parent.key
}()

// keyCatcher is a context that notes the key that it is asked for.
type keyCatcher struct {
	context.Context
	done chan struct{}
	key  any
}

// Done implements [context.Context].
func (c *keyCatcher) Done() <-chan struct{} { return c.done }

// Value implements [context.Context].
func (c *keyCatcher) Value(key any) any {
	c.key = key
	return nil
}

// AfterFunc calls f in a goroutine of its own once the context has ended, unless stop is called before.
func (b *Borrowed) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.Context, f) }

func (b *Borrowed) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caller == nil
}

func (b *Borrowed) hasRead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads--; b.reads == 0 && b.read != nil {
		close(b.read)
	}
}

// End stops the reading of values. It waits for values that are being read, but no longer than
// EndGrace, because the application's Value may never return. The caller calls End before it
// returns.
func (b *Borrowed) End() {
	b.mu.Lock()
	b.caller = nil
	if b.reads == 0 {
		b.mu.Unlock()
		return
	}
	read := make(chan struct{})
	b.read = read
	b.mu.Unlock()
	for range endWaits {
		select {
		case <-read:
			return
		case <-time.After(EndGrace / endWaits):
		}
	}
}
