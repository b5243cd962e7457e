package limits_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The deny memory.

// impatientTrace is a trace of few keys that ask again soon, so that much is denied from memory.
func impatientTrace(seed uint64, length int) []testkit.Step {
	r := rand.New(rand.NewPCG(seed, 1))
	steps := testkit.Trace(seed, length, traceLimits, ample)
	for i := range steps {
		s := &steps[i]
		s.Limits = traceLimits[:5][r.IntN(5)]
		s.Key = "client " + s.Limits[0].String()
		s.Wait = time.Duration(r.IntN(30)) * time.Millisecond
		s.N = 1 + r.IntN(min(int(testkit.Burst(s.Limits[0])), 10))
		s.D = time.Duration(1+r.IntN(300)) * time.Millisecond
		if r.IntN(4) > 0 {
			s.Op = "AllowN"
		}
	}
	return steps
}

// TestTraceEqualsModelWithDenyCache has Redis and the process go by one clock, so that what is denied from
// memory must be what Redis would say to the millisecond.
func TestTraceEqualsModelWithDenyCache(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		testkit.RunInBubble(t, fmt.Sprintf("seed %d", seed), func(t *testing.T, b *testkit.Bubble) {
			limiter := testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())
			m, known := testkit.NewBucketModel(), 0
			for i, s := range impatientTrace(seed, testkit.Steps(5000)) {
				time.Sleep(s.Wait) // the bubble's clock
				m.Advance(s.Wait)
				want := s.Expect(m)
				got, err := s.Apply(t.Context(), limiter)
				if got.Source == ginlimit.FromCache {
					known++
					got.Source = 0
				}
				if err != nil || got != want {
					require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
				}
			}
			require.Greater(t, known, testkit.Steps(5000)/4)
		})
	}
}

// TestDefaultDenyCacheLeavesASetClockAlone is for those who test their applications with miniredis.
func TestDefaultDenyCacheLeavesASetClockAlone(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter, limit, now := testkit.NewLimiter(t, b.Redis), ginlimit.PerMinute(1), time.Now()
		for range 3 {
			b.Mini.SetTime(now)
			require.True(t, testkit.Must(limiter.Allow(t.Context(), "k", limit)).Allowed)
			for range 20 {
				time.Sleep(time.Millisecond)
				r := testkit.Must(limiter.Allow(t.Context(), "k", limit))
				require.False(t, r.Allowed)
				require.Equal(t, ginlimit.FromRedis, r.Source)
			}
			now = now.Add(time.Minute)
		}
	})
}

// TestAFreeRequestEndsNoRememberedDenial is for routes that cost nothing beside routes that cost something.
func TestAFreeRequestEndsNoRememberedDenial(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())
		policy := limiter.Must("minute", ginlimit.PerMinute(1), testkit.ByUser())
		free := testkit.Must(policy.With(ginlimit.WithCost(func(*gin.Context) int { return 0 })))
		require.True(t, testkit.Must(policy.Allow(t.Context(), "k")).Allowed)
		require.False(t, testkit.Must(policy.Allow(t.Context(), "k")).Allowed)
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, http.StatusOK, testkit.Get(testkit.Serve(free.Handler()), "/", testkit.User("k")).Code)
		require.Equal(t, ginlimit.FromCache, testkit.Must(policy.Allow(t.Context(), "k")).Source)
	})
}
