package testkit

import (
	"fmt"
	"math"
	"math/big"
	"time"

	"github.com/ginlimit/ginlimit"
)

// span is from the least to the most that is right.
type span struct{ from, to float64 }

func (s span) has(x float64) bool { return s.from <= x && x <= s.to }

func (s span) String() string { return fmt.Sprintf("%.3f to %.3f", s.from, s.to) }

// largest returns the larger of two at each end, and least the smaller.
func largest(a, b span) span { return span{max(a.from, b.from), max(a.to, b.to)} }
func least(a, b span) span   { return span{min(a.from, b.from), min(a.to, b.to)} }

// tenantRow is what a decision may say of one limit. Times are in milliseconds.
type tenantRow struct {
	remaining, retry, reset span
	bucket, share           span // parts of retry
	never                   bool
}

// TakeAs compares a decision with the definition, and makes the charges of the decision. n is how many
// tokens were wanted, and one how many a charge takes: AllowN has one = n, AllowUpTo one = 1, and Peek
// n = 0 and one = 1. The decision was made up to late milliseconds after now.
func (m *TenantsModel) TakeAs(key string, t Tenant, n, one, late int64, l ginlimit.Limit, got ginlimit.Result) error {
	b := m.Bucket(key, l)
	fit := b.fits(t, late, one)
	if got.Allowed && fit.to < 1 || !got.Allowed && fit.from >= 1 {
		return fmt.Errorf("allowed is %v, but %s charges fit", got.Allowed, fit)
	}
	granted := least(fit, span{float64(n / one), float64(n / one)})
	if !granted.has(float64(int64(got.Granted) / one)) {
		return fmt.Errorf("%d granted, want %s charges of %d", got.Granted, granted, one)
	}
	if got.Granted > 0 {
		b.charge(t, int64(got.Granted))
	}
	if got.Limit != l {
		return fmt.Errorf("the limit is %s", got.Limit)
	}
	row := b.row(t, late, one, got.Allowed)
	return row.check(got)
}

// fits returns how many charges of n tokens fit, one after another.
func (b *SharedBucket) fits(t Tenant, late, n int64) (charges span) {
	if n > b.holds {
		return span{}
	}
	room := new(big.Rat).Sub(Tokens(b.holds), b.missing)
	free, _ := room.Float64()
	more := b.perMilli()*float64(late) + b.Unsure
	charges.from = float64(max(0, FloorSigned(room)) / n)
	charges.to = charges.from
	if more > 0 {
		charges.from = max(0, math.Floor((free-b.Unsure)/float64(n)))
		charges.to = max(0, math.Floor((free+more)/float64(n)))
	}
	_, own := b.Holds(t.Name)
	if late > 0 {
		own.from = max(0, own.from-b.perMilli()*float64(late))
	}
	charges.from = inTurn(own.to, free-b.Unsure, float64(t.Weight), float64(n), charges.from, part)
	charges.to = inTurn(own.from, free+more, float64(t.Weight), float64(n), charges.to, -part*(1+slack*float64(t.Weight)))
	return charges
}

// inTurn returns how many charges of n tokens fit the share of a tenant, with some tokens to spare.
func inTurn(own, free, weight, n, most, spare float64) (charges float64) {
	for charges < most && (own == 0 || own+n+spare <= weight*free) {
		own, free, charges = own+n, free-n, charges+1
	}
	return charges
}

func (b *SharedBucket) perMilli() float64 {
	rate, _ := perMilli(b.limit).Float64()
	return rate
}

// row returns what a decision on charges of n tokens may say of the bucket, after its charges.
func (b *SharedBucket) row(t Tenant, late, n int64, allowed bool) (r tenantRow) {
	rate, unsure := b.perMilli(), b.unsure()
	r.remaining = b.fits(t, late, 1)
	missing, _ := b.missing.Float64()
	sloppy := float64(late) + b.Unsure/rate
	full := float64(ceil(new(big.Rat).Quo(b.missing, perMilli(b.limit))))
	r.reset = span{math.Floor(max(0, full-sloppy)), math.Ceil(full + b.Unsure/rate)}
	if allowed {
		return r
	}
	r.never = n > b.holds
	if short := new(big.Rat).Add(b.missing, Tokens(n-b.holds)); !r.never {
		tokens, _ := short.Float64()
		wait := math.Ceil(tokens / rate)
		if short.Sign() > 0 {
			wait = float64(ceil(short.Quo(short, perMilli(b.limit))))
		}
		r.bucket = span{math.Floor(max(0, wait-sloppy)), max(0, math.Ceil(wait+b.Unsure/rate))}
	}
	fit := b.fits(t, late, n)
	if fit.from < 1 && !r.never {
		wait, slope := b.untilFits(t, missing, float64(n))
		by := 2 + unsure*slope/rate
		r.share = largest(r.share, span{math.Floor(max(0, wait/rate-by-sloppy)), math.Ceil(wait/rate + by)})
	}
	if r.share.to > 0 {
		r.share.to = max(r.share.to, 1)
	}
	r.retry = largest(r.bucket, r.share)
	r.reset = largest(r.reset, r.retry)
	return r
}

// untilFits returns how many tokens must flow back until a charge of n tokens fits a tenant's share,
// and how much more at most for each token more that it holds.
func (b *SharedBucket) untilFits(t Tenant, missing, n float64) (tokens, slope float64) {
	tenants := map[string]*modelTenant{}
	for name, one := range b.tenants {
		tenants[name] = &modelTenant{one.tokens, one.weight}
	}
	weight, free := float64(t.Weight), float64(b.holds)-missing
	slope = 1 + 1/weight
	for own := tenants[t.Name]; own != nil; own = tenants[t.Name] {
		_, share, weights := next(tenants)
		slope = max(slope, 1+weights/own.weight)
		grows := weight + own.weight/weights // the room, with each token that flows back
		short := own.tokens + n - weight*free
		if short <= 0 {
			return tokens, slope
		}
		if short/grows <= share*weights {
			return tokens + short/grows, slope
		}
		flows := share * weights
		drain(tenants, flows)
		tokens, free = tokens+flows, free+flows
	}
	return tokens, slope
}

// check compares a decision with what may be said of its limit.
func (r *tenantRow) check(got ginlimit.Result) error {
	ms := func(d time.Duration) float64 { return float64(d.Milliseconds()) }
	switch {
	case !r.remaining.has(float64(got.Remaining)):
		return fmt.Errorf("%d remain, want %s", got.Remaining, r.remaining)
	case r.never != (got.RetryAfter == ginlimit.Never):
		return fmt.Errorf("retry after %s, never: %v", got.RetryAfter, r.never)
	case !r.never && !r.retry.has(ms(got.RetryAfter)):
		return fmt.Errorf("retry after %s, want %s ms (bucket %s, share %s)", got.RetryAfter, r.retry, r.bucket, r.share)
	case !r.reset.has(ms(got.ResetAfter)):
		return fmt.Errorf("reset after %s, want %s ms", got.ResetAfter, r.reset)
	}
	may := false
	switch got.Cause {
	case 0:
		may = got.Allowed
	case ginlimit.CauseNever:
		may = r.never
	case ginlimit.CauseShare:
		may = !r.never && r.share.to >= r.bucket.from && r.share.to > 0
	case ginlimit.CauseRate:
		may = !r.never && r.bucket.to >= r.share.from && r.bucket.to > 0
	}
	if !may {
		return fmt.Errorf("the cause is %s: bucket %s, share %s", got.Cause, r.bucket, r.share)
	}
	return nil
}
