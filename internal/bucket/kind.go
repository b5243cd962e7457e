package bucket

// Kind is how a bucket regains tokens.
type Kind uint8

const (
	Token         Kind = iota // evenly
	FixedWindow               // all at once: a period after the first was taken, or when a calendar period ends
	SlidingWindow             // each a period after it was taken
	Kinds              = iota // how many kinds of limits there are

	Slots   Kind = iota - 1 // never by time: a slot is free when its holder releases it
	Ban                     // never by time: while it has a level, nobody is admitted
	Ahead                   // evenly: it is charged with tokens that processes take ahead of the limits before it
	Tenants                 // as the limit that they share
)

// kinds are the kinds. What a kind alone does is in a file of its own; both windows share one.
var kinds = [...]kind{
	Token: token, FixedWindow: fixedWindow, SlidingWindow: slidingWindow,
	Slots: slots, Ban: ban, Ahead: ahead, Tenants: tenants,
}

// kind is all that a Kind does in its own way. The methods of [Bucket] of the same names say more.
type kind struct {
	integers int    // of a state, as the scripts reply it
	leasable bool   // processes may take tokens ahead
	divided  bool   // processes divide the capacity of what is no limit
	module   string // what the scripts call a limit, and the file in lua/kind
	most     int64  // the highest level, if that is less than MaxUnits

	// Those that are nil do nothing else than level.go does for a token bucket.
	fits    func(b *Bucket, s State, charges, n int64) int64
	charged func(b *Bucket, s State, charges, n int64) State
	waits   func(b *Bucket, s State, n int64) (retry, reset, more int64) // n is at most Whole
	lapsed  func(s State) State                                          // corrects what was counted down
}

// IsLimit reports whether the bucket belongs to a limit, and not to tenants, a ban, slots or leases.
func (b *Bucket) IsLimit() bool { return b.Kind < Kinds }

// Flows reports whether the bucket belongs to a limit whose tokens flow back evenly. A State of
// any other says itself when a charge fits.
func (b *Bucket) Flows() bool { return b.IsLimit() && b.Drain > 0 }

// At returns the index of the last bucket of a kind, behind the limits, or -1.
func At(buckets []Bucket, kind Kind) int {
	for i := len(buckets) - 1; i >= 0 && !buckets[i].IsLimit(); i-- {
		if buckets[i].Kind == kind {
			return i
		}
	}
	return -1
}

// Modules returns what the scripts call the kinds of limits.
func Modules() (names []string) {
	for _, k := range kinds[:Kinds] {
		names = append(names, k.module)
	}
	return names
}

// Leasable reports whether processes may take tokens of the bucket ahead.
func (b *Bucket) Leasable() bool { return kinds[b.Kind].leasable }
