package engine

import (
	"sync"
	"sync/atomic"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// Abandoned is a slot whose holder was collected, so that nobody can release it, and what logs that.
type Abandoned struct {
	Charge Charge
	Log    func()
}

// abandoned are the slots that are still to be released.
type abandoned struct {
	n   atomic.Int64 // how many
	mu  sync.Mutex   // guards all
	all []Abandoned
}

// Abandon has slots released: before the next decision on slots, or with the next report of them to Redis, which
// comes every second. It is for [runtime.AddCleanup]. A cleanup runs outside of the bubble of testing/synctest to
// which a channel or a timer may belong, which it must not touch then, so this only notes the slots.
func (e *Engine) Abandon(slots []Abandoned) {
	a := &e.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, slots...)
	a.n.Store(int64(len(a.all)))
}

// releaseAbandoned releases the slots that were abandoned.
func (e *Engine) releaseAbandoned() {
	a := &e.abandoned
	if a.n.Load() == 0 {
		return
	}
	a.mu.Lock()
	all := a.all
	a.all = nil
	a.n.Store(0)
	a.mu.Unlock()
	for i := range all {
		e.Release(&all[i].Charge)
		goroutine.Isolate(func() (struct{}, error) { all[i].Log(); return struct{}{}, nil }) // a log handler may wait
	}
}
