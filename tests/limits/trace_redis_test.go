//go:build integration

package limits_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// laterBy calls try with every choice of how many milliseconds have passed for each bucket: before
// version 7.2 the clock of Redis goes on while a script runs.
func laterBy(buckets map[string]*testkit.ModelBucket, passed int64, try func()) {
	choices := []func(){try}
	for _, b := range buckets {
		next := choices[len(choices)-1]
		choices = append(choices, func() {
			for b.At = 0; b.At <= passed; b.At++ {
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
	e := testkit.RedisEngine(t, ginlimit.TokenBucket)
	for i, s := range testkit.Trace(seed, length, traceLimits, ample) {
		m := testkit.NewBucketModel()
		start := time.Now()
		for _, l := range s.Limits {
			*m.Bucket(s.Key, l) = *found(t, e, s.Key, l)
		}
		got, err := s.Apply(t.Context(), e.Limiter)
		passed := time.Since(start).Milliseconds() + 1
		require.NoError(t, err)
		got.Source = 0
		if passed > 10 {
			continue // the machine was busy: too many choices
		}
		checked++

		wants := []ginlimit.Result{}
		m.Now = passed
		laterBy(m.Buckets, passed, func() {
			copied := testkit.NewBucketModel()
			copied.Now = m.Now
			for id, b := range m.Buckets {
				copied.Buckets[id] = &testkit.ModelBucket{Missing: new(big.Rat).Set(b.Missing), At: b.At, Block: b.Block}
			}
			wants = append(wants, s.Expect(copied))
		})
		require.Containsf(t, wants, got, "seed %d, step %d, %s", uint64(seed), i, s)
	}
	require.Greater(t, checked, length/10)
}
