// Package published is the policies that the processes of a prefix serve, as they tell operators.
//
// It owns what this process publishes, and when. It must never know a limit but as a text.
package published

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/upkeep"
	"github.com/ginlimit/ginlimit/internal/wire"
)

const (
	// renewal is how often a process publishes its policies.
	renewal = time.Minute
	// life is for how long a publication holds: two may be lost.
	life = 3 * renewal
	// retry is how long after a failure it tries to publish again.
	retry = 10 * time.Second

	maxPublished = 1000    // policies of a process
	maxTogether  = 200     // that one call publishes
	maxTexts     = 1 << 12 // policies of all processes
	maxMembers   = 1 << 16 // policies of all processes, each counted once for each process
)

// Store is where policies are kept: Redis, or this process.
type Store interface {
	// Publish publishes policies, and returns how many had a place.
	Publish(ctx context.Context, p *wire.Publication) (int, error)
	// Published returns the policies by name, and when each process has last published each.
	Published(ctx context.Context) (texts map[string]string, seen map[string]map[string]time.Time, err error)
}

// Policies are those that this process serves.
type Policies struct {
	store   Store
	process string
	upkeep  *upkeep.Upkeep
	task    upkeep.Task

	mu    sync.Mutex        // guards the field below
	serve map[string]Policy // by their texts as if a handler served each
}

// New returns policies of a process with a name without a space. They are published by upkeep, or not at all if it
// is nil.
func New(s Store, process string, u *upkeep.Upkeep) *Policies {
	p := &Policies{store: s, process: process, upkeep: u, serve: map[string]Policy{}}
	p.task = upkeep.Task{Do: p.publish, First: upkeep.Soon, Every: renewal, Retry: retry}
	return p
}

// Policy is a policy as a process serves it. It is JSON in a store.
type Policy struct {
	Version int      `json:"v"`
	Name    string   `json:"name"`
	Limits  string   `json:"limits,omitempty"`
	Key     string   `json:"key"` // the kind of its key function; published if a handler serves it
	Headers int      `json:"headers"`
	Options []string `json:"options,omitempty"` // names of the others
	Floor   int      `json:"floor,omitempty"`
	Lease   int64    `json:"lease,omitempty"` // in nanoseconds
	Handler bool     `json:"handler,omitempty"`
	Build   string   `json:"build,omitempty"` // of the application
}

// Serve notes that this process serves a policy, to be published within a second of the next decision. If a handler
// serves it, so does what methods decided on before.
func (p *Policies) Serve(one Policy) {
	one.Version = wire.TextVersion
	served := one
	served.Handler = true
	of := wire.MarshalText(served)
	if !one.Handler {
		one.Key = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.serve[of]
	if known && (before.Handler || !one.Handler) || !known && len(p.serve) == maxPublished {
		return
	}
	if p.serve[of] = one; len(p.serve) == 1 && !known {
		p.upkeep.Add(&p.task)
	} else {
		p.upkeep.Hurry(&p.task)
	}
}

// publish publishes the policies that this process serves.
func (p *Policies) publish(ctx context.Context) error {
	p.mu.Lock()
	var calls []map[string]string
	for _, one := range p.serve {
		text := wire.MarshalText(one)
		sum := sha256.Sum256([]byte(text))
		if last := len(calls) - 1; last < 0 || len(calls[last]) == maxTogether {
			calls = append(calls, map[string]string{})
		}
		calls[len(calls)-1][base64.RawURLEncoding.EncodeToString(sum[:12])] = text
	}
	p.mu.Unlock()
	for _, texts := range calls {
		_, err := p.store.Publish(ctx, &wire.Publication{
			Process: p.process, Now: time.Now(), Life: life, MostTexts: maxTexts, MostMembers: maxMembers,
			Texts: texts,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Variant is a policy as some processes have published it.
type Variant struct {
	Policy
	Processes int
	Seen      time.Time // last
}

// All returns what processes have published not long ago.
func (p *Policies) All(ctx context.Context) (all []Variant, err error) {
	if err := p.publish(ctx); err != nil { // what this process has not published yet
		return nil, err
	}
	texts, seen, err := p.store.Published(ctx)
	if err != nil {
		return nil, err
	}
	oldest := time.Now().Add(-life)
	for name, text := range texts {
		var v Variant
		for _, at := range seen[name] {
			if at.After(oldest) {
				v.Processes++
			}
			if at.After(v.Seen) {
				v.Seen = at
			}
		}
		if v.Processes == 0 {
			continue
		}
		if err := wire.UnmarshalText(text, &v.Version, &v.Policy); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}
