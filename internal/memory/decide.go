package memory

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Do applies an Op to all buckets of a key or to none, and sets the states found, of a Charge and a Return the
// states left, as decide.lua does.
// The caller counts slots and has set their state.
func (s *Store) Do(key []byte, buckets []bucket.Bucket, op bucket.Op, states []bucket.State) {
	shard := s.shard(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r := &shard.request
	*r = request{Op: op, key: key, buckets: buckets, states: states, now: time.Since(s.start).Milliseconds()}
	if op.Verb == bucket.Reset {
		shard.resetLocked(r)
		return
	}
	shard.readLocked(r)
	shard.changeLocked(r, r.fits)
	if op.Verb == bucket.Charge || op.Verb == bucket.Return {
		shard.readLocked(r)
	}
}

// readLocked sets the states found, and how many charges fit.
func (s *shard) readLocked(r *request) {
	r.fits = r.Charges
	for i := range r.buckets {
		kinds[r.buckets[i].Kind].read(s, r, i)
		r.states[i].Era = s.era
		r.fits = r.buckets[i].Fits(r.states[i], r.fits, max(1, r.Tokens(i)))
	}
}

// changeLocked changes the buckets in the states found. Of a Take, charges are made.
func (s *shard) changeLocked(r *request, charges int64) {
	for i := range r.buckets {
		kinds[r.buckets[i].Kind].change(s, r, i, charges)
	}
}

// resetLocked resets the buckets, or what a tenant holds of them.
func (s *shard) resetLocked(r *request) {
	s.era++
	if r.Tenant.Name != "" {
		s.readLocked(r)
		s.resetTenantLocked(r)
		return
	}
	for i := range r.buckets {
		r.states[i] = bucket.State{}
		s.forgetLocked(r.id(i))
		s.forgetLocked(r.recordID(i))
	}
}

// changeLimitLocked changes a limit in the state found. Of a Take, charges are made.
func (s *shard) changeLimitLocked(r *request, i int, charges int64) {
	b, kind := &r.buckets[i], &limits[r.buckets[i].Kind]
	switch r.Verb {
	case bucket.Take:
		if charges > 0 {
			kind.take(s, r, i, charges, r.Tokens(i))
		}
		if kind.untilFree != nil {
			s.setWaitsLocked(r, i, kind)
		}
	case bucket.Charge:
		if tokens := b.Debt(s.usedLocked(r, i), r.N); tokens > 0 {
			kind.take(s, r, i, tokens, 1)
		}
	case bucket.Block:
		kind.block(s, r, i)
	default:
		s.giveBackLocked(r, i, kind)
	}
}

// usedLocked returns the units that are missing from a limit's bucket, without a block.
func (s *shard) usedLocked(r *request, i int) int64 {
	e, b := s.buckets[r.id(i)], &r.buckets[i]
	switch {
	case b.Flows():
		return e.level(b, r.now)
	case e == nil:
		return 0
	}
	return e.value
}

// giveBackLocked gives back what a Give or a Return wants, as far as it is there.
func (s *shard) giveBackLocked(r *request, i int, kind *limit) {
	b, used := &r.buckets[i], s.usedLocked(r, i)
	units := min(r.N, bucket.MaxUnits/b.Cost) * b.Cost
	if r.Verb == bucket.Return {
		units = s.claimedLocked(r, i)
	}
	units = min(units, kind.returnable(s, r, i))
	if units <= 0 {
		return
	}
	if b.Flows() && (r.Verb == bucket.Give || units < used) { // else the bucket is empty of charges
		s.recordLocked(r, i, units, s.drainTimeLocked(r, i))
	}
	if !b.Flows() && r.Verb == bucket.Give && units == used { // nothing is left of any call
		s.era++
		s.buckets[r.id(i)].born = s.era
	}
	kind.give(s, r, i, units)
}

// setWaitsLocked sets when a window has more tokens, and room for one more charge.
func (s *shard) setWaitsLocked(r *request, i int, kind *limit) {
	w := s.buckets[r.id(i)]
	if w == nil {
		return
	}
	b, state := &r.buckets[i], &r.states[i]
	if w.block > r.now {
		state.More, state.Wait = w.block-r.now, w.block-r.now
	}
	if w.value > 0 {
		state.More = max(state.More, kind.untilFree(w, b, max(1, w.value-b.Capacity+1), r.now))
	}
	room := b.Room(max(1, r.Tokens(i)))
	if short := w.value + room - b.Capacity; short > 0 && room <= b.Capacity {
		state.Wait = max(state.Wait, kind.untilFree(w, b, short, r.now))
	}
}
