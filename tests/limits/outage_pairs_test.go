package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// planOf returns a policy whose clients' plan is that of a source.
func planOf(t *testing.T, b *testkit.Bubble, l *testkit.Limiter, s *testkit.Source,
	opts ...ginlimit.PolicyOption) (*ginlimit.Policy, *ginlimit.Plans) {
	t.Helper()
	plans := testkit.PlansOfProcess(t, b, s.Ask)
	return testkit.NewPolicy(t, l, "plan",
		append(opts, testkit.ByUser(), ginlimit.WithLimitFunc(plans.Limits))...), plans
}

// TestRaisedPlanEndsARememberedDenial at once, as that was one of other limits.
func TestRaisedPlanEndsARememberedDenial(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := testkit.NewSource()
		s.Set("alice", ginlimit.PerHour(2), nil)
		p, plans := planOf(t, b, testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials()), s)
		asks(t, p, verdict{true, 1, 0})
		asks(t, p, verdict{true, 0, 0})
		for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache} {
			require.Equal(t, source, asks(t, p, verdict{false, 0, 30 * time.Minute}).Source)
		}
		s.Set("alice", ginlimit.PerHour(2).WithBurst(10), nil)
		require.NoError(t, plans.Invalidate(t.Context(), "alice"))
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 7, 0}).Source)
		s.Set("alice", ginlimit.PerHour(2), nil)
		require.NoError(t, plans.Invalidate(t.Context(), "alice"))
		asks(t, p, verdict{false, 0, time.Hour}, "three are missing of two")
	})
}

// TestRememberedDenialsInAnOutage last for their second. Then the process decides by its share, and
// what it denies is not remembered when Redis decides again.
func TestRememberedDenialsInAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b, testkit.RemembersDenials(), ginlimit.WithReplicas(2))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(4))
		loseRedis(t, b, l)
		findRedis(t, b, l)
		for left := 3; left >= 0; left-- {
			asks(t, p, verdict{true, left, 0})
		}
		asks(t, p, verdict{false, 0, 15 * time.Second})
		loseRedis(t, b, l)
		require.Equal(t, ginlimit.FromCache, asks(t, p, verdict{false, 0, -1}).Source)
		time.Sleep(time.Second)
		require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{true, 1, 0}).Source)
		asks(t, p, verdict{true, 0, 0})
		for range 2 {
			require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{false, 0, 30 * time.Second}).Source)
		}
		time.Sleep(15 * time.Second) // Redis' bucket has a token, and the share has none
		findRedis(t, b, l)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 0, 0}).Source)
	})
}
