package bucket

import "math/bits"

var ahead = kind{integers: 1}

// NewAhead returns the bucket of the tokens that all processes take ahead of a limit: at most n at
// once, and then as many as flow back to the limit.
func NewAhead(limit *Bucket, n int64) Bucket {
	return Bucket{
		ID: "lease", Kind: Ahead, Burst: n, Whole: n, Cost: limit.Cost, Drain: limit.Drain, Capacity: n * limit.Cost,
	}
}

// Slower reports whether fewer tokens flow back to a token bucket than to another in the same time.
func (b *Bucket) Slower(other *Bucket) bool {
	high, low := bits.Mul64(uint64(b.Drain), uint64(other.Cost))
	otherHigh, otherLow := bits.Mul64(uint64(other.Drain), uint64(b.Cost))
	return high < otherHigh || high == otherHigh && low < otherLow
}

// Regained returns how many tokens flow back to a token bucket in ms milliseconds.
func (b *Bucket) Regained(ms int64) int64 { return min(ms, MaxUnits/b.Drain) * b.Drain / b.Cost }

// Hold returns a state in which a token bucket denies a charge of n tokens for ms more milliseconds at
// least, and tells that no more than some tokens are left. A window's state says itself when a charge
// fits.
func (b *Bucket) Hold(s State, ms, n, left int64) State {
	if b.Flows() && n <= b.Whole {
		s.Wait = max(b.Status(s, n).Retry, ms)
		s.Level = max(s.Level, b.Capacity-b.Room(left+1)+1)
	}
	return s
}

// RegainTime returns how many milliseconds a token bucket takes to regain n tokens.
func (b *Bucket) RegainTime(n int64) int64 { return b.duration(b.Room(n)) }
