package testkit

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Steppable is a reference that makes the steps of a trace.
type Steppable interface {
	Advance(d time.Duration)
	Take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result
	Refund(key string, n int64, limits []ginlimit.Limit)
	Block(key string, d time.Duration, limits []ginlimit.Limit)
	Reset(key string, limits []ginlimit.Limit)
}

// Step is one call of a trace and the time that passes before it.
type Step struct {
	Wait   time.Duration
	Op     string
	Key    string
	N      int
	D      time.Duration
	Limits []ginlimit.Limit
}

// String says what a step does.
func (s Step) String() string {
	return fmt.Sprintf("after %s: %s(%q, n=%d, d=%s, %v)", s.Wait, s.Op, s.Key, s.N, s.D, s.Limits)
}

// Trace returns the steps that a seed stands for, under sets of limits, or one and another that never denies.
func Trace(seed uint64, length int, sets [][]ginlimit.Limit, ample ginlimit.Limit) []Step {
	r := rand.New(rand.NewPCG(seed, 0))
	steps := make([]Step, length)
	for i := range steps {
		limits := sets[r.IntN(len(sets))]
		tightest := limits[r.IntN(len(limits))]
		token := tightest.Period / time.Duration(tightest.Rate)
		s := Step{Op: "AllowN", N: 1, Limits: limits, Key: "client " + strconv.Itoa(r.IntN(2)) + limits[0].String()}
		if seed%2 == 1 && len(limits) == 1 {
			s.Limits = append(slices.Clone(limits), ample) // by the script's path for several limits
		}
		switch r.IntN(6) {
		case 0, 1:
			s.Wait = token.Truncate(time.Millisecond)
		case 2:
			s.Wait = time.Duration(r.Int64N(int64(3*token) + 1)).Truncate(time.Millisecond)
		case 3:
			s.Wait = time.Duration(r.IntN(4)) * time.Millisecond
		case 4:
			if r.IntN(50) == 0 {
				s.Wait = tightest.Period
			}
		}
		switch r.IntN(20) {
		case 0, 1, 2:
			s.N = 1 + r.IntN(int(Burst(tightest)))
		case 3:
			s.N = int(Burst(tightest)) + r.IntN(3)
		case 4, 5, 6:
			s.Op, s.N = "AllowUpTo", 1+r.IntN(int(2*Burst(tightest)))
		case 7, 8:
			s.Op = "Peek"
		case 9, 10:
			s.Op, s.N = "Refund", 1+r.IntN(int(Burst(tightest)))
		case 11:
			s.Op, s.D = "Block", time.Duration(1+r.Int64N(int64(2*token)))
		case 12:
			if r.IntN(10) == 0 {
				s.Op = "Reset"
			}
		}
		steps[i] = s
	}
	return steps
}

// Apply makes a step on an engine.
func (s Step) Apply(ctx context.Context, l *Limiter) (r ginlimit.Result, err error) {
	switch s.Op {
	case "AllowN":
		return l.AllowN(ctx, s.Key, s.N, s.Limits...)
	case "AllowUpTo":
		return l.AllowUpTo(ctx, s.Key, s.N, s.Limits...)
	case "Peek":
		return l.Peek(ctx, s.Key, s.Limits...)
	case "Refund":
		return r, l.Refund(ctx, s.Key, s.N, s.Limits...)
	case "Block":
		return r, l.Block(ctx, s.Key, s.D, s.Limits...)
	case "Wait":
		return r, l.Wait(ctx, s.Key, s.Limits...)
	case "Settle":
		reserved, err := l.Reserve(ctx, s.Key, s.N, s.Limits...)
		if err != nil {
			return r, err
		}
		if !reserved.OK() {
			return reserved.Result(), nil
		}
		return reserved.Result(), reserved.Settle(ctx, int(s.D))
	}
	return r, l.Reset(ctx, s.Key, s.Limits...)
}

// Expect makes a step on the model.
func (s Step) Expect(m Steppable) ginlimit.Result {
	n := int64(s.N)
	take := func(n, least int64) ginlimit.Result {
		r := m.Take(s.Key, n, least, s.Limits)
		r.Name, _ = nameAndClient(s.Key)
		return r
	}
	switch s.Op {
	case "AllowN":
		return take(n, n)
	case "AllowUpTo":
		return take(n, 1)
	case "Peek":
		return take(0, 1)
	case "Refund":
		m.Refund(s.Key, n, s.Limits)
	case "Block":
		m.Block(s.Key, s.D, s.Limits)
	case "Reset":
		m.Reset(s.Key, s.Limits)
	}
	return ginlimit.Result{}
}

// TraceShare is the divisor of a trace's length on miniredis, which is the slowest engine.
const TraceShare = 10

var full = flag.Bool("full", false, "of traces and loads: their full length, which takes four times as long")

// Full reports whether traces and loads have their full length: with -full, but for the race detector.
func Full() bool { return *full && !RaceDetector }

// Steps returns how many of n steps a trace has: all, or the first quarter, in which most mistakes show. With the race
// detector it is a quarter of that, or 60 steps.
func Steps(n int) int {
	if Full() {
		return n
	}
	return max(min(60, n/4), n/4/RaceShare)
}

// Seeds is [Steps] of traces: with the race detector they are fewer, not shorter.
func Seeds(n int) int {
	if Full() {
		return n
	}
	return max(1, n/4/RaceShare)
}
