// Package upkeep is what a limiter does in the background for as long as it decides, again and again: it reads
// what operators change, and publishes what it serves.
//
// It owns when that is done. It never knows what it is, nor makes a request wait.
package upkeep

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

const (
	// Soon is after how long a task does what is new, so that it is known everywhere within a second.
	Soon = 700 * time.Millisecond
	// deniedRetry is how long after Redis has denied a right a task is tried again.
	deniedRetry = 10 * time.Minute
	// rest is how long after the last decision nothing is done any more.
	rest = 24 * time.Hour
	// callTimeout is how long a task may take.
	callTimeout = 5 * time.Second
	// maxCalls is how many tasks may hang, as a hook of the client does.
	maxCalls = 8
)

// Config is what upkeep is made of.
type Config struct {
	// Failed is told that a task has failed.
	Failed func(err error)
	// Denied reports whether an error is that Redis denies a right. Until an operator grants it, trying again is
	// of no use.
	Denied func(err error) bool
}

// Upkeep does tasks. It does nothing before the first decision, and nothing any more a day after the last one. A
// nil Upkeep has none.
type Upkeep struct {
	Config
	used  atomic.Bool // by a decision, since a task was done
	ended atomic.Bool
	calls atomic.Int32 // of tasks, that have not ended

	mu       sync.Mutex // guards the fields below, and those of tasks
	lastUsed time.Time
	tasks    []*Task
}

// Task is done again and again.
type Task struct {
	Do    func(context.Context) error
	First time.Duration // after which it is done after a decision
	Every time.Duration // after it was done
	Retry time.Duration // after it has failed

	timer *time.Timer // nil while it rests
	busy  bool        // it is being done
	soon  bool        // it is to be done again soon
}

// New returns upkeep without tasks.
func New(c Config) *Upkeep { return &Upkeep{Config: c} }

// Add adds a task. The next decision begins it.
func (u *Upkeep) Add(t *Task) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tasks = append(u.tasks, t)
	u.used.Store(false)
}

// Hurry has a task done soon.
func (u *Upkeep) Hurry(t *Task) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.soon = true; t.timer != nil && !t.busy {
		t.timer.Reset(Soon)
	}
}

// End ends all tasks.
func (u *Upkeep) End() {
	if u != nil {
		u.ended.Store(true)
	}
}

// Use notes a decision, and begins the tasks that rest.
func (u *Upkeep) Use() {
	if u != nil && !u.used.Load() {
		u.use()
	}
}

func (u *Upkeep) use() {
	u.used.Store(true)
	if u.ended.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range u.tasks {
		if t.timer == nil {
			t.timer = time.AfterFunc(t.First, func() { u.again(t) })
		}
	}
}

// again does a task now, and again later.
func (u *Upkeep) again(t *Task) {
	if !u.begin(t) {
		return
	}
	err := u.bounded(t.Do)
	u.mu.Lock()
	defer u.mu.Unlock()
	next := t.Every
	switch t.busy = false; {
	case err != nil && u.Denied(err):
		next = deniedRetry
	case t.soon: // since
		next = Soon
	case err != nil:
		next = t.Retry
	}
	t.timer.Reset(next)
}

// begin reports whether a task is to be done now.
func (u *Upkeep) begin(t *Task) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.busy || t.timer == nil {
		return false
	}
	now := time.Now()
	if u.used.Swap(false) || u.lastUsed.IsZero() {
		u.lastUsed = now
	}
	if u.ended.Load() || now.Sub(u.lastUsed) >= rest {
		t.timer = nil
		return false
	}
	t.busy, t.soon = true, false
	return true
}

// bounded calls a task, in the time that it may take, and reports its error. If the client's Dialer hangs, the
// call goes on by itself.
func (u *Upkeep) bounded(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err := goroutine.Bounded(ctx, 0, func() (struct{}, error) {
		defer u.calls.Add(-1)
		if u.calls.Add(1) > maxCalls {
			return struct{}{}, dispatch.ErrLate
		}
		return struct{}{}, f(ctx)
	})
	if err != nil && !u.ended.Load() {
		u.Failed(err)
	}
	return err
}
