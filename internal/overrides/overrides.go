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
	// MaxChanges is how many one call changes: it holds Redis up for a few milliseconds.
	MaxChanges = 1000
)

// ErrFull says that there would be more than [Max].
var ErrFull = errors.New("too many overrides")

// Store is where overrides are kept: Redis, or this process.
type Store interface {
	// Stamp returns what changes with each change of overrides.
	Stamp(ctx context.Context) (string, error)
	// Overrides returns the texts of all overrides by their names, and the stamp.
	Overrides(ctx context.Context) (texts map[string]string, stamp string, err error)
	// Change makes all changes, or none and returns false if there would be more overrides than the limit.
	Change(ctx context.Context, stamp string, limit int, changes []wire.OverrideChange) (bool, error)
}

// Config is what overrides are made of.
type Config[L any] struct {
	Store  Store
	Upkeep *upkeep.Upkeep // by which the store is looked at; nil if nobody else changes it
	// Limits reads the limits of an override.
	Limits func(text string) (L, error)
}

// Overrides are those that this process knows. Limiters go by them in a [View].
type Overrides[L any] struct {
	Config[L]
	known atomic.Pointer[known[L]] // never nil
	task  upkeep.Task

	reads    atomic.Int64 // numbered as they began
	mu       sync.Mutex   // guards the fields below
	lastRead int64        // the number of the read that is known
	views    []*View[L]   // that do not ignore them
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

// look reads the overrides if they have changed.
func (o *Overrides[L]) look(ctx context.Context) error {
	stamp, err := o.Store.Stamp(ctx)
	if err != nil || stamp == o.known.Load().stamp {
		return err
	}
	return o.read(ctx)
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

// limits are what an override sets, where its policy and client are known.
type limits[L any] struct {
	limits L
	until  time.Time
}

// known is what this process knows of the overrides. It does not change.
type known[L any] struct {
	stamp    string
	policies map[string]*ofPolicy[L]
}

// ofPolicy are the overrides of a policy.
type ofPolicy[L any] struct {
	all     *limits[L] // nil if there are none
	clients map[string]limits[L]
}

// Find returns the limits that replace a client's: its own override, else the one for all clients.
func (v *View[L]) Find(policy, client string) (found L, ok bool) {
	of := v.of.known.Load().policies[policy]
	if v.Ignores || of == nil {
		return found, false
	}
	if len(of.clients) > 0 {
		if v.Hide != nil {
			client = v.Hide(policy, client)
		}
		if own, is := of.clients[client]; is && time.Now().Before(own.until) {
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
	known, now := v.of.known.Load(), time.Now()
	if v.Ignores {
		return 0
	}
	for _, of := range known.policies {
		if of.all != nil && now.Before(of.all.until) {
			n++
		}
		for _, own := range of.clients {
			if now.Before(own.until) {
				n++
			}
		}
	}
	return n
}

// read reads all overrides. One that cannot be read is left out, and reported.
func (o *Overrides[L]) read(ctx context.Context) error {
	turn := o.reads.Add(1)
	texts, stamp, err := o.Store.Overrides(ctx)
	if err != nil {
		return err
	}
	fresh, parsed := &known[L]{stamp: stamp, policies: map[string]*ofPolicy[L]{}}, map[string]L{}
	for _, text := range texts {
		var r Override
		fault := wire.UnmarshalText(text, &r.Version, &r)
		own, is := parsed[r.Limits] // many have the same
		if !is && fault == nil {
			own, fault = o.Limits(r.Limits)
			parsed[r.Limits] = own
		}
		if fault != nil {
			err = fault
			continue
		}
		of := fresh.policies[r.Policy]
		if of == nil {
			of = &ofPolicy[L]{clients: map[string]limits[L]{}}
			fresh.policies[r.Policy] = of
		}
		until := time.UnixMilli(r.Until)
		if r.Client == "" {
			of.all = &limits[L]{own, until}
		} else {
			of.clients[r.Client] = limits[L]{own, until}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if turn > o.lastRead { // else who began to read later knows as much; the next look finds what it does not
		o.lastRead = turn
		o.known.Store(fresh)
		for _, v := range o.views {
			v.Any.Store(len(fresh.policies) > 0)
			v.Changed()
		}
	}
	return err
}

// Change makes changes, and knows of them when it returns.
func (v *View[L]) Change(ctx context.Context, changes []wire.OverrideChange) error {
	ok, err := v.of.Store.Change(ctx, rand.Text(), Max, changes)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrFull
	case !v.Ignores:
		_ = v.of.read(ctx) // else the next look does
	}
	return nil
}

// All returns all overrides, and knows of them when it returns.
func (v *View[L]) All(ctx context.Context) (all []Override, err error) {
	texts, _, err := v.of.Store.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		var r Override
		if err := wire.UnmarshalText(text, &r.Version, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if !v.Ignores {
		_ = v.of.read(ctx)
	}
	return all, nil
}
