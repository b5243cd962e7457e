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

	fits       func(b *Bucket, level int64, of *Shares, charges, n int64) int64
	charged    func(b *Bucket, s State, charges, n int64) State
	retryAfter func(b *Bucket, level, wait, n int64) int64
	resetAfter func(b *Bucket, level, wait, reset int64) int64
	moreAfter  func(b *Bucket, level, wait, soon int64) int64
	lapsed     func(s State) State // corrects a state of which the level and the waits were counted down, if not nil
	denies     func(b *Bucket, s State, ms, n int64) bool
}

// waitOf is when a bucket admits a charge if a State says that itself.
func waitOf(_ *Bucket, _, wait, _ int64) int64 { return wait }

// waits reports whether such a bucket still denies a charge.
func waits(_ *Bucket, s State, ms, _ int64) bool { return s.Wait > ms }

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

// Integers returns how many integers the scripts reply of the bucket's state.
func (b *Bucket) Integers() int { return kinds[b.Kind].integers }
