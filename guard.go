package ginlimit

import (
	"slices"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// guards is what a policy has in addition to limits: a ban, slots, or both.
type guards struct {
	ban, slots *bucket.Bucket
	policy     *httpfields.Limit // of the slots in the fields
	name       string            // of the slots in a Result
}

// slotsSuffix ends the name of a policy's slots.
const slotsSuffix = "-c"

// guard adds the policy's ban and slots to a set of its limits.
func (p *Policy) guard(s *limitSet) {
	slots := p.slots
	if p.dryRun { // it has slots of its own: see trial
		slots = 0
	}
	if s.denies || p.banFirst == 0 && slots == 0 {
		return
	}
	g := &guards{}
	if p.banFirst > 0 {
		ban := bucket.NewBan(milliseconds(p.banFirst), milliseconds(p.banLongest))
		g.ban = &ban
	}
	if slots > 0 {
		g.setSlots(p, s)
	}
	s.guards = g
	s.withGuards()
}

// setSlots adds the policy's slots, beside a set of its limits.
func (g *guards) setSlots(p *Policy, s *limitSet) {
	slots := bucket.NewSlots(int64(p.slots))
	own := httpfields.FreeName(httpfields.Name(p.name)+slotsSuffix, s.policyNames())
	g.slots, g.name = &slots, p.name+slotsSuffix
	g.policy = &httpfields.Limit{
		Name: own, Quota: int64(p.slots), Unit: httpfields.ConcurrentRequests, Problem: httpfields.QuotaProblem("", own),
	}
}

// withGuards completes a set whose buckets are those of limits: what takes tokens is checked for the ban, and what takes a slot for both.
func (s *limitSet) withGuards() {
	if s.guards == nil {
		return
	}
	if s.taking = nil; s.guards.ban != nil {
		s.taking = s.guarded(s.guards.ban)
	}
	if s.acquiring = s.taking; s.guards.slots != nil {
		s.acquiring = s.guarded(s.guards.ban, s.guards.slots)
	}
}

// guarded returns the set with further buckets, of which some are nil.
func (s *limitSet) guarded(buckets ...*bucket.Bucket) *limitSet {
	all := *s
	all.buckets, all.limits = slices.Clone(s.buckets), slices.Clone(s.limits)
	all.names = slices.Repeat([]string{s.name}, len(s.buckets))
	all.policies = make([]httpfields.Limit, len(s.buckets)) // none of what is only blocked or reset
	copy(all.policies, s.policies)
	all.guards, all.share, all.later, all.guarding = nil, nil, nil, true
	for _, b := range buckets {
		switch {
		case b == nil:
			continue
		case b.Kind == bucket.Slots:
			all.limits = append(all.limits, Limit{InFlight: int(b.Capacity)})
			all.policies, all.names = append(all.policies, *s.guards.policy), append(all.names, s.guards.name)
		default:
			all.limits, all.names = append(all.limits, Limit{}), append(all.names, s.name)
			all.policies = append(all.policies, httpfields.Limit{})
		}
		all.buckets = append(all.buckets, *b)
	}
	if all.replicas > 1 {
		all.share = all.shareOf(all.replicas)
	}
	return &all
}

// all returns the buckets of a set, those of guards among them.
func (s *limitSet) all() []bucket.Bucket {
	if s.acquiring != nil {
		return s.acquiring.buckets
	}
	return s.buckets
}

// guarded returns the subject under the ban, and with slots if it acquires one.
func (s *subject) guarded() *subject {
	set := s.limits.taking
	if s.acquires {
		set = s.limits.acquiring
	}
	if set == nil {
		return s
	}
	guarded := *s
	guarded.limits = set
	return &guarded
}

// banned returns for how long the client is banned, as of the states found.
func (s *limitSet) banned(states []bucket.State) time.Duration {
	for i := len(s.buckets) - 1; i >= 0 && s.buckets[i].Guards(); i-- {
		if s.buckets[i].Kind == bucket.Ban {
			return millis(max(states[i].Level, states[i].Wait))
		}
	}
	return 0
}

// maxBans is how many bans a process counts.
const maxBans = 1 << 16

// bans counts the bans that this process knows of: by the hash of a key, when each ends.
type bans struct {
	mu    sync.Mutex           // guards everything below
	ends  map[uint64]time.Time // at most maxBans
	swept time.Time            // when those that are over were forgotten last
}

// note keeps for how long a client is banned, as was just found.
func (b *bans) note(hash uint64, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d <= 0 {
		delete(b.ends, hash)
		return
	}
	now := time.Now()
	if _, known := b.ends[hash]; !known && len(b.ends) >= maxBans {
		if now.Sub(b.swept) < time.Second {
			return
		}
		if b.sweepLocked(now); len(b.ends) >= maxBans {
			return
		}
	}
	if b.ends == nil {
		b.ends = map[uint64]time.Time{}
	}
	b.ends[hash] = now.Add(d)
}

// left returns for how long a client is known to be banned.
func (b *bans) left(hash uint64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, time.Until(b.ends[hash]))
}

// len returns how many bans last.
func (b *bans) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweepLocked(time.Now())
	return len(b.ends)
}

// sweepLocked forgets the bans that are over.
func (b *bans) sweepLocked(now time.Time) {
	b.swept = now
	for hash, end := range b.ends {
		if !end.After(now) {
			delete(b.ends, hash)
		}
	}
}
