package ginlimit_test

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// traceLimits are the sets of limits that traces run under: rates that divide the period and that do
// not, bursts above and below the rate, periods from a millisecond to a week.
var traceLimits = [][]ginlimit.Limit{
	{ginlimit.PerSecond(10)},
	{ginlimit.PerMinute(100)},
	{ginlimit.PerMinute(7)},
	{ginlimit.PerSecond(3).WithBurst(1)},
	{ginlimit.PerSecond(1500).WithBurst(10)},
	{ginlimit.PerSecond(999).WithBurst(2000)},
	{ginlimit.PerHour(5)},
	{ginlimit.PerDay(11).WithBurst(4)},
	{{Rate: 13, Period: 7 * time.Millisecond, Burst: 5}},
	{{Rate: 1, Period: time.Millisecond}},
	{{Rate: 3, Period: 250 * time.Millisecond, Burst: 9}},
	{{Rate: 1000003, Period: time.Second, Burst: 77}},
	{{Rate: 17, Period: 7 * 24 * time.Hour, Burst: 1000}},
	{ginlimit.PerSecond(5), ginlimit.PerMinute(60)},
	{ginlimit.PerSecond(7).WithBurst(3), ginlimit.PerMinute(11), ginlimit.PerDay(500)},
	{{Rate: 9, Period: 100 * time.Millisecond, Burst: 20}, {Rate: 13, Period: 3 * time.Second}},
}

// ample never refuses, beside a limit under test.
var ample = ginlimit.Limit{Rate: 1 << 20, Period: 13 * time.Millisecond, Burst: asInt(1 << 40)}

// steppable is a reference that makes the steps of a trace.
type steppable interface {
	advance(d time.Duration)
	take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result
	refund(key string, n int64, limits []ginlimit.Limit)
	block(key string, d time.Duration, limits []ginlimit.Limit)
	reset(key string, limits []ginlimit.Limit)
}

// step is one call of a trace and the time that passes before it.
type step struct {
	wait   time.Duration
	op     string
	key    string
	n      int
	d      time.Duration
	limits []ginlimit.Limit
}

func (s step) String() string {
	return fmt.Sprintf("after %s: %s(%q, n=%d, d=%s, %v)", s.wait, s.op, s.key, s.n, s.d, s.limits)
}

// trace returns the steps that a seed stands for, under sets of limits, or one and another that never refuses.
func trace(seed uint64, length int, sets [][]ginlimit.Limit, ample ginlimit.Limit) []step {
	r := rand.New(rand.NewPCG(seed, 0))
	steps := make([]step, length)
	for i := range steps {
		limits := sets[r.IntN(len(sets))]
		tightest := limits[r.IntN(len(limits))]
		token := tightest.Period / time.Duration(tightest.Rate)
		s := step{op: "AllowN", n: 1, limits: limits, key: "client " + strconv.Itoa(r.IntN(2)) + limits[0].String()}
		if seed%2 == 1 && len(limits) == 1 {
			s.limits = append(slices.Clone(limits), ample) // by the script's path for several limits
		}
		switch r.IntN(6) {
		case 0, 1:
			s.wait = token.Truncate(time.Millisecond)
		case 2:
			s.wait = time.Duration(r.Int64N(int64(3*token) + 1)).Truncate(time.Millisecond)
		case 3:
			s.wait = time.Duration(r.IntN(4)) * time.Millisecond
		case 4:
			if r.IntN(50) == 0 {
				s.wait = tightest.Period
			}
		}
		switch r.IntN(20) {
		case 0, 1, 2:
			s.n = 1 + r.IntN(int(burst(tightest)))
		case 3:
			s.n = int(burst(tightest)) + r.IntN(3)
		case 4, 5, 6:
			s.op, s.n = "AllowUpTo", 1+r.IntN(int(2*burst(tightest)))
		case 7, 8:
			s.op = "Peek"
		case 9, 10:
			s.op, s.n = "Refund", 1+r.IntN(int(burst(tightest)))
		case 11:
			s.op, s.d = "Block", time.Duration(1+r.Int64N(int64(2*token)))
		case 12:
			if r.IntN(10) == 0 {
				s.op = "Reset"
			}
		}
		steps[i] = s
	}
	return steps
}

// apply makes a step on an engine.
func (s step) apply(ctx context.Context, l *ginlimit.Limiter) (r ginlimit.Result, err error) {
	switch s.op {
	case "AllowN":
		return l.AllowN(ctx, s.key, s.n, s.limits...)
	case "AllowUpTo":
		return l.AllowUpTo(ctx, s.key, s.n, s.limits...)
	case "Peek":
		return l.Peek(ctx, s.key, s.limits...)
	case "Refund":
		return r, l.Refund(ctx, s.key, s.n, s.limits...)
	case "Block":
		return r, l.Block(ctx, s.key, s.d, s.limits...)
	case "Wait":
		return r, l.Wait(ctx, s.key, s.limits...)
	case "Settle":
		reserved, err := l.Reserve(ctx, s.key, s.n, s.limits...)
		if err != nil {
			return r, err
		}
		return reserved.Result(), reserved.Settle(ctx, int(s.d))
	}
	return r, l.Reset(ctx, s.key, s.limits...)
}

// applyTo makes a step by a policy, which knows the limits.
func (s step) applyTo(ctx context.Context, p *ginlimit.Policy) (r ginlimit.Result, err error) {
	switch s.op {
	case "AllowN":
		return p.AllowN(ctx, s.key, s.n)
	case "AllowUpTo":
		return p.AllowUpTo(ctx, s.key, s.n)
	case "Peek":
		return p.Peek(ctx, s.key)
	case "Refund":
		return r, p.Refund(ctx, s.key, s.n)
	case "Block":
		return r, p.Block(ctx, s.key, s.d)
	case "Wait":
		return r, p.Wait(ctx, s.key)
	}
	return r, p.Reset(ctx, s.key)
}

// expect makes a step on the model.
func (s step) expect(m steppable) ginlimit.Result {
	n := int64(s.n)
	switch s.op {
	case "AllowN":
		return m.take(s.key, n, n, s.limits)
	case "AllowUpTo":
		return m.take(s.key, n, 1, s.limits)
	case "Peek":
		return m.take(s.key, 0, 1, s.limits)
	case "Refund":
		m.refund(s.key, n, s.limits)
	case "Block":
		m.block(s.key, s.d, s.limits)
	case "Reset":
		m.reset(s.key, s.limits)
	}
	return ginlimit.Result{}
}

// found reads a bucket as its key says that it is now.
func found(t testing.TB, e engine, key string, l ginlimit.Limit) *modelBucket {
	ttl, value := e.state(key, l)
	if ttl == 0 {
		return &modelBucket{missing: new(big.Rat)}
	}
	kept, before, blocked := strings.Cut(value, " ")
	rest, err := strconv.ParseInt(kept, 10, 64)
	require.NoError(t, err)
	block := int64(0)
	if blocked {
		ends, err := strconv.ParseInt(before, 10, 64)
		require.NoError(t, err)
		block = max(0, ttl-ends)
	}
	// value = TTL × drain - level, in units of which a token weighs period / gcd(rate, period).
	p := l.Period.Milliseconds()
	g := new(big.Int).GCD(nil, nil, big.NewInt(int64(l.Rate)), big.NewInt(p)).Int64()
	level := ttl*(int64(l.Rate)/g) - rest
	return &modelBucket{missing: big.NewRat(level, p/g), block: block}
}

const traceSeeds, traceSteps = 8, 13000 // 104,000 steps

// traceShare is what part of their steps traces have on miniredis, which is the slowest engine.
const traceShare = 10

func TestTraceEqualsModelOnMiniredis(t *testing.T) {
	t.Parallel()
	if !has64Bits {
		t.Skip("miniredis reads an expiry as an int")
	}
	for seed := range uint64(traceSeeds) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			e, m := miniredisEngine(t, ginlimit.TokenBucket), newModel()
			for i, s := range trace(seed, traceSteps/traceShare/raceShare, traceLimits, ample) {
				e.advance(s.wait)
				m.advance(s.wait)
				want := s.expect(m)
				got, err := s.apply(t.Context(), e.limiter)
				got.Source = 0
				if err != nil || got != want {
					require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
				}
				for _, l := range s.limits {
					want, got := m.bucket(s.key, l), found(t, e, s.key, l)
					if got.missing.Cmp(want.missing) != 0 || got.block != want.block {
						require.Failf(t, "bucket differs", "seed %d, step %d, %s, %s: want %s missing, blocked for %d ms, got %s, %d ms",
							seed, i, s, l, want.missing, want.block, got.missing, got.block)
					}
				}
			}
		})
	}
}

func TestTraceEqualsModelInProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(traceSeeds) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter, err := ginlimit.NewLocal()
				require.NoError(t, err)
				m := newModel()
				for i, s := range trace(seed, traceSteps/raceShare, traceLimits, ample) {
					time.Sleep(s.wait) // the bubble's clock
					m.advance(s.wait)
					want := s.expect(m)
					got, err := s.apply(t.Context(), limiter)
					if want != (ginlimit.Result{}) {
						want.Source = ginlimit.FromLocal
					}
					if err != nil || got != want {
						require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
					}
				}
			})
		})
	}
}
