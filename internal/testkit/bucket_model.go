package testkit

import (
	"math/big"
	"time"

	"github.com/ginlimit/ginlimit"
)

// BucketModel is the token bucket as one would define it, in exact fractions of tokens.
type BucketModel struct {
	Now     int64 // ms
	Buckets map[string]*ModelBucket
}

type ModelBucket struct {
	Missing *big.Rat // tokens it is short of full, at
	At      int64
	Block   int64 // milliseconds for which it is blocked, at
}

// NewBucketModel returns a model whose buckets are full.
func NewBucketModel() *BucketModel { return &BucketModel{Buckets: map[string]*ModelBucket{}} }

// Advance lets time pass.
func (m *BucketModel) Advance(d time.Duration) { m.Now += d.Milliseconds() }

// Burst is how many tokens the bucket of a limit holds.
func Burst(l ginlimit.Limit) int64 {
	if l.Burst == 0 {
		return int64(l.Rate)
	}
	return int64(l.Burst)
}

// perMilli is how many tokens flow back in a millisecond.
func perMilli(l ginlimit.Limit) *big.Rat { return big.NewRat(int64(l.Rate), l.Period.Milliseconds()) }

// Tokens is n as a fraction.
func Tokens(n int64) *big.Rat { return big.NewRat(n, 1) }

// Bucket returns the bucket of a key as it is now.
func (m *BucketModel) Bucket(key string, l ginlimit.Limit) *ModelBucket {
	id := key + " " + l.Period.String()
	b := m.Buckets[id]
	if b == nil {
		b = &ModelBucket{Missing: new(big.Rat)}
		m.Buckets[id] = b
	}
	back := new(big.Rat).Mul(Tokens(m.Now-b.At), perMilli(l))
	if b.Missing.Sub(b.Missing, back); b.Missing.Sign() < 0 {
		b.Missing.SetInt64(0)
	}
	b.Block = max(0, b.Block-(m.Now-b.At))
	b.At = m.Now
	return b
}

// floor and ceil of a fraction that is not negative.
func floor(r *big.Rat) int64 { return new(big.Int).Quo(r.Num(), r.Denom()).Int64() }

func ceil(r *big.Rat) int64 {
	n := floor(r)
	if Tokens(n).Cmp(r) < 0 {
		n++
	}
	return n
}

// found is how many tokens are missing for those who take. A block holds under a larger limit too.
func (m *BucketModel) found(key string, l ginlimit.Limit) *big.Rat {
	b := m.Bucket(key, l)
	if least := blocking(b.Block, l); b.Block > 0 && least.Cmp(b.Missing) > 0 {
		return least
	}
	return b.Missing
}

// Over reports whether a bucket is blocked, or in debt: more is missing than it holds.
func (m *BucketModel) Over(key string, l ginlimit.Limit) bool { return m.room(key, l).Sign() < 0 }

// room is how many tokens a bucket can give.
func (m *BucketModel) room(key string, l ginlimit.Limit) *big.Rat {
	return new(big.Rat).Sub(Tokens(Burst(l)), m.found(key, l))
}

func (m *BucketModel) fits(key string, n int64, limits []ginlimit.Limit) bool {
	for _, l := range limits {
		if m.room(key, l).Cmp(Tokens(n)) < 0 {
			return false
		}
	}
	return true
}

// Take is AllowN with least = n, AllowUpTo with least = 1, and Peek with n = 0.
func (m *BucketModel) Take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
	granted := n
	for _, l := range limits {
		if room := m.room(key, l); room.Cmp(Tokens(granted)) < 0 {
			granted = max(0, FloorSigned(room))
		}
	}
	if granted < least {
		granted = 0
	}
	allowed := m.fits(key, least, limits)
	var results []ginlimit.Result
	for _, l := range limits {
		b := m.Bucket(key, l)
		r := ginlimit.Result{Allowed: allowed, Granted: int(granted), Limit: l}
		if !allowed {
			short := new(big.Rat).Add(m.found(key, l), Tokens(least-Burst(l)))
			if short.Sign() > 0 {
				r.RetryAfter = Millis(ceil(short.Quo(short, perMilli(l))))
			}
			if least > Burst(l) {
				r.RetryAfter = ginlimit.Never
			}
		}
		if granted > 0 {
			b.Missing.Add(b.Missing, Tokens(granted))
		}
		r.Remaining = int(max(0, FloorSigned(m.room(key, l))))
		r.ResetAfter = Millis(ceil(new(big.Rat).Quo(m.found(key, l), perMilli(l))))
		results = append(results, r)
	}
	return Closest(results)
}

// Closest is the denial that lasts longest, else the least left, else the last to be full. A denial
// says why.
func Closest(results []ginlimit.Result) ginlimit.Result {
	best := results[0]
	for _, r := range results[1:] {
		switch {
		case r.RetryAfter != best.RetryAfter:
			if r.RetryAfter > best.RetryAfter {
				best = r
			}
		case r.Remaining != best.Remaining:
			if r.Remaining < best.Remaining {
				best = r
			}
		case r.ResetAfter > best.ResetAfter:
			best = r
		}
	}
	switch {
	case best.Allowed:
	case best.RetryAfter == ginlimit.Never:
		best.Cause = ginlimit.CauseNever
	default:
		best.Cause = ginlimit.CauseRate
	}
	return best
}

// FloorSigned is the floor of a fraction, or -1 of any negative one.
func FloorSigned(r *big.Rat) int64 {
	if r.Sign() < 0 {
		return -1
	}
	return floor(r)
}

// Refund gives n tokens back.
func (m *BucketModel) Refund(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		b := m.Bucket(key, l)
		least := new(big.Rat)
		if b.Block > 0 {
			least = blocking(b.Block, l)
		}
		if after := new(big.Rat).Sub(b.Missing, Tokens(n)); after.Cmp(least) > 0 {
			least = after
		}
		if least.Cmp(b.Missing) < 0 {
			b.Missing = least
		}
	}
}

// blocking is how many tokens must be missing for none to be had within ms.
func blocking(ms int64, l ginlimit.Limit) *big.Rat {
	missing := new(big.Rat).Mul(Tokens(ms), perMilli(l))
	return missing.Add(missing, Tokens(Burst(l)-1))
}

// Block denies every token for a time.
func (m *BucketModel) Block(key string, d time.Duration, limits []ginlimit.Limit) {
	for _, l := range limits {
		b := m.Bucket(key, l)
		ms := int64((d + time.Millisecond - 1) / time.Millisecond)
		b.Block = max(b.Block, ms)
		if missing := blocking(ms, l); missing.Cmp(b.Missing) > 0 {
			b.Missing = missing
		}
	}
}

// Reset fills the buckets of a key.
func (m *BucketModel) Reset(key string, limits []ginlimit.Limit) {
	for _, l := range limits {
		*m.Bucket(key, l) = ModelBucket{Missing: new(big.Rat), At: m.Now}
	}
}

// Millis is n milliseconds.
func Millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
