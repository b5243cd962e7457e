package goroutine

import (
	"context"
	"sync"
	"time"
)

// Background is work that Close must wait for: decisions that may have to give back, and calls that
// go on after their caller has left. The zero Background has none.
type Background struct {
	mu     sync.Mutex // guards closed
	closed bool
	all    sync.WaitGroup
	stuck  Stuck // of the contexts that it borrows
}

// Begin notes the beginning of work, which ends with Done. It is false once Close has begun.
func (b *Background) Begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.all.Add(1)
	return true
}

// Done notes the end of work.
func (b *Background) Done() { b.all.Done() }

// Go calls f in another goroutine. Work that calls it must have begun.
func (b *Background) Go(f func()) { b.all.Go(f) }

// Close returns when all work has ended, or after a timeout, because a hook of the client may hang.
func (b *Background) Close(timeout time.Duration) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	Wait(&b.all, timeout)
}

// Borrow is [Borrow] for work that is waited for.
func (b *Background) Borrow(ends, caller context.Context) *Borrowed {
	return Borrow(ends, caller, &b.stuck)
}

// Wait waits until all are done, but no longer than a timeout.
func Wait(all *sync.WaitGroup, timeout time.Duration) {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(timeout):
	}
}

// Detached calls f within a timeout of its own. It returns early, with the error of ctx, if that ends; f
// continues in the background, and Close waits for it. Until Detached returns, f has the values of ctx. Work
// that calls it must have begun.
func (b *Background) Detached(ctx context.Context, timeout time.Duration, f func(context.Context)) error {
	b.all.Add(1)
	within, cancel := context.WithTimeout(context.Background(), timeout)
	borrowed := b.Borrow(within, ctx)
	defer borrowed.End()
	_, err := Bounded(ctx, 0, func() (struct{}, error) {
		defer b.all.Done()
		defer cancel()
		f(borrowed)
		return struct{}{}, nil
	})
	return err
}
