package operation

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// ErrFull says that there would be more than [MaxOverrides].
var ErrFull = errors.New("too many overrides")

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
		o.Version = version
		c.Text, c.Ends = marshal(o), time.UnixMilli(o.Until)
	}
	return c
}

// version is the version of the texts that this package writes, and the newest that it reads.
const version = 1

// ErrUnreadable says that a text of a store cannot be read.
var ErrUnreadable = errors.New("what Redis has of overrides or policies cannot be read")

// marshal returns the text of an override or a policy.
func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers have texts
	}
	return string(text)
}

// unmarshal reads what marshal has written.
func unmarshal(text string, of *int, v any) error {
	err := json.Unmarshal([]byte(text), v)
	switch {
	case *of > version:
		return fmt.Errorf("%w: a newer version of ginlimit has written it", ErrUnreadable)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return nil
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
func (o *Operation[L]) Find(policy, client string) (found L, ok bool) {
	if !o.used.Load() {
		o.use()
	}
	known := o.known.Load()
	if len(known.policies) == 0 {
		return found, false
	}
	of := known.policies[policy]
	if of == nil {
		return found, false
	}
	if len(of.clients) > 0 {
		if o.Hide != nil {
			client = o.Hide(policy, client)
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
func (o *Operation[L]) InForce() (n int) {
	known, now := o.known.Load(), time.Now()
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
func (o *Operation[L]) read(ctx context.Context) error {
	turn := o.reads.Add(1)
	texts, stamp, err := o.Store.Overrides(ctx)
	if err != nil {
		return err
	}
	fresh, parsed := &known[L]{stamp: stamp, policies: map[string]*ofPolicy[L]{}}, map[string]L{}
	for _, text := range texts {
		var r Override
		fault := unmarshal(text, &r.Version, &r)
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
		o.Changed()
	}
	return err
}

// Change makes changes, and knows of them when it returns.
func (o *Operation[L]) Change(ctx context.Context, changes []wire.OverrideChange) error {
	ok, err := o.Store.Change(ctx, rand.Text(), MaxOverrides, changes)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrFull
	case !o.Ignores:
		_ = o.read(ctx) // else the next look does
	}
	return nil
}

// Overrides returns all overrides, and knows of them when it returns.
func (o *Operation[L]) Overrides(ctx context.Context) (all []Override, err error) {
	texts, _, err := o.Store.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		var r Override
		if err := unmarshal(text, &r.Version, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if !o.Ignores {
		_ = o.read(ctx)
	}
	return all, nil
}
