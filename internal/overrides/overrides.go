// Package overrides is the limits that operators set in place of policies' limits, for a time, as the processes
// of a prefix know them.
//
// It owns what this process knows of them. It must never know a limit but as a value that its caller parses.
package overrides

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/upkeep"
	"github.com/ginlimit/ginlimit/internal/wire"
)

const (
	// Max is how many overrides a prefix has.
	Max = 10_000
	// MaxChanges is how many one call changes.
	MaxChanges = 1000
	// kept is how many names and stamps of the latest changes a store keeps, for processes that know what came before.
	kept = 4 * MaxChanges
)

// ErrFull says that there would be more than [Max].
var ErrFull = errors.New("too many overrides")

// Store is where overrides are kept: Redis, or this process.
type Store interface {
	// Look returns what changes with each change of overrides, and whether a publication is there that this process has
	// made; "" is none.
	Look(ctx context.Context, publication string) (stamp string, isThere bool, err error)
	// Overrides returns the texts of all overrides by their names, and the stamp.
	Overrides(ctx context.Context) (texts map[string]string, stamp string, err error)
	// Since returns what has changed after a stamp, "" for what has ended, and the stamp of the last change. It is false
	// if the store does not know that, or does not know the stamp to, which was its last one not long ago.
	Since(ctx context.Context, stamp, to string) (texts map[string]string, last string, ok bool, err error)
	// Change makes all changes and returns their stamp; or none, and "", if there would be more overrides than the limit.
	// After an error some may have been made.
	Change(ctx context.Context, c *wire.OverrideChanges) (stamp string, err error)
}

// Config is what overrides are made of.
type Config[L any] struct {
	Store  Store
	Upkeep *upkeep.Upkeep // by which the store is looked at; nil if nobody else changes it
	// Limits reads the limits of an override.
	Limits func(text string) (L, error)
	// Publication returns what this process has published, or "". If a look does not find it, the store has lost data,
	// and Lost gets the number of overrides in force that were known and are gone. Both may be nil.
	Publication func() string
	Lost        func(ctx context.Context, overrides int) error
}

// Overrides are those that this process knows. Limiters go by them in a [View].
type Overrides[L any] struct {
	Config[L]
	known atomic.Pointer[known[L]] // never nil
	task  upkeep.Task

	mu    sync.Mutex // guards changes of known, and the fields below
	gone  int        // overrides in force that were known and are not, as the store does not know what has changed
	older bool       // some are, as the store is as it was before
	loss  Loss
	views []*View[L] // that do not ignore them
}

// New returns overrides of which none is known yet.
func New[L any](c Config[L]) *Overrides[L] {
	o := &Overrides[L]{Config: c}
	o.task = upkeep.Task{Do: o.look, Every: upkeep.Soon, Idle: idleLook, InUse: o.waits}
	o.known.Store(&known[L]{})
	return o
}

// idleLook is the time between two looks of a process that does not decide.
const idleLook = 10 * time.Second

// View is the overrides as one limiter goes by them.
type View[L any] struct {
	Ignores bool // overrides
	// Hide returns the client as overrides have it; nil is the client itself.
	Hide func(policy, client string) string
	// Changed is called when this process knows other overrides than before.
	Changed func()
	// Waits reports whether callers of the limiter wait under limits that may change.
	Waits func() bool
	// Any says that this process knows overrides: else Find finds none.
	Any atomic.Bool

	of *Overrides[L]
}

// Join begins a view of a limiter, and returns it.
func (o *Overrides[L]) Join(v *View[L]) *View[L] {
	if v.of = o; v.Ignores {
		return v
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	v.Any.Store(len(o.known.Load().policies) > 0)
	if o.views = append(o.views, v); len(o.views) == 1 {
		o.Upkeep.Add(&o.task)
	}
	return v
}

// Leave ends a view. What it knows stays.
func (v *View[L]) Leave() {
	o := v.of
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.views = slices.DeleteFunc(o.views, func(other *View[L]) bool { return other == v }); len(o.views) == 0 {
		o.Upkeep.Remove(&o.task)
	}
}

// waits reports whether callers of a limiter wait.
func (o *Overrides[L]) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.views, func(v *View[L]) bool { return v.Waits() })
}

// look reads what has changed, and reports what the store has lost.
func (o *Overrides[L]) look(ctx context.Context) error {
	publication := ""
	if o.Publication != nil {
		publication = o.Publication()
	}
	before := o.known.Load()
	stamp, isThere, err := o.Store.Look(ctx, publication)
	if err != nil {
		return err
	}
	if stamp != before.stamp {
		isKnown := false
		if isKnown, err = o.read(ctx, before, stamp); err != nil && !isKnown {
			return err
		}
	}
	o.mu.Lock()
	gone, isLost := o.gone, o.Lost != nil && (publication != "" && !isThere || o.older)
	o.gone, o.older = 0, false
	if isLost {
		o.loss = Loss{time.Now(), gone}
	}
	o.mu.Unlock()
	if isLost {
		err = errors.Join(err, o.Lost(ctx, gone))
	}
	return err
}

// Loss is when a process noticed last that the store had lost data, and how many overrides in force that it knew went
// with them. A zero Time is never.
type Loss struct {
	At        time.Time
	Overrides int
}

// Loss returns the last loss that this process noticed.
func (v *View[L]) Loss() Loss {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	return v.of.loss
}

// Override is the limits of one client of a policy, or of all clients, until it ends. It is JSON in a store.
type Override struct {
	Version int    `json:"v"`
	Policy  string `json:"policy"`
	Client  string `json:"client,omitempty"` // "" is all
	Limits  string `json:"limits"`
	Until   int64  `json:"until"` // in Unix milliseconds
	Note    string `json:"note,omitempty"`
}

// Change returns the change that sets the override, or ends it.
func (o Override) Change(ends bool) wire.OverrideChange {
	c := wire.OverrideChange{Name: clientkey.Join(o.Policy, o.Client)}
	if !ends {
		o.Version = wire.TextVersion
		c.Text, c.Ends = wire.MarshalText(o), time.UnixMilli(o.Until)
	}
	return c
}

// Find returns the limits that replace a client's: its own override, else the one for all clients.
func (v *View[L]) Find(policy, client string) (found L, ok bool) {
	known := v.of.known.Load()
	of := known.policies[policy]
	if v.Ignores || of == nil {
		return found, false
	}
	if of.clients > 0 {
		if v.Hide != nil {
			client = v.Hide(policy, client)
		}
		if own, is := known.client(of.name, client); is && time.Now().Before(own.until) {
			return own.limits, true
		}
	}
	if of.all != nil && time.Now().Before(of.all.until) {
		return of.all.limits, true
	}
	return found, false
}

// InForce returns how many overrides this process knows that have not ended.
func (v *View[L]) InForce() (n int) {
	if v.Ignores {
		return 0
	}
	for range v.of.known.Load().inForce(time.Now()) {
		n++
	}
	return n
}

// read reads what has changed since an earlier time, at least up to the change with a stamp, or all overrides if the
// store does not know that. It reports whether they are known now: else another read has ended meanwhile. One that
// cannot be read is left out, and is an error.
func (o *Overrides[L]) read(ctx context.Context, before *known[L], to string) (isKnown bool, err error) {
	base, gone, older := before, 0, false
	texts, stamp, ok, err := o.Store.Since(ctx, before.stamp, to)
	if err != nil {
		return false, err
	}
	if !ok || base.clients > Max+MaxChanges || !splits(texts) { // many have ended by themselves
		base = &known[L]{}
		if texts, stamp, err = o.Store.Overrides(ctx); err != nil {
			return false, err
		}
	}
	next, fault := o.next(base, stamp, texts)
	if !ok {
		gone = before.missing(next)
		older = gone > 0 && wire.OverrideTurn(stamp) <= wire.OverrideTurn(before.stamp)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known.Load() != before {
		return false, nil
	}
	o.known.Store(next)
	o.gone, o.older = o.gone+gone, o.older || older
	for _, v := range o.views {
		v.Any.Store(len(next.policies) > 0)
		v.Changed()
	}
	return true, fault
}

// Change makes changes, and knows of them when it returns.
func (v *View[L]) Change(ctx context.Context, changes []wire.OverrideChange) error {
	stamp, err := v.of.Store.Change(ctx, &wire.OverrideChanges{
		Mark: rand.Text(), Limit: Max, Kept: kept, Changes: changes,
	})
	switch {
	case err != nil:
		return err
	case stamp == "":
		return ErrFull
	case !v.Ignores:
		v.of.readUntil(ctx, stamp)
	}
	return nil
}

// readUntil reads until a change is known, or leaves that to the next look.
func (o *Overrides[L]) readUntil(ctx context.Context, stamp string) {
	for {
		before := o.known.Load()
		to := before.stamp
		if stamp == "" || wire.OverrideTurn(stamp) > wire.OverrideTurn(to) {
			to = stamp
		}
		isKnown, err := o.read(ctx, before, to)
		if isKnown || err != nil || wire.OverrideTurn(o.known.Load().stamp) >= wire.OverrideTurn(stamp) {
			return
		}
	}
}

// All returns all overrides, and knows of them when it returns.
func (v *View[L]) All(ctx context.Context) (all []Entry, err error) {
	texts, stamp, err := v.of.Store.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	all = make([]Entry, 0, len(texts))
	for name, text := range texts {
		all = append(all, entryOf(name, text))
	}
	if !v.Ignores {
		v.of.readUntil(ctx, stamp)
	}
	return all, nil
}
