package bucket

import "math"

// SlotRetry is after how many milliseconds a client is told to try again that finds no slot: nobody knows when a request ends.
const SlotRetry = 1000

// NewSlots returns the bucket of so many slots, each held by a request in flight. Its level is the slots in use.
func NewSlots(n int64) Bucket {
	return Bucket{ID: "slots", Kind: Slots, Burst: math.MaxInt64, Whole: math.MaxInt64, Cost: 1, Capacity: n}
}

// NewBan returns the bucket whose level is for how many milliseconds a client is banned: at first for first, in the end for longest.
func NewBan(first, longest int64) Bucket {
	return Bucket{ID: "ban", Kind: Ban, Burst: math.MaxInt64, Whole: math.MaxInt64, Cost: first, Capacity: longest}
}

// Guards reports whether the bucket is none of a limit's: it has no tokens.
func (b *Bucket) Guards() bool { return b.Kind >= Slots }

// Counted returns how many of the buckets are those of limits. The others come last.
func Counted(buckets []Bucket) int {
	n := len(buckets)
	for n > 0 && buckets[n-1].Guards() {
		n--
	}
	return n
}

// BanLength returns for how many milliseconds a client is banned for the n-th time.
func (b *Bucket) BanLength(n int64) int64 {
	length := b.Cost
	for ; n > 1 && length < b.Capacity; n-- {
		length *= 2
	}
	return min(length, b.Capacity)
}

// fitGuard is [Bucket.Fit] of what has no tokens: each charge takes a slot, and a ban takes none.
func (b *Bucket) fitGuard(level, charges int64) int64 {
	if b.Kind == Slots {
		return min(charges, max(0, b.Capacity-level))
	}
	if level > 0 {
		return 0
	}
	return charges
}

// waitGuard returns in how many milliseconds a further charge fits.
func (b *Bucket) waitGuard(s State) int64 {
	switch {
	case b.Kind == Ban:
		return s.Wait
	case s.Level >= b.Capacity:
		return SlotRetry
	}
	return 0
}

// Attempt is what a process tells of a client's slots when it tries to take one: what it holds, absolute and numbered, so that
// what is lost, repeated or late changes nothing for long.
type Attempt struct {
	Number  int64 // of the attempt; a later one of this process has a larger number; 0 if it only looks
	Settled int64 // all attempts up to this number hold a slot or never will
	Held    int64 // the slots that these hold
	Doubt   bool  // set by a store that denied the call: it may have granted the attempt all the same
}
