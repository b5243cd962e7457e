package bucket

import "math"

var ban = kind{
	integers: 2,

	fits: func(_ *Bucket, s State, charges, _ int64) int64 {
		if s.Level > 0 {
			return 0
		}
		return charges
	},
	waits: func(_ *Bucket, s State, _ int64) (retry, reset, more int64) { return s.Wait, s.Wait, s.Wait },

	charged: func(_ *Bucket, s State, _, _ int64) State { return s },
	lapsed: func(s State) State { // also of a ban that a denial has just caused
		s.Level = s.Wait
		return s
	},
}

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
