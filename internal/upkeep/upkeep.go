// Package upkeep is what the limiters of one client and prefix do in the background, once in a process and again and
// again for as long as they decide: read what operators change, and publish what they serve.
//
// It owns when that is done. It never knows what it is.
package upkeep

import (
	"context"
	"slices"
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
	// idle is how long after the last decision tasks are done less often, and rest when nothing is done any more.
	idle, rest = time.Minute, 24 * time.Hour
	// callTimeout is how long a task may take.
	callTimeout = 5 * time.Second
	// maxCalls is how many tasks may hang, as a hook of the client does.
	maxCalls = 8
)

// Config is what upkeep is made of.
type Config struct {
	// Failed is called when a task has failed.
	Failed func(err error)
	// Denied reports whether an error is that Redis denies a right. Until an operator grants it, trying again is
	// of no use.
	Denied func(err error) bool
}

// Upkeep does tasks. It does nothing before the first decision, and nothing any more a day after the last one. A
// nil Upkeep has none.
type Upkeep struct {
	Config
	// Used is true if a call of Use would do nothing: a decision was made since a task was begun, and none waits
	// for a task.
	Used  atomic.Bool
	ended atomic.Bool
	calls atomic.Int32 // of tasks, that have not ended

	mu       sync.Mutex // guards the fields below, and the fields of tasks
	lastUsed time.Time
	tasks    []*Task
	fresh    chan struct{} // is closed when a task has ended for which decisions wait; nil if they do not
}

// Task is done again and again.
type Task struct {
	Do    func(context.Context) error
	Every time.Duration // after it was done, and after it has failed unless Retry is set
	Retry time.Duration
	// Idle is Every after a minute without a decision. The next decision begins such a task at once, and waits for it,
	// as it would go by what is old. If Idle is 0, it is Every at all times, and a decision begins the task [Soon].
	Idle time.Duration
	// InUse reports whether somebody goes by the task without a decision, as a caller that waits does. It may be nil.
	InUse func() bool

	timer  *time.Timer // nil while it rests
	begun  uint        // how often it has had a timer: an earlier timer does nothing
	busy   bool        // it is being done
	soon   bool        // it is to be done again soon
	slow   bool        // it is to be done as Idle says
	failed error       // of the last time
}

// New returns upkeep without tasks.
func New(c Config) *Upkeep { return &Upkeep{Config: c} }

// Add adds a task, which the next decision begins.
func (u *Upkeep) Add(t *Task) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tasks = append(u.tasks, t)
	u.Used.Store(false)
}

// Remove ends a task. It may be called by a cleanup of the runtime, as [Upkeep.End] may, which may not touch the timers
// and channels of a bubble of testing/synctest: so a timer stays, and does nothing.
func (u *Upkeep) Remove(t *Task) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tasks = slices.DeleteFunc(u.tasks, func(other *Task) bool { return other == t })
	t.timer = nil
}

// Hurry has a task done soon.
func (u *Upkeep) Hurry(t *Task) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !t.soon && !t.busy && !u.ended.Load() {
		u.setLocked(t, Soon)
	}
	t.soon = true
}

// End ends all tasks.
func (u *Upkeep) End() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended.Store(true)
	for _, t := range u.tasks {
		t.timer = nil
	}
	u.tasks = nil
}

// Use notes a decision with a timeout, and begins the tasks that rest. After an idle time the first decision, and those
// that come meanwhile, wait for tasks with Idle, for at most half of the timeout. Once that was too short, no further
// decision waits. Use returns for how long it has waited.
func (u *Upkeep) Use(ctx context.Context, timeout time.Duration) (waited time.Duration) {
	if u == nil || u.Used.Load() || u.ended.Load() {
		return 0
	}
	fresh := u.use()
	if fresh == nil {
		return 0
	}
	since, late := time.Now(), time.NewTimer(timeout/2)
	defer late.Stop()
	select {
	case <-fresh:
	case <-ctx.Done():
	case <-late.C:
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.fresh == fresh {
			u.freshLocked()
		}
	}
	return time.Since(since)
}

// use is the decision's part of Use. It returns what to wait for, or nil.
func (u *Upkeep) use() (fresh chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range u.tasks {
		if t.slow && t.failed == nil && u.fresh == nil {
			u.fresh = make(chan struct{})
		}
		switch {
		case t.busy:
		case t.slow || t.timer == nil && t.Idle > 0:
			u.setLocked(t, 0)
		case t.timer == nil:
			u.setLocked(t, Soon)
		}
		t.slow = false
	}
	u.lastUsed = time.Now()
	u.Used.Store(u.fresh == nil)
	return u.fresh
}

// setLocked sets when a task is done.
func (u *Upkeep) setLocked(t *Task, after time.Duration) {
	if t.timer == nil {
		t.begun++
		begun := t.begun
		t.timer = time.AfterFunc(after, func() { u.again(t, begun) })
	} else {
		t.timer.Reset(after)
	}
}

// freshLocked lets decisions go on that wait for a task.
func (u *Upkeep) freshLocked() {
	if u.fresh != nil {
		close(u.fresh)
		u.fresh = nil
	}
}

// again does a task now, and again later.
func (u *Upkeep) again(t *Task, begun uint) {
	if t.InUse != nil && t.InUse() {
		u.Used.Store(true)
	}
	if !u.begin(t, begun) {
		return
	}
	err := u.bounded(t.Do)
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.Idle > 0 {
		u.freshLocked()
	}
	t.busy, t.failed = false, err
	next := t.Every
	switch {
	case err != nil && u.Denied(err):
		next = deniedRetry
	case t.soon: // since
		next = Soon
	case err != nil && t.Retry > 0:
		next = t.Retry
	case t.Idle > 0 && time.Since(u.lastUsed) >= idle && !u.Used.Load():
		next, t.slow = t.Idle, true
	}
	if t.timer == nil || t.begun != begun { // it has ended; it may have been added again
		u.Used.Store(false)
		return
	}
	t.timer.Reset(next)
}

// begin reports whether a task is to be done now.
func (u *Upkeep) begin(t *Task, begun uint) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case t.busy:
		return false
	case t.timer == nil: // it has ended
		u.freshLocked()
		return false
	case t.begun != begun:
		return false
	}
	now := time.Now()
	if u.Used.Swap(false) || u.lastUsed.IsZero() {
		u.lastUsed = now
	}
	if now.Sub(u.lastUsed) >= rest {
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
