//go:build integration

package ginlimit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestWindowTraceEqualsModelOnRedis gives the model what is in Redis before each step; the step may then
// come any of the milliseconds later that have passed.
func TestWindowTraceEqualsModelOnRedis(t *testing.T) {
	t.Parallel()
	const seed, length = 101, 2000
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			checked, e := 0, redisEngine(t, a)
			steps := windowTrace(seed, length/2)
			for i, s := range append(steps, windowTrace(seed+1, length/2)...) {
				if s.wait > 10*time.Millisecond {
					e.advance(s.wait)
				}
				start := time.Now()
				before := map[string]modelWindow{}
				for _, l := range s.limits {
					before[s.key+" "+l.Period.String()] = *e.found(t, s.key, l)
				}
				got, err := s.apply(t.Context(), e.limiter)
				passed := time.Since(start).Milliseconds() + 1
				require.NoError(t, err)
				got.Source = 0
				if passed > 10 {
					continue // the machine was busy: too many choices
				}
				checked++
				var wants []ginlimit.Result
				m := newWindowModel(a)
				var choose func(periods []ginlimit.Limit)
				choose = func(rest []ginlimit.Limit) { // each window may be looked at in another millisecond
					if len(rest) > 0 {
						id := s.key + " " + rest[0].Period.String()
						for at := range passed + 1 {
							w := before[id]
							w.at = at
							m.windows[id] = &w
							choose(rest[1:])
						}
						return
					}
					copied := newWindowModel(a)
					for id, w := range m.windows {
						same := *w
						same.taken = slices.Clone(w.taken)
						copied.windows[id] = &same
					}
					wants = append(wants, s.expect(copied))
				}
				choose(s.limits)
				require.Containsf(t, wants, got, "seed %d, step %d, %s, found %v", uint64(seed), i, s, before)
			}
			require.Greater(t, checked, length/10)
		})
	}
}
