package memory

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var fixed = window{takeFixed, findFixed}

func (s *shard) changeFixedLocked(r *request, i int, charges int64) {
	s.changeWindowLocked(r, i, charges, fixed)
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
