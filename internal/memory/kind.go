package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

// kinds are how the store reads and changes the buckets of each kind. Only Redis gives tokens ahead, so
// bucket.Ahead has no row.
var kinds = [...]struct {
	read   func(s *shard, r *request, i int)                // sets the state
	change func(s *shard, r *request, i int, charges int64) // in the state found; of a Take, charges are made
}{
	bucket.Token:         {readToken, (*shard).changeLimitLocked},
	bucket.FixedWindow:   {readFixed, (*shard).changeLimitLocked},
	bucket.SlidingWindow: {readFixed, (*shard).changeLimitLocked},
	bucket.Slots:         {func(*shard, *request, int) {}, func(*shard, *request, int, int64) {}}, // the caller counts
	bucket.Ban:           {(*shard).findBanLocked, (*shard).banLocked},
	bucket.Tenants:       {(*shard).findTenantsLocked, (*shard).changeTenantsLocked},
}

// limits are how the store changes the limits of each kind, in the state read. The script of a kind
// has functions of the same names.
var limits = [bucket.Kinds]limit{
	bucket.Token:         {takeToken, returnableToken, giveToken, blockToken, nil},
	bucket.FixedWindow:   {takeFixed, returnableFixed, giveFixed, blockFixed, untilFreeFixed},
	bucket.SlidingWindow: {takeSliding, returnableFixed, giveSliding, blockFixed, untilFreeSliding},
}

type limit struct {
	take       func(s *shard, r *request, i int, charges, n int64)
	returnable func(s *shard, r *request, i int) int64        // units that may be given back
	give       func(s *shard, r *request, i int, units int64) // which are returnable
	block      func(s *shard, r *request, i int)
	// untilFree returns in how many milliseconds that number of a window's tokens no longer counts.
	untilFree func(w *entry, b *bucket.Bucket, tokens, now int64) int64
}
