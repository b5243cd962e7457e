package memory

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// findWindowLocked sets the state of a window. [entry.setWaits] completes it.
func (s *shard) findWindowLocked(r *request, i int) {
	b := &r.buckets[i]
	r.states[i] = bucket.State{}
	w := s.buckets[r.id(i)]
	if w != nil {
		s.expireLocked(w, r.now)
		r.states[i] = bucket.State{Level: w.value, Reset: max(0, w.remaining(b, r.now), w.block-r.now)}
		if w.block > r.now {
			r.states[i].Level = max(w.value, b.Capacity)
			return
		}
	}
	if b.Ends != 0 {
		r.states[i].Reset = b.Left(time.Now().UnixMilli())
	}
}

// window is what each kind of window does in its own way.
type window struct {
	// take takes tokens at a time, beside those that were taken before, and returns the mark that finds them again.
	take func(s *shard, w *entry, b *bucket.Bucket, at, tokens, before int64) (mark int64)
	// find returns how many tokens of a mark still count, and removes them from the log if there is one.
	find func(w *entry, b *bucket.Bucket, now, tokens, mark int64) int64
}

// changeLocked takes from, gives back to, or blocks a window.
func (of window) changeLocked(s *shard, r *request, i int, charges int64) {
	b, w := &r.buckets[i], s.buckets[r.id(i)]
	switch {
	case r.Verb == bucket.Block:
		w = s.entryLocked(r, i)
		w.block = max(w.block, r.now+r.N)
	case r.Verb == bucket.Take && charges > 0:
		w = s.entryLocked(r, i)
		r.states[i].Mark = s.takeLocked(w, b, r.now, charges, r.Tokens(i), of)
	case r.Verb == bucket.Charge:
		w = s.entryLocked(r, i)
		if tokens := b.Debt(w.value, r.N); tokens > 0 {
			s.takeLocked(w, b, r.now, tokens, 1, of)
		}
	case r.Verb == bucket.Give && w != nil:
		s.giveLocked(w, b, r.N)
	case r.Verb == bucket.Return && w != nil && r.Claims[i].Mark != bucket.NoMark:
		if back := s.claimedLocked(r, i); back > 0 {
			s.removeLocked(w, b, of.find(w, b, r.now, back, r.Claims[i].Mark))
		}
	}
	for s.logged > maxLogs/shards {
		s.shrinkLogLocked(r.now)
	}
	if w == nil {
		return
	}
	w.setWaits(b, r, r.Tokens(i), &r.states[i])
	if w.ends() <= r.now {
		s.forgetLocked(r.id(i))
	}
}

// expireLocked removes the tokens that no longer count.
func (s *shard) expireLocked(w *entry, now int64) {
	if w.full <= now {
		s.emptyLocked(w)
	}
	if w.log == nil {
		return
	}
	period := w.full - w.log.entries[len(w.log.entries)-1].at
	for w.log.live()[0].at+period <= now {
		w.value -= w.log.live()[0].tokens
		w.log.expired++
	}
}

// emptyLocked removes all tokens from a window.
func (s *shard) emptyLocked(w *entry) {
	s.logged -= w.log.room()
	w.full, w.value, w.log = 0, 0, nil
}

// takeLocked makes charges of n tokens, and returns the mark that finds them again. A charge of
// more tokens than a window holds takes all tokens of several periods.
func (s *shard) takeLocked(w *entry, b *bucket.Bucket, now, charges, n int64, of window) (mark int64) {
	tokens, before := charges*b.Room(n), w.value
	w.value += tokens
	return of.take(s, w, b, now+b.Overdraft(n), tokens, before)
}

// giveLocked gives back the tokens that were taken last.
func (s *shard) giveLocked(w *entry, b *bucket.Bucket, tokens int64) {
	tokens = min(tokens, w.value)
	if w.log != nil {
		tokens = w.log.removeLast(tokens)
	}
	s.removeLocked(w, b, tokens)
}

// removeLocked removes tokens that the log, if there is one, has no more.
func (s *shard) removeLocked(w *entry, b *bucket.Bucket, tokens int64) {
	w.value -= tokens
	if w.value == 0 {
		s.emptyLocked(w)
	} else if w.log != nil {
		w.full = w.log.entries[len(w.log.entries)-1].at + b.Period
	}
}

// setWaits sets the waits of a window for a charge of n tokens.
func (e *entry) setWaits(b *bucket.Bucket, r *request, n int64, s *bucket.State) {
	if e.block > r.now {
		s.Soon, s.Wait = e.block-r.now, e.block-r.now
	}
	if e.value > 0 {
		s.Soon = max(s.Soon, e.untilFree(b, max(1, e.value-b.Capacity+1), r.now))
	}
	room := b.Room(max(1, n))
	if short := e.value + room - b.Capacity; short > 0 && room <= b.Capacity {
		s.Wait = max(s.Wait, e.untilFree(b, short, r.now))
	}
}

// untilFree returns how many milliseconds until the given number of tokens no longer count.
func (e *entry) untilFree(b *bucket.Bucket, tokens, now int64) int64 {
	if e.log != nil {
		for _, entry := range e.log.live() {
			if tokens -= entry.tokens; tokens <= 0 {
				return entry.at + b.Period - now
			}
		}
	}
	return e.remaining(b, now)
}

// remaining returns how many milliseconds a window goes on.
func (e *entry) remaining(b *bucket.Bucket, now int64) int64 {
	if b.Ends != 0 {
		return min(e.full-now, b.Left(time.Now().UnixMilli()))
	}
	return e.full - now
}
