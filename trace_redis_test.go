//go:build integration

package ginlimit_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// laterBy calls try with every choice of how many milliseconds have passed for each bucket: before
// version 7.2 the clock of Redis goes on while a script runs.
func laterBy(buckets map[string]*modelBucket, passed int64, try func()) {
	choices := []func(){try}
	for _, b := range buckets {
		next := choices[len(choices)-1]
		choices = append(choices, func() {
			for b.at = 0; b.at <= passed; b.at++ {
				next()
			}
		})
	}
	choices[len(choices)-1]()
}

// TestTraceEqualsModelOnRedis gives the model the levels in Redis before each step; the step may then
// come any of the milliseconds later that have passed.
func TestTraceEqualsModelOnRedis(t *testing.T) {
	t.Parallel()
	const seed, length = 101, 2000
	checked := 0
	e := redisEngine(t, ginlimit.TokenBucket)
	for i, s := range trace(seed, length, traceLimits, ample) {
		m := newModel()
		start := time.Now()
		for _, l := range s.limits {
			*m.bucket(s.key, l) = *found(t, e, s.key, l)
		}
		got, err := s.apply(t.Context(), e.limiter)
		passed := time.Since(start).Milliseconds() + 1
		require.NoError(t, err)
		got.Source = 0
		if passed > 10 {
			continue // the machine was busy: too many choices
		}
		checked++

		wants := []ginlimit.Result{}
		m.now = passed
		laterBy(m.buckets, passed, func() {
			copied := newModel()
			copied.now = m.now
			for id, b := range m.buckets {
				copied.buckets[id] = &modelBucket{missing: new(big.Rat).Set(b.missing), at: b.at, block: b.block}
			}
			wants = append(wants, s.expect(copied))
		})
		require.Containsf(t, wants, got, "seed %d, step %d, %s", uint64(seed), i, s)
	}
	require.Greater(t, checked, length/10)
}
