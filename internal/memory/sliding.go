package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

var sliding = window{takeSliding, findSliding}

func (s *shard) changeSlidingLocked(r *request, i int, charges int64) {
	s.changeWindowLocked(r, i, charges, sliding)
}

func takeSliding(s *shard, w *entry, b *bucket.Bucket, at, tokens, before int64) (mark int64) {
	newest := w.full - b.Period
	switch {
	case before == 0:
		w.full = at + b.Period
		return at
	case newest < at:
		w.full = at + b.Period
		s.logged -= w.log.room()
		if w.log == nil {
			w.log = &log{entries: append(make([]logEntry, 0, 2), logEntry{newest, before})}
		}
		w.log.add(logEntry{at, tokens})
		s.logged += w.log.room()
		return at
	case w.log != nil: // in the same millisecond, or an overdraft
		w.log.entries[len(w.log.entries)-1].tokens += tokens
	}
	return newest
}

func findSliding(w *entry, b *bucket.Bucket, now, tokens, mark int64) int64 {
	switch {
	case mark+b.Period <= now: // the mark could find others' tokens in a merged log
	case w.log != nil:
		return w.log.removeAt(tokens, mark)
	case mark == w.full-b.Period:
		return min(tokens, w.value)
	}
	return 0
}
