package memory

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// readFixed sets the state of a window of any kind, without what no longer counts.
func readFixed(s *shard, r *request, i int) {
	b, w, state := &r.buckets[i], s.buckets[r.id(i)], &r.states[i]
	*state = bucket.State{}
	if w != nil {
		s.expireLocked(w, r.now)
		state.Level, state.Reset = w.value, max(0, untilFreeFixed(w, b, w.value, r.now), w.block-r.now)
		s.forgetEmptyLocked(r, i, w)
	}
	switch {
	case w != nil && w.block > r.now:
		state.Level = max(w.value, b.Capacity)
	case b.Ends != 0:
		state.Reset = b.Left(time.Now().UnixMilli())
	}
}

// emptyLocked removes all tokens from a window.
func (s *shard) emptyLocked(w *entry) {
	s.logged -= w.log.room()
	w.full, w.value, w.log = 0, 0, nil
}

// forgetEmptyLocked forgets a window that is neither begun nor blocked.
func (s *shard) forgetEmptyLocked(r *request, i int, w *entry) {
	if w.ends() <= r.now {
		s.forgetLocked(r.id(i))
	}
}

// takeFixed takes tokens. A charge of more than a window holds takes all tokens of several periods.
func takeFixed(s *shard, r *request, i int, charges, n int64) {
	b, w := &r.buckets[i], s.entryLocked(r, i)
	switch {
	case b.Ends != 0:
		w.full = max(w.full, r.now+b.Left(time.Now().UnixMilli())+bucket.Grace)
	case w.value == 0:
		w.full = r.now + b.Overdraft(n) + b.Period
	}
	w.value += charges * b.Room(n)
	r.states[i].Mark = w.full
}

func returnableFixed(s *shard, r *request, i int) int64 { return s.usedLocked(r, i) }

// giveFixed gives tokens back, unless the mark names another window. A calendar period has its own key.
func giveFixed(s *shard, r *request, i int, units int64) {
	w := s.buckets[r.id(i)]
	if r.Verb == bucket.Return && r.Claims[i].Mark != w.full && r.buckets[i].Ends == 0 {
		return
	}
	if w.value -= units; w.value == 0 {
		s.emptyLocked(w)
		s.forgetEmptyLocked(r, i, w)
	}
}

func blockFixed(s *shard, r *request, i int) {
	w := s.entryLocked(r, i)
	w.block = max(w.block, r.now+r.N)
}

func untilFreeFixed(w *entry, b *bucket.Bucket, _, now int64) int64 {
	if b.Ends != 0 {
		return min(w.full-now, b.Left(time.Now().UnixMilli()))
	}
	return w.full - now
}
