// Package operation is what the processes of one prefix and the people who operate them tell each other:
// overrides of limits, and the policies that serve.
//
// It owns what this process knows of the overrides, and when it reads and publishes. It must never know a limit
// but as a value that its caller parses, nor make a request wait.
package operation

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/wire"
)

const (
	// interval is the time between two looks at the overrides, so that they are in force within a second.
	interval = 700 * time.Millisecond
	// republish is how often a process publishes its policies.
	republish = time.Minute
	// publicationLife is for how long a publication holds: two may be lost.
	publicationLife = 3 * republish
	// retry is how long after a failure it tries to publish again.
	retry = 10 * time.Second
	// deniedRetry is how long after Redis has denied a right it tries again.
	deniedRetry = 10 * time.Minute
	// idle is how long after the last decision a process neither looks nor publishes any more.
	idle = 24 * time.Hour
	// callTimeout is how long a look may take.
	callTimeout = 5 * time.Second
	// maxCalls is how many calls may hang, as a hook of the client does.
	maxCalls = 8

	// MaxOverrides is how many overrides a prefix has.
	MaxOverrides = 10_000
	// MaxChanges is how many one call changes: it holds Redis up for a few milliseconds.
	MaxChanges = 1000

	maxPublished = 1000    // policies of a process
	maxTogether  = 200     // that one call publishes
	maxTexts     = 1 << 12 // policies of all processes
	maxMembers   = 1 << 16 // policies of all processes, each counted once for each process
)

// Store is where overrides and policies are kept: Redis, or this process.
type Store interface {
	// Stamp returns what changes with each change of overrides.
	Stamp(ctx context.Context) (string, error)
	// Overrides returns the texts of all overrides by their names, and the stamp.
	Overrides(ctx context.Context) (texts map[string]string, stamp string, err error)
	// Change makes all changes, or none and returns false if there would be more overrides than a number.
	Change(ctx context.Context, stamp string, most int, changes []wire.OverrideChange) (bool, error)
	// Publish publishes policies, and returns how many had a place.
	Publish(ctx context.Context, p *wire.Publication) (int, error)
	// Published returns the policies by name, and when each process has last published each.
	Published(ctx context.Context) (texts map[string]string, seen map[string]map[string]time.Time, err error)
}

// Config is what an operation is made of.
type Config[L any] struct {
	Store   Store
	Process string // names this process, without a space
	Ignores bool   // overrides
	// Limits reads the limits of an override.
	Limits func(text string) (L, error)
	// Hide returns the client as overrides have it; nil is the client itself.
	Hide func(policy, client string) string
	// Changed is told that this process knows other overrides than before.
	Changed func()
	// Failed is told that the overrides could not be read, or the policies not be published.
	Failed func(err error)
	// Denied reports whether an error is that Redis denies a right. Until an operator grants it, trying again is
	// of no use.
	Denied func(err error) bool
}

// Operation is what this process knows and tells. It does nothing in the background before the first decision,
// and nothing any more a day after the last one.
type Operation[L any] struct {
	Config[L]
	known atomic.Pointer[known[L]] // never nil
	used  atomic.Bool              // by a decision, since somebody looked
	ended atomic.Bool

	reads    atomic.Int64 // of the overrides, numbered as they began
	mu       sync.Mutex   // guards the fields below
	lastRead int64        // the number of the read that is known
	lastUsed time.Time
	looks    bool              // at the overrides, again and again
	policies map[string]string // texts of those that serve, by name
	timer    *time.Timer       // until they are published; nil if they are not
	isNew    bool              // some have not been published yet
	busy     bool              // they are being published

	calls atomic.Int32 // to the store, in the background, that have not ended
}

// New returns an operation.
func New[L any](c Config[L]) *Operation[L] {
	o := &Operation[L]{Config: c, policies: map[string]string{}}
	o.known.Store(&known[L]{})
	return o
}

// End ends what is done in the background. What is known stays.
func (o *Operation[L]) End() { o.ended.Store(true) }

// use notes a decision, and begins what is done in the background.
func (o *Operation[L]) use() {
	o.used.Store(true)
	if _, local := o.Store.(*Local); local || o.ended.Load() { // nobody else changes it
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.looks && !o.Ignores {
		o.looks = true
		go o.lookAgain()
	}
	if o.timer == nil && len(o.policies) > 0 {
		o.timer = time.AfterFunc(interval, o.publishAgain)
	}
}

// rests reports whether nothing is to be done in the background any more. The caller holds the mutex.
func (o *Operation[L]) rests() bool {
	now := time.Now()
	if o.used.Swap(false) || o.lastUsed.IsZero() {
		o.lastUsed = now
	}
	return o.ended.Load() || now.Sub(o.lastUsed) >= idle
}

// bounded makes a call to the store, in the time that it may take, and reports its error. If the client's
// Dialer hangs, the call goes on by itself.
func (o *Operation[L]) bounded(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err := goroutine.Bounded(ctx, 0, func() (struct{}, error) {
		defer o.calls.Add(-1)
		if o.calls.Add(1) > maxCalls {
			return struct{}{}, dispatch.ErrLate
		}
		return struct{}{}, f(ctx)
	})
	if err != nil && !o.ended.Load() {
		o.Failed(err)
	}
	return err
}

// lookAgain looks at the overrides now and after each interval.
func (o *Operation[L]) lookAgain() {
	o.mu.Lock()
	o.looks = !o.rests()
	goesOn := o.looks
	o.mu.Unlock()
	if goesOn {
		next := interval
		if err := o.bounded(o.look); err != nil && o.Denied(err) {
			next = deniedRetry
		}
		time.AfterFunc(next, o.lookAgain)
	}
}

// look reads the overrides if they have changed.
func (o *Operation[L]) look(ctx context.Context) error {
	stamp, err := o.Store.Stamp(ctx)
	if err != nil || stamp == o.known.Load().stamp {
		return err
	}
	return o.read(ctx)
}

// publishAgain publishes the policies now and after each republish.
func (o *Operation[L]) publishAgain() {
	if !o.mayPublish() {
		return
	}
	next := republish
	err := o.bounded(o.publish)
	denied := err != nil && o.Denied(err)
	if err != nil {
		next = retry
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch o.busy = false; {
	case denied:
		next = deniedRetry
	case o.isNew: // since
		next = interval
	}
	o.timer.Reset(next)
}

// mayPublish reports whether the policies are to be published now.
func (o *Operation[L]) mayPublish() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.timer == nil {
		return false
	}
	if o.busy = !o.rests(); !o.busy {
		o.timer = nil
	}
	return o.busy
}
