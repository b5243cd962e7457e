package dispatch

import (
	"runtime"
	"sync"
	"time"
)

// Together calls f, a function of the application, with 0 to n-1, and returns when each call has ended. It makes one
// call after another, in the caller's goroutine, until they take longer than soon: then it makes all that are left at
// the same time, each in a goroutine of its own. So what is known at once costs no goroutine.
//
// If f returns false, the calls after it do not count, and are not begun if that is possible. What is the first to panic
// in order, or to end its goroutine, does so in the caller's.
func Together(n int, soon time.Duration, f func(i int) (more bool)) {
	t := &together{f: f, n: n, ends: make([]end, n)}
	timer := time.AfterFunc(soon, t.spread)
	func() {
		defer func() { // f may panic
			timer.Stop()
			t.stop()
			t.others.Wait()
		}()
		for i, ok := t.claim(); ok; i, ok = t.claim() {
			if t.ends[i].last = !f(i); t.ends[i].last {
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
	f      func(i int) (more bool)
	n      int
	ends   []end // of each call, by whom it is made
	others sync.WaitGroup

	mu    sync.Mutex // guards begun
	begun int
}

// end is how a call has ended.
type end struct {
	last     bool // the calls after it do not count
	panicked any  // nil if it did not
	exited   bool // its goroutine has ended
}

// claim returns the next call, if there is one left.
func (t *together) claim() (i int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun >= t.n {
		return 0, false
	}
	t.begun++
	return t.begun - 1, true
}

// stop begins no call any more.
func (t *together) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = t.n
}

// spread makes the calls that are left.
func (t *together) spread() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; t.begun < t.n; t.begun++ {
		t.others.Add(1)
		go t.call(t.begun)
	}
}

// call makes a call, and keeps how it ends.
func (t *together) call(i int) {
	defer t.others.Done()
	end := &t.ends[i]
	end.exited = true
	defer func() {
		if end.exited {
			end.panicked = recover()
		}
	}()
	end.last = !t.f(i)
	end.exited = false
}

// repeat has the caller's goroutine end as that of a call did.
func (e *end) repeat() {
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case e.exited:
		runtime.Goexit()
	}
}
