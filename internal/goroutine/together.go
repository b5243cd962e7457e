package goroutine

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Together calls f, a function of the application, with 0 to n-1, and returns when each call has ended. It makes one
// call after another, in the caller's goroutine, until they take longer than soon: then it makes all that are left at
// the same time, each in a goroutine of its own. So what is known at once costs no goroutine.
//
// If f returns false, panics or ends its goroutine, the calls after it do not count: they are not begun if that is
// possible, else their context ends. The first such call in order ends as it would alone: a panic, and the end of a
// goroutine, are the caller's.
func Together(ctx context.Context, n int, soon time.Duration, f func(ctx context.Context, i int) (more bool)) {
	t := &together{ctx: ctx, f: f, n: n, ends: make([]end, n)}
	timer := time.AfterFunc(soon, t.spread)
	func() {
		i := 0
		defer func() { // f may panic
			timer.Stop()
			t.stop(i)
			t.others.Wait()
			for _, end := range t.ends {
				if end.cut != nil {
					end.cut() // it lets all contexts go, as each is derived from the context of the call before
					break
				}
			}
		}()
		for i = t.claim(); i < n; i = t.claim() {
			if t.ends[i].last = !f(ctx, i); t.ends[i].last {
				return
			}
		}
	}()
	for i := range t.ends {
		t.ends[i].repeat()
		if t.ends[i].last {
			return
		}
	}
}

// together is the calls of [Together].
type together struct {
	ctx    context.Context
	f      func(ctx context.Context, i int) (more bool)
	n      int
	ends   []end // of each call, by whom it is made
	others sync.WaitGroup

	mu    sync.Mutex // guards begun, and cut of each end
	begun int
}

// end is how a call has ended.
type end struct {
	last     bool               // the calls after it do not count
	panicked any                // nil if it did not
	exited   bool               // its goroutine has ended
	cut      context.CancelFunc // ends the contexts of those after it; nil if they have none of their own
}

// claim returns the next call, or n if none is left.
func (t *together) claim() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun >= t.n {
		return t.n
	}
	t.begun++
	return t.begun - 1
}

// stop begins no call any more, and cuts those after i short, if i is a call.
func (t *together) stop(i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = t.n
	if i < t.n && t.ends[i].cut != nil {
		t.ends[i].cut()
	}
}

// spread makes the calls that are left. The one before them is the caller's: no call can cut that short.
func (t *together) spread() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ctx := t.ctx; t.begun < t.n; t.begun++ {
		if t.begun > 0 {
			ctx, t.ends[t.begun-1].cut = context.WithCancel(ctx)
		}
		t.others.Add(1)
		go t.call(ctx, t.begun)
	}
}

// call makes a call, and keeps how it ends.
func (t *together) call(ctx context.Context, i int) {
	defer t.others.Done()
	end := &t.ends[i]
	end.exited = true
	defer func() {
		if end.exited {
			end.panicked = recover()
		}
		if end.exited || end.last {
			t.stop(i)
		}
	}()
	end.last = !t.f(ctx, i)
	end.exited = false
}

// repeat ends the caller's goroutine as a call has ended its own.
func (e *end) repeat() {
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case e.exited:
		runtime.Goexit()
	}
}
