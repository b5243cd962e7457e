package memory

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// kinds are how the store finds and changes the buckets of each kind. What only windows of one kind do follows.
var kinds = [...]struct {
	find   func(s *shard, r *request, i int)                // sets the state
	change func(s *shard, r *request, i int, charges int64) // in the state found; of a Take, charges are made
}{
	bucket.Token:         {(*shard).findTokensLocked, (*shard).changeTokensLocked},
	bucket.FixedWindow:   {(*shard).findWindowLocked, window{takeFixed, findFixed}.changeLocked},
	bucket.SlidingWindow: {(*shard).findWindowLocked, window{takeSliding, findSliding}.changeLocked},
	bucket.Slots:         {func(*shard, *request, int) {}, func(*shard, *request, int, int64) {}}, // the caller counts
	bucket.Ban:           {(*shard).findBanLocked, (*shard).banLocked},
	bucket.Tenants:       {(*shard).findTenantsLocked, (*shard).changeTenantsLocked},
}

func takeFixed(_ *shard, w *entry, b *bucket.Bucket, at, _, before int64) (mark int64) {
	if b.Ends != 0 {
		w.full = max(w.full, at+b.Left(time.Now().UnixMilli())+bucket.Grace)
	} else if before == 0 {
		w.full = at + b.Period
	}
	return w.full
}

// findFixed finds tokens of the present window alone. Each calendar period has a window of its own.
func findFixed(w *entry, b *bucket.Bucket, _, tokens, mark int64) int64 {
	if b.Ends != 0 || mark == w.full {
		return min(tokens, w.value)
	}
	return 0
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
