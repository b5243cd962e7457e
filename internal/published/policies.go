// Package published is the policies that the processes of a prefix serve, as operators see them.
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
	// Published returns the policies by name, and when each process has last published each, by this process' clock.
	Published(ctx context.Context) (texts map[string]string, seen map[string]map[string]time.Time, err error)
}

// Policies are those that this process serves.
type Policies struct {
	store   Store
	process string
	upkeep  *upkeep.Upkeep
	task    upkeep.Task

	mu     sync.Mutex          // guards the fields below, and the fields of limiters
	served map[string]*service // by their texts as if a handler served each
	last   string              // publication that has a place, or "" if there is none
	lastAt time.Time
}

// service is a policy that some limiters serve.
type service struct {
	policy   Policy // as if a handler served it
	limiters int
	handlers int // limiters that have a handler of it
}

// New returns policies of a process with a name without a space. They are published by upkeep, or not at all if it
// is nil.
func New(s Store, process string, u *upkeep.Upkeep) *Policies {
	p := &Policies{store: s, process: process, upkeep: u, served: map[string]*service{}}
	p.task = upkeep.Task{Do: p.publish, Every: renewal, Retry: retry}
	u.Add(&p.task)
	return p
}

// Limiter is the policies of one limiter.
type Limiter struct {
	*Policies
	serves map[string]bool // by the same texts, whether a handler does; nil when the limiter has ended
}

// Join begins the policies of a limiter.
func (p *Policies) Join() *Limiter { return &Limiter{p, map[string]bool{}} }

// Leave ends the policies of a limiter: they are published no more, unless another one serves them.
func (l *Limiter) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text, isHandler := range l.serves {
		s := l.served[text]
		if s.limiters--; s.limiters == 0 {
			delete(l.served, text)
		}
		if isHandler {
			s.handlers--
		}
	}
	l.serves = nil
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
	Plans   string   `json:"plans,omitempty"` // of which its limits are
	Handler bool     `json:"handler,omitempty"`
	Build   string   `json:"build,omitempty"` // of the application
}

// Serve notes that the limiter serves a policy, to be published within a second. If a handler serves it, so does what
// methods decided on before.
func (l *Limiter) Serve(one Policy) {
	isHandler := one.Handler
	one.Version, one.Handler = wire.TextVersion, true
	text := wire.MarshalText(one)
	l.mu.Lock()
	defer l.mu.Unlock()
	s, isNew := l.served[text], false
	before, known := l.serves[text]
	switch {
	case l.serves == nil || known && (before || !isHandler):
		return
	case s == nil && len(l.served) == maxPublished:
		return
	case s == nil:
		s, isNew = &service{policy: one}, true
		l.served[text] = s
	}
	if !known {
		s.limiters++
	}
	if isHandler {
		s.handlers++
		isNew = isNew || s.handlers == 1
	}
	if l.serves[text] = isHandler; isNew {
		l.upkeep.Hurry(&l.task)
	}
}

// Last returns a publication of this process that others still see, or "" if there is none.
func (p *Policies) Last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.lastAt) >= life-renewal {
		return ""
	}
	return p.last
}

// Again publishes the policies again, as the store has lost them. Until it has them, there is no last publication.
func (p *Policies) Again(ctx context.Context) error {
	p.setLast("")
	return p.publish(ctx)
}

func (p *Policies) setLast(publication string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.lastAt = publication, time.Now()
}

// publish publishes the policies that this process serves.
func (p *Policies) publish(ctx context.Context) error {
	last := ""
	for _, texts := range p.publications() {
		n, err := p.store.Publish(ctx, &wire.Publication{
			Process: p.process, Life: life, MaxTexts: maxTexts, MaxMembers: maxMembers, Texts: texts,
		})
		if err != nil {
			return err
		}
		for name := range texts {
			if n == len(texts) {
				last = wire.PublishedAs(name, p.process)
			}
		}
	}
	p.setLast(last)
	return nil
}

// publications returns what this process serves, for a call each.
func (p *Policies) publications() (calls []map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.served {
		one := s.policy
		if s.handlers == 0 {
			one.Key, one.Handler = "", false
		}
		text := wire.MarshalText(one)
		sum := sha256.Sum256([]byte(text))
		if last := len(calls) - 1; last < 0 || len(calls[last]) == maxTogether {
			calls = append(calls, map[string]string{})
		}
		calls[len(calls)-1][base64.RawURLEncoding.EncodeToString(sum[:12])] = text
	}
	return calls
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
