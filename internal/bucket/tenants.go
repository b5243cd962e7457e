package bucket

import "math"

var tenants = kind{
	integers: 1, fits: fitsTenant, charged: chargedTenant,

	waits: func(b *Bucket, s State, n int64) (retry, reset, more int64) {
		if fitsTenant(b, s, 1, n) > 0 { // the wait is rounded up: a charge may fit before
			return 0, 0, 0
		}
		return s.Wait, s.Wait, s.Wait
	},
}

// Tenants share a token bucket by generalized processor sharing (Parekh and Gallager, IEEE/ACM
// Transactions on Networking, 1993): what flows back into the bucket flows back from all tenants
// that have charged it, in proportion to their weights. So a virtual time v, common to all, tells
// what is left of each tenant's charges: weight × (finish - v), where the tenant's finish is the
// virtual time at which nothing is left. The sum of that is the bucket's level, so v follows from
// the level, and needs no clock:
//
//	level = Σ weight × (finish - v) = Sum - Weights × v
//
// A level above the sum has units that no tenant has charged: by a policy that is not shared, say, or
// as the rate was raised. They are added to the sum, so they flow back last.
//
// By a dynamic threshold (Choudhury and Hahne, IEEE/ACM Transactions on Networking, 1998) a tenant
// may hold no more than what is free, times its weight. A tenant that holds nothing may always
// charge the bucket if that has room.
//
// Levels, finishes and the virtual time are counted in parts of a token here. Scripts compute in
// floating point by the same operations in the same order, so all decide alike.

const (
	// Parts is how many parts a token has.
	Parts = 1 << 16
	// MaxWeight is the largest weight of a tenant.
	MaxWeight = 1000
	// MaxFinish bounds the finish of a tenant. A store that would pass it forgets who holds what.
	MaxFinish = 1 << 43
	// Slack is how many parts more than its threshold a tenant may hold for each unit of its weight,
	// for rounding. What is less than that is nothing.
	Slack = 8
	// MaxSharedBurst is the largest burst of a bucket that tenants share.
	MaxSharedBurst = 1 << 24
	// MinGone is how many tenants that may have nothing left a script looks at together. After MaxGone it
	// looks for no more: the next ones remove the others.
	MinGone, MaxGone = 32, 256
)

// Tenant is one of those that share a limit.
type Tenant struct {
	Name   string // as a store has it; "" if the limit is not shared
	Weight int64  // 1 … MaxWeight
}

// Shares are what the tenants of a bucket hold. A nil *Shares denies nothing.
type Shares struct {
	Sum     int64 // of each tenant's weight × finish, and of what no tenant has charged
	Weights int64 // of all tenants that hold something
	Finish  int64 // of this tenant; NoFinish if it holds nothing
	Held    int64 // the weight by which it holds that
	Weight  int64 // its weight now
}

// NoFinish is the finish of a tenant that holds nothing.
const NoFinish = -1

// NewTenants returns what tenants hold of a token bucket. It follows the bucket in a list, and its
// level is the bucket's.
func NewTenants(limit *Bucket) Bucket {
	b := *limit
	b.ID, b.Kind = limit.ID+":tenants", Tenants
	return b
}

// parts returns units as parts of a token.
func (b *Bucket) parts(units int64) float64 { return float64(units) * Parts / float64(b.Cost) }

// SumAt returns the sum at a level of the bucket, which has what no tenant has charged.
func (b *Bucket) SumAt(sum, level int64) int64 {
	if q := b.parts(level); float64(sum) < q {
		return int64(math.Ceil(q))
	}
	return sum
}

// Virtual returns the virtual time at a level of the bucket.
func (b *Bucket) Virtual(sum, weights, level int64) float64 {
	if weights == 0 {
		return 0
	}
	return (float64(sum) - b.parts(level)) / float64(weights)
}

// holds returns how many parts of the level this tenant has charged.
func (b *Bucket) holds(s *Shares, level int64) float64 {
	if s.Finish == NoFinish {
		return 0
	}
	return max(0, float64(s.Held)*(float64(s.Finish)-b.Virtual(s.Sum, s.Weights, level)))
}

// Holds returns how many units of the level this tenant has charged.
func (b *Bucket) Holds(s *Shares, level int64) int64 {
	return int64(math.Floor(b.holds(s, level)*float64(b.Cost)/Parts + 0.5))
}

// weighs returns the parts by which n tokens must fit.
func (b *Bucket) weighs(n int64) float64 { return float64(min(n, b.Burst)) * Parts }

// room returns how many parts this tenant may hold beside what it holds. Each part that it charges
// takes one part of that, and as many more as its weight says.
func (b *Bucket) room(s *Shares, level int64) float64 {
	return float64(float64(s.Weight)*(b.parts(b.Capacity)-b.parts(level))) - b.holds(s, level)
}

// fitsTenant is how many charges have room in this tenant's share.
func fitsTenant(b *Bucket, s State, charges, n int64) int64 {
	of := s.Shares
	if of == nil || charges == 0 {
		return charges
	}
	w, c := float64(of.Weight), b.weighs(n)
	fits := math.Floor((b.room(of, s.Level) + float64(Slack*w) + float64(w*c)) / ((1 + w) * c))
	if b.holds(of, s.Level) == 0 {
		fits = max(1, fits)
	}
	if fits >= float64(charges) {
		return charges
	}
	return max(0, int64(fits))
}

func chargedTenant(b *Bucket, s State, charges, n int64) State {
	level := s.Level + charges*b.Charge(n)
	if s.Shares != nil {
		of := *s.Shares
		b.Add(&of, s.Level, level)
		s.Shares = &of
	}
	s.Level = level
	return s
}

// Add adds the change of the bucket's level to what this tenant holds, at least to nothing. Only a
// charge gives the tenant another weight. If a finish is too large then, all tenants are forgotten,
// and the level is of a tenant without a name.
func (b *Bucket) Add(s *Shares, from, to int64) (forgotten bool) {
	if s.Weights > 0 {
		s.Sum = b.SumAt(s.Sum, from)
	}
	v, holds, weight := b.Virtual(s.Sum, s.Weights, from), b.holds(s, from), s.Weight
	if to < from && s.Finish != NoFinish {
		weight = s.Held
	}
	if s.Finish != NoFinish {
		s.Sum -= s.Held * s.Finish
		s.Weights -= s.Held
	}
	s.Finish, s.Held = NoFinish, 0
	holds += b.parts(to) - b.parts(from)
	if holds < Slack*float64(weight) {
		return false
	}
	finish := math.Floor(v + holds/float64(weight) + 0.5)
	if finish >= MaxFinish || float64(s.Sum)+finish*float64(weight) >= MaxUnits {
		s.Sum, s.Weights = b.Unnamed(to), 1
		return true
	}
	s.Finish, s.Held = int64(finish), weight
	s.Sum += s.Held * s.Finish
	s.Weights += s.Held
	return false
}

// Unnamed returns the finish of a tenant without a name and of weight 1, which holds a whole level.
func (b *Bucket) Unnamed(level int64) int64 {
	return int64(min(MaxFinish-1, math.Floor(b.parts(level)+0.5)))
}

// RemainingOf returns the whole tokens that this tenant may take one by one.
func (b *Bucket) RemainingOf(s State) int64 {
	if s.Shares == nil {
		return math.MaxInt64
	}
	return fitsTenant(b, s, math.MaxInt64, 1)
}

// MoreOf returns in how many milliseconds this tenant may take another token.
func (b *Bucket) MoreOf(s State) int64 {
	of := s.Shares
	if of == nil {
		return 0
	}
	w := float64(of.Weight)
	wants := float64(b.RemainingOf(s)+1) * (1 + w) * Parts
	short := wants - w*Parts - Slack*w - b.room(of, s.Level)
	return b.regains(short, of)
}

// regains returns in how many milliseconds the room of this tenant grows by some parts, while the same
// tenants hold something.
func (b *Bucket) regains(parts float64, s *Shares) int64 {
	if parts <= 0 {
		return 0
	}
	grows := float64(s.Weight)
	if s.Finish != NoFinish && s.Weights > 0 {
		grows += float64(s.Held) / float64(s.Weights)
	}
	return b.duration(int64(min(MaxUnits, math.Ceil(parts/grows*float64(b.Cost)/Parts))))
}

// Holder is what a tenant other than this one holds.
type Holder struct {
	Finish, Weight int64
}

// TenantWait returns in how many milliseconds a charge of n tokens fits this tenant's share, if nobody
// charges the bucket meanwhile. next returns the tenants that hold something, in the order of their
// finishes, and false at the end; it may return this tenant too, as own.
func (b *Bucket) TenantWait(s State, n int64, next func() (h Holder, own, ok bool)) int64 {
	of := s.Shares
	if of == nil || fitsTenant(b, s, 1, n) == 1 {
		return 0
	}
	sum, weights := float64(of.Sum), float64(of.Weights)
	finish, held, w := float64(of.Finish), float64(of.Held), float64(of.Weight)
	// It fits at a level at which held × (finish - v) + c ≤ w × (capacity - level).
	fits := func() float64 {
		most := float64(w*b.parts(b.Capacity)) + Slack*w - 0.25
		return (most - b.weighs(n) - held*finish + held*sum/weights) / (w + held/weights)
	}
	level := fits()
	for range MaxWalk {
		h, own, ok := next()
		if !ok {
			break
		}
		until := sum - weights*float64(h.Finish) // the level down to which the same tenants hold something
		if level >= until {
			break
		}
		if own {
			level = until // then it holds nothing
			break
		}
		sum -= float64(h.Weight * h.Finish)
		weights -= float64(h.Weight)
		level = fits()
	}
	units := int64(math.Floor(max(0, level) * float64(b.Cost) / Parts))
	return max(1, b.duration(s.Level-units))
}

// MaxWalk is how many tenants a store looks at to find when a charge fits.
const MaxWalk = 512
