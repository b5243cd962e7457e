package memory

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Part is what a decision on several keys takes of one.
type Part struct {
	Key     []byte
	Buckets []bucket.Bucket
	Op      bucket.Op
	States  []bucket.State // as Do sets them
}

// TakeAll is Do of several Takes as one: it makes them all if take reports true, which it calls once the
// states are set, or else none. Nobody finds a charge that does not stay. Only tenants of one bucket have one key.
func (s *Store) TakeAll(parts []Part, take func() bool) {
	var locks [shards]bool
	for i := range parts {
		locks[s.shardOf(parts[i].Key)] = true
	}
	for i := range locks { // in one order
		if locks[i] {
			s.shards[i].mu.Lock()
			defer s.shards[i].mu.Unlock()
		}
	}
	if len(parts) == 1 {
		s.takeOneLocked(&parts[0], take)
		return
	}
	all, now := make([]request, len(parts)), time.Since(s.start).Milliseconds()
	var undo []func()
	for i := range parts {
		p := &parts[i]
		all[i] = request{Op: p.Op, key: p.Key, buckets: p.Buckets, states: p.States, now: now, all: all}
		for j := range all[:i] {
			if !all[j].done && bytes.Equal(all[j].key, p.Key) { // this one finds what that one takes
				undo = append(undo, s.shard(p.Key).savedLocked(&all[j]))
				s.shard(p.Key).changeLocked(&all[j], all[j].fits)
				all[j].done = true
			}
		}
		s.shard(p.Key).readLocked(&all[i])
	}
	takes := take()
	for i := range all {
		charges := int64(0)
		if takes {
			charges = all[i].fits
		}
		if !all[i].done {
			s.shard(all[i].key).changeLocked(&all[i], charges)
		}
	}
	for _, f := range slices.Backward(undo) {
		if !takes {
			f()
		}
	}
}

// takeOneLocked is TakeAll of one Take, without an allocation.
func (s *Store) takeOneLocked(p *Part, take func() bool) {
	shard, charges := s.shard(p.Key), int64(0)
	r := &shard.request
	*r = request{Op: p.Op, key: p.Key, buckets: p.Buckets, states: p.States, now: time.Since(s.start).Milliseconds()}
	if shard.readLocked(r); take() {
		charges = r.fits
	}
	shard.changeLocked(r, charges)
}

// savedLocked returns a function that restores the buckets of a request as they are now.
func (s *shard) savedLocked(r *request) (restore func()) {
	saved := make([]*entry, len(r.buckets))
	for i := range r.buckets {
		if e := s.buckets[r.id(i)]; e != nil {
			before := *e
			before.tenants = e.tenants.clone()
			saved[i] = &before
		}
	}
	return func() {
		for i, e := range saved {
			if s.forgetLocked(r.id(i)); e != nil {
				s.buckets[r.id(i)] = e
				s.tenants += e.tenants.known()
			}
		}
	}
}

// clone returns a copy. Holders do not change.
func (t *tenants) clone() *tenants {
	if t == nil {
		return nil
	}
	c := *t
	c.byFinish, c.byName = slices.Clone(t.byFinish), maps.Clone(t.byName)
	return &c
}
