package ginlimit_test

import (
	"math/big"
	"time"

	"github.com/ginlimit/ginlimit"
)

// model is the token bucket as one would define it, in exact fractions of tokens.
type model struct {
	now     int64 // ms
	buckets map[string]*modelBucket
}

type modelBucket struct {
	missing *big.Rat // tokens it is short of full, at
	at      int64
	block   int64 // milliseconds for which it is blocked, at
}

func newModel() *model { return &model{buckets: map[string]*modelBucket{}} }

func (m *model) advance(d time.Duration) { m.now += d.Milliseconds() }

func burst(l ginlimit.Limit) int64 {
	if l.Burst == 0 {
		return int64(l.Rate)
	}
	return int64(l.Burst)
}

// perMilli is how many tokens flow back in a millisecond.
func perMilli(l ginlimit.Limit) *big.Rat { return big.NewRat(int64(l.Rate), l.Period.Milliseconds()) }

func tokens(n int64) *big.Rat { return big.NewRat(n, 1) }

func (m *model) bucket(key string, l ginlimit.Limit) *modelBucket {
	id := key + " " + l.Period.String()
	b := m.buckets[id]
	if b == nil {
		b = &modelBucket{missing: new(big.Rat)}
		m.buckets[id] = b
	}
	back := new(big.Rat).Mul(tokens(m.now-b.at), perMilli(l))
	if b.missing.Sub(b.missing, back); b.missing.Sign() < 0 {
		b.missing.SetInt64(0)
	}
	b.block = max(0, b.block-(m.now-b.at))
	b.at = m.now
	return b
}

// floor and ceil of a fraction that is not negative.
func floor(r *big.Rat) int64 { return new(big.Int).Quo(r.Num(), r.Denom()).Int64() }

func ceil(r *big.Rat) int64 {
	n := floor(r)
	if tokens(n).Cmp(r) < 0 {
		n++
	}
	return n
}

// found is how many tokens are missing for those who take. A block holds under a larger limit too.
func (m *model) found(key string, l ginlimit.Limit) *big.Rat {
	b := m.bucket(key, l)
	if least := blocking(b.block, l); b.block > 0 && least.Cmp(b.missing) > 0 {
		return least
	}
	return b.missing
}

// room is how many tokens a bucket can give.
func (m *model) room(key string, l ginlimit.Limit) *big.Rat {
	return new(big.Rat).Sub(tokens(burst(l)), m.found(key, l))
}

func (m *model) fits(key string, n int64, limits []ginlimit.Limit) bool {
	for _, l := range limits {
		if m.room(key, l).Cmp(tokens(n)) < 0 {
			return false
		}
	}
	return true
}

// take is AllowN with least = n, AllowUpTo with least = 1, and Peek with n = 0.
func (m *model) take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
	granted := n
	for _, l := range limits {
		if room := m.room(key, l); room.Cmp(tokens(granted)) < 0 {
			granted = max(0, floorSigned(room))
		}
	}
	if granted < least {
		granted = 0
	}
	allowed := m.fits(key, least, limits)
	var results []ginlimit.Result
	for _, l := range limits {
		b := m.bucket(key, l)
		r := ginlimit.Result{Allowed: allowed, Granted: int(granted), Limit: l}
		if !allowed {
			short := new(big.Rat).Add(m.found(key, l), tokens(least-burst(l)))
			if short.Sign() > 0 {
				r.RetryAfter = millis(ceil(short.Quo(short, perMilli(l))))
			}
			if least > burst(l) {
				r.RetryAfter = -1
			}
		}
		if granted > 0 {
			b.missing.Add(b.missing, tokens(granted))
		}
		r.Remaining = int(max(0, floorSigned(m.room(key, l))))
		r.ResetAfter = millis(ceil(new(big.Rat).Quo(m.found(key, l), perMilli(l))))
		results = append(results, r)
	}
	return closest(results)
}

// closest is the refusal that lasts longest, else the least left, else the last to be full.
func closest(results []ginlimit.Result) ginlimit.Result {
	best := results[0]
	for _, r := range results[1:] {
		switch {
		case (r.RetryAfter < 0) != (best.RetryAfter < 0):
			if r.RetryAfter < 0 {
				best = r
			}
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
	return best
}

func floorSigned(r *big.Rat) int64 {
	if r.Sign() < 0 {
		return -1
	}
	return floor(r)
}

func (m *model) refund(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		b := m.bucket(key, l)
		least := new(big.Rat)
		if b.block > 0 {
			least = blocking(b.block, l)
		}
		if after := new(big.Rat).Sub(b.missing, tokens(n)); after.Cmp(least) > 0 {
			least = after
		}
		if least.Cmp(b.missing) < 0 {
			b.missing = least
		}
	}
}

// blocking is how many tokens must be missing for none to be had within ms.
func blocking(ms int64, l ginlimit.Limit) *big.Rat {
	missing := new(big.Rat).Mul(tokens(ms), perMilli(l))
	return missing.Add(missing, tokens(burst(l)-1))
}

func (m *model) block(key string, d time.Duration, limits []ginlimit.Limit) {
	for _, l := range limits {
		b := m.bucket(key, l)
		ms := int64((d + time.Millisecond - 1) / time.Millisecond)
		b.block = max(b.block, ms)
		if missing := blocking(ms, l); missing.Cmp(b.missing) > 0 {
			b.missing = missing
		}
	}
}

func (m *model) reset(key string, limits []ginlimit.Limit) {
	for _, l := range limits {
		*m.bucket(key, l) = modelBucket{missing: new(big.Rat), at: m.now}
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
