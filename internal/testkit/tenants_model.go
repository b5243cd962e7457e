package testkit

import (
	"maps"
	"math"
	"math/big"
	"time"

	"github.com/ginlimit/ginlimit"
)

// TenantsModel is token buckets that tenants share, as one would define them: what each tenant holds is
// kept in tokens, and drains from one event to the next. All that hold something drain at rates in
// proportion to their weights, until one of them holds nothing; then the others do.
type TenantsModel struct {
	Now     int64 // ms
	Floor   int64 // tokens that stay in each bucket
	buckets map[string]*SharedBucket
}

// Tenant is one of those that share a limit.
type Tenant struct {
	Name   string
	Weight int64
}

// SharedBucket is a bucket and what each tenant holds of it.
type SharedBucket struct {
	limit   ginlimit.Limit
	holds   int64    // tokens, without the floor
	missing *big.Rat // tokens it is short of full, at
	at      int64
	tenants map[string]*modelTenant
	flown   float64                // tokens that have flowed back for each weight
	gone    map[string]modelTenant // the tenants that hold nothing again: their weight, and flown at that time

	// Stores count in parts of a token, so what a tenant holds there differs somewhat from the model.
	heaviest float64 // weight
	charges  float64
	variance float64 // of their sum, in tokens
	moved    float64 // tokens that may have flowed back from other tenants, as changes of a store were late
	Unsure   float64 // tokens by which missing may differ
}

type modelTenant struct {
	tokens float64
	weight float64 // by which they drain
}

const (
	part  = 1.0 / 65536 // of a token
	slack = 8           // parts for each unit of weight by which a store rounds up
)

// NewTenantsModel returns a model whose buckets are full.
func NewTenantsModel(floor int64) *TenantsModel {
	return &TenantsModel{Floor: floor, buckets: map[string]*SharedBucket{}}
}

// Advance lets time pass.
func (m *TenantsModel) Advance(d time.Duration) { m.Now += d.Milliseconds() }

// Bucket returns the bucket of a key as it is now.
func (m *TenantsModel) Bucket(key string, l ginlimit.Limit) *SharedBucket {
	id := key + " " + l.Period.String()
	b := m.buckets[id]
	if b == nil {
		b = &SharedBucket{
			limit: l, holds: Burst(l) - m.Floor, missing: new(big.Rat), at: m.Now,
			tenants: map[string]*modelTenant{}, gone: map[string]modelTenant{},
		}
		m.buckets[id] = b
	}
	back := new(big.Rat).Mul(Tokens(m.Now-b.at), perMilli(l))
	b.At(new(big.Rat).Sub(b.missing, back))
	b.at = m.Now
	return b
}

// Missing returns how many tokens the bucket is short of full, and by how many that may differ.
func (b *SharedBucket) Missing() (tokens *big.Rat, unsure float64) { return b.missing, b.Unsure }

// At lets tokens flow back until a number is missing.
func (b *SharedBucket) At(missing *big.Rat) {
	if missing.Sign() <= 0 {
		more, _ := missing.Float64()
		b.missing = new(big.Rat)
		b.drain(math.Inf(1))
		if b.Unsure = max(0, b.Unsure+more); b.Unsure == 0 { // it is full in a store too
			clear(b.gone)
			b.charges, b.variance, b.moved = 0, 0, 0
		}
		return
	}
	flows, _ := new(big.Rat).Sub(b.missing, missing).Float64()
	b.drain(flows)
	b.missing = missing
}

// drain lets tokens flow back, and notes who holds nothing then.
func (b *SharedBucket) drain(tokens float64) {
	before := maps.Clone(b.tenants)
	b.flown += drain(b.tenants, tokens)
	for name, t := range before {
		if b.tenants[name] == nil {
			b.gone[name] = modelTenant{b.flown, t.weight}
		}
	}
}

// drain lets tokens flow back from all that hold something. It returns how many flowed back for each weight.
func drain(tenants map[string]*modelTenant, tokens float64) (flown float64) {
	for len(tenants) > 0 {
		name, share, weights := next(tenants)
		if share*weights <= tokens {
			delete(tenants, name)
		} else {
			share, name = tokens/weights, ""
		}
		for _, t := range tenants {
			t.tokens = max(0, t.tokens-share*t.weight)
		}
		flown += share
		if tokens -= share * weights; name == "" {
			break
		}
	}
	return flown
}

// next returns the tenant that holds nothing first, how many tokens flow back for each weight until
// then, and the sum of the weights.
func next(tenants map[string]*modelTenant) (name string, share, weights float64) {
	share = math.Inf(1)
	for n, t := range tenants {
		weights += t.weight
		if t.tokens/t.weight < share {
			name, share = n, t.tokens/t.weight
		}
	}
	return name, share, weights
}

// Holds returns how many tokens a tenant holds, and how many it may hold at least and at most in a store.
func (b *SharedBucket) Holds(name string) (tokens float64, in span) {
	unsure := b.unsure()
	if t := b.tenants[name]; t != nil {
		return t.tokens, span{max(0, t.tokens-unsure), t.tokens + unsure}
	}
	if gone, ok := b.gone[name]; ok && (b.flown-gone.tokens)*gone.weight <= 2*unsure {
		return 0, span{0, unsure}
	}
	return 0, span{}
}

// unsure returns by how many tokens what a tenant holds in a store may differ from the model.
func (b *SharedBucket) unsure() float64 {
	return min(b.charges, 6*math.Sqrt(b.variance)) + (2+slack*b.heaviest)*part + b.moved + b.Unsure
}

// add adds tokens to what a tenant holds, and to what is missing.
func (b *SharedBucket) add(t Tenant, missing *big.Rat, tokens float64) {
	now := b.tenants[t.Name]
	if now == nil {
		now = new(modelTenant)
		b.tenants[t.Name] = now
	}
	if now.tokens += tokens; tokens > 0 || now.weight == 0 {
		now.weight = float64(t.Weight)
	}
	b.heaviest = max(b.heaviest, now.weight)
	rounded := now.weight * part / 2
	b.charges += rounded
	b.variance += rounded * rounded / 3
	b.missing = missing
	if now.tokens <= 0 {
		delete(b.tenants, t.Name)
		b.gone[t.Name] = modelTenant{b.flown, now.weight}
	}
	if missing.Sign() <= 0 {
		b.At(new(big.Rat))
	}
}

// charge charges n tokens.
func (b *SharedBucket) charge(t Tenant, n int64) {
	b.add(t, new(big.Rat).Add(b.missing, Tokens(n)), float64(n))
}

// giveBack gives tokens back: first those that the tenant holds, then what all others hold.
func (b *SharedBucket) giveBack(t Tenant, n int64) {
	after := new(big.Rat).Sub(b.missing, Tokens(n))
	if after.Sign() <= 0 {
		b.At(after)
		return
	}
	holds, _ := b.Holds(t.Name)
	own := min(float64(n), holds)
	b.add(t, after, -own)
	b.drain(float64(n) - own)
}

// Refund gives n tokens back.
func (m *TenantsModel) Refund(key string, t Tenant, n int64, l ginlimit.Limit) {
	m.Bucket(key, l).giveBack(t, n)
}

// Settle makes a charge of n tokens that was just made, up to late milliseconds ago, as large as actual
// tokens.
func (m *TenantsModel) Settle(key string, t Tenant, n, actual, late int64, l ginlimit.Limit) {
	b := m.Bucket(key, l)
	if actual < n {
		b.Unsure += b.perMilli() * float64(late) * 1.1
		b.giveBack(t, n-actual)
		return
	}
	debt := new(big.Rat).Sub(Tokens(2*Burst(l)), b.missing)
	if more := min(actual-n, max(0, FloorSigned(debt))); more > 0 {
		b.charge(t, more)
	}
}

// Reset gives back what a tenant holds.
func (m *TenantsModel) Reset(key string, t Tenant, l ginlimit.Limit) {
	b := m.Bucket(key, l)
	holds, _ := b.Holds(t.Name)
	after := new(big.Rat).Sub(b.missing, new(big.Rat).SetFloat64(holds))
	// A store gives back whole units, of which one or more drain in a millisecond.
	b.Unsure = b.unsure() + b.perMilli()/2
	if len(b.tenants) == 1 && holds > 0 || after.Sign() <= 0 {
		after.SetInt64(0)
	}
	b.add(t, after, -holds)
}
