//go:build integration

package limits_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWindowTraceEqualsModelOnRedis gives the model what is in Redis before each step; the step may then
// come any of the milliseconds later that have passed.
func TestWindowTraceEqualsModelOnRedis(t *testing.T) {
	t.Parallel()
	const seed, length = 101, 2000
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			checked, e := 0, testkit.RedisEngine(t, a)
			steps := testkit.WindowTrace(seed, length/2)
			for i, s := range append(steps, testkit.WindowTrace(seed+1, length/2)...) {
				if s.Wait > 10*time.Millisecond {
					e.Advance(s.Wait)
				}
				start := time.Now()
				before := map[string]testkit.ModelWindow{}
				for _, l := range s.Limits {
					before[s.Key+" "+l.Period.String()] = *e.Found(t, s.Key, l)
				}
				got, err := s.Apply(t.Context(), e.Limiter)
				passed := time.Since(start).Milliseconds() + 1
				require.NoError(t, err)
				got.Source = 0
				if passed > 10 {
					continue // the machine was busy: too many choices
				}
				checked++
				var wants []ginlimit.Result
				m := testkit.NewWindowModel(a)
				var choose func(periods []ginlimit.Limit)
				choose = func(rest []ginlimit.Limit) { // each window may be looked at in another millisecond
					if len(rest) > 0 {
						id := s.Key + " " + rest[0].Period.String()
						for at := range passed + 1 {
							w := before[id]
							w.At = at
							m.Windows[id] = &w
							choose(rest[1:])
						}
						return
					}
					copied := testkit.NewWindowModel(a)
					for id, w := range m.Windows {
						same := *w
						same.Taken = slices.Clone(w.Taken)
						copied.Windows[id] = &same
					}
					wants = append(wants, s.Expect(copied))
				}
				choose(s.Limits)
				require.Containsf(t, wants, got, "seed %d, step %d, %s, found %v", uint64(seed), i, s, before)
			}
			require.Greater(t, checked, length/10)
		})
	}
}
