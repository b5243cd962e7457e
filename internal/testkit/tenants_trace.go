package testkit

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"time"

	"github.com/ginlimit/ginlimit"
)

// TenantStep is one call of a trace of tenants, and the time that passes before it.
type TenantStep struct {
	Wait   time.Duration
	Op     string
	Tenant Tenant
	N      int
	Actual int // of a Settle
}

// String says what a step does.
func (s TenantStep) String() string {
	return fmt.Sprintf("after %s: %s(%s of weight %d, n=%d, actual=%d)",
		s.Wait, s.Op, s.Tenant.Name, s.Tenant.Weight, s.N, s.Actual)
}

// TenantTrace returns the steps that a seed stands for, of tenants with weights up to most that share a limit.
func TenantTrace(seed uint64, length int, limit ginlimit.Limit, most int64) []TenantStep {
	r := rand.New(rand.NewPCG(seed, 7))
	tenants := 2 + r.IntN(6)
	token := limit.Period / time.Duration(limit.Rate)
	burst := int(Burst(limit))
	weights := make([]int64, tenants)
	for i := range weights {
		weights[i] = 1 + r.Int64N(most)
	}
	steps := make([]TenantStep, length)
	elapsed, reset := time.Duration(0), time.Duration(-1) // the latest
	for i := range steps {
		who := r.IntN(tenants)
		if r.IntN(3) > 0 {
			who = r.IntN(1 + who) // some ask more often
		}
		if r.IntN(60) == 0 {
			weights[who] = 1 + r.Int64N(most)
		}
		s := TenantStep{Op: "AllowN", N: 1, Tenant: Tenant{string(rune('a' + who)), weights[who]}}
		switch r.IntN(8) {
		case 0, 1:
			s.Wait = token
		case 2:
			s.Wait = time.Duration(r.Int64N(int64(3*token) + 1))
		case 3:
			s.Wait = time.Duration(r.IntN(4)) * time.Millisecond
		case 4:
			if r.IntN(60) == 0 {
				s.Wait = time.Duration(r.Int64N(int64(token) * int64(burst)))
			}
		}
		s.Wait = s.Wait.Truncate(time.Millisecond)
		elapsed += s.Wait
		switch x := r.IntN(40); {
		case x < 8:
			s.N = 1 + r.IntN(max(1, burst/4))
		case x < 9:
			s.N = burst - 1 + r.IntN(3)
		case x < 15:
			s.Op, s.N = "AllowUpTo", 1+r.IntN(burst)
		case x < 20:
			s.Op = "Peek"
		case x < 23:
			s.Op, s.N = "Refund", 1+r.IntN(max(1, burst/4))
		case x < 26:
			s.Op, s.N = "Settle", 1+r.IntN(max(1, burst/4))
			s.Actual = r.IntN(2 * s.N)
			if reset >= 0 && elapsed-reset <= 2*patience {
				s.Op = "AllowN" // Redis may not know whether the reset came after it
			}
		case x < 28 && r.IntN(3) == 0:
			s.Op, reset = "Reset", elapsed
		}
		steps[i] = s
	}
	return steps
}

// Apply makes a step on a shared policy.
func (s TenantStep) Apply(ctx context.Context, p *ginlimit.Policy, key string) (r ginlimit.Result, err error) {
	p = p.Share(s.Tenant.Name, int(s.Tenant.Weight))
	switch s.Op {
	case "AllowN":
		return p.AllowN(ctx, key, s.N)
	case "AllowUpTo":
		return p.AllowUpTo(ctx, key, s.N)
	case "Peek":
		return p.Peek(ctx, key)
	case "Refund":
		return r, p.Refund(ctx, key, s.N)
	case "Settle":
		reserved, err := p.Reserve(ctx, key, s.N)
		if err != nil {
			return r, err
		}
		if r = reserved.Result(); !reserved.OK() {
			return r, nil
		}
		return r, reserved.Settle(ctx, s.Actual)
	}
	return r, p.Reset(ctx, key)
}

// Check compares what a step returned with the model, and makes the step there. The step was made up to late
// milliseconds after now.
func (s TenantStep) Check(m *TenantsModel, key string, late int64, l ginlimit.Limit, got ginlimit.Result) error {
	b := m.Bucket(key, l)
	defer func() { b.moved += b.perMilli() * float64(late) }()
	n := int64(s.N)
	switch s.Op {
	case "AllowN":
		return m.TakeAs(key, s.Tenant, n, n, late, l, got)
	case "AllowUpTo":
		return m.TakeAs(key, s.Tenant, n, 1, late, l, got)
	case "Peek":
		return m.TakeAs(key, s.Tenant, 0, 1, late, l, got)
	case "Refund":
		m.Refund(key, s.Tenant, n, l)
	case "Settle":
		if err := m.TakeAs(key, s.Tenant, n, n, late, l, got); err != nil || !got.Allowed {
			return err
		}
		m.Settle(key, s.Tenant, n, int64(s.Actual), late, l)
	default:
		m.Reset(key, s.Tenant, l)
	}
	return nil
}

// Near reports whether a bucket in a store is as the model says.
func (b *SharedBucket) Near(missing *big.Rat) bool {
	differs, _ := new(big.Rat).Sub(b.missing, missing).Float64()
	return max(differs, -differs) <= b.Unsure
}
