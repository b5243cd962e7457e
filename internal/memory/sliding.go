package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

// takeSliding takes tokens, as takeFixed does.
func takeSliding(s *shard, r *request, i int, charges, n int64) {
	b, w := &r.buckets[i], s.entryLocked(r, i)
	at, tokens, before := r.now+b.Overdraft(n), charges*b.Room(n), w.value
	newest := w.full - b.Period
	w.value += tokens
	switch {
	case before == 0:
		w.full = at + b.Period
	case newest < at:
		w.full = at + b.Period
		s.logged -= w.log.room()
		if w.log == nil {
			w.log = &log{entries: append(make([]logEntry, 0, 2), logEntry{newest, before})}
		}
		w.log.add(logEntry{at, tokens})
		s.logged += w.log.room()
	case w.log != nil: // in the same millisecond, or an overdraft
		w.log.entries[len(w.log.entries)-1].tokens += tokens
	}
	r.states[i].Mark = w.full - b.Period
	for s.logged > maxLogs/shards {
		s.shrinkLogLocked(r.now)
	}
}

// giveSliding gives back the tokens that were taken last, or those with the mark.
func giveSliding(s *shard, r *request, i int, units int64) {
	b, w := &r.buckets[i], s.buckets[r.id(i)]
	if r.Verb == bucket.Return {
		units = w.removeAt(b, r.now, units, r.Claims[i].Mark)
	} else if w.log != nil {
		units = w.log.removeLast(units)
	}
	if w.value -= units; w.value == 0 {
		s.emptyLocked(w)
		s.forgetEmptyLocked(r, i, w)
	} else if w.log != nil {
		w.full = w.log.entries[len(w.log.entries)-1].at + b.Period
	}
}

// removeAt removes tokens of a mark from the log, if there is one, and returns how many still count.
func (e *entry) removeAt(b *bucket.Bucket, now, tokens, mark int64) int64 {
	switch {
	case mark+b.Period <= now: // the mark could find others' tokens in a merged log
	case e.log != nil:
		return e.log.removeAt(tokens, mark)
	case mark == e.full-b.Period:
		return min(tokens, e.value)
	}
	return 0
}

func untilFreeSliding(w *entry, b *bucket.Bucket, tokens, now int64) int64 {
	if w.log != nil {
		for _, entry := range w.log.live() {
			if tokens -= entry.tokens; tokens <= 0 {
				return entry.at + b.Period - now
			}
		}
	}
	return w.full - now
}
