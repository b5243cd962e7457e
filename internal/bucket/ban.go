package bucket

import "math"

// NewBan returns a ban. Its level is how many milliseconds it still lasts. A client's first ban
// lasts first milliseconds, and each further one twice as long as the one before, at most longest.
func NewBan(first, longest int64) Bucket {
	return Bucket{ID: "ban", Kind: Ban, Burst: math.MaxInt64, Whole: math.MaxInt64, Cost: first, Capacity: longest}
}

// BanLength returns how many milliseconds a client's n-th ban lasts.
func (b *Bucket) BanLength(n int64) int64 {
	length := b.Cost
	for ; n > 1 && length < b.Capacity; n-- {
		length *= 2
	}
	return min(length, b.Capacity)
}

// fitBan is [Bucket.Fit] of a ban: all charges fit, or none while it lasts.
func fitBan(level, charges int64) int64 {
	if level > 0 {
		return 0
	}
	return charges
}
