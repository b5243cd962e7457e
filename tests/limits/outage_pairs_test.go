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

// The tests of this folder use two features together. docs/reference.md names them.

// failingLocal returns a limiter that decides by itself in an outage.
func failingLocal(t *testing.T, b *testkit.Bubble, opts ...ginlimit.LimiterOption) *testkit.Limiter {
	t.Helper()
	return testkit.NewLimiter(t, b.Connect(t), append([]ginlimit.LimiterOption{
		ginlimit.WithTimeout(ginlimit.DefaultTimeout), ginlimit.WithFailureMode(ginlimit.FailLocal),
	}, opts...)...)
}

// loseRedis makes Redis too late, until the limiter's circuit breaker is open.
func loseRedis(t *testing.T, b *testkit.Bubble, l *testkit.Limiter) {
	t.Helper()
	b.Late.Store(true)
	for range 5 {
		testkit.Must(l.Allow(t.Context(), "breaker", ginlimit.PerHour(100)))
	}
	start := time.Now()
	testkit.Must(l.Allow(t.Context(), "breaker", ginlimit.PerHour(100)))
	require.Zero(t, time.Since(start), "the breaker is open")
}

// findRedis ends the lateness, and waits until Redis decides again.
func findRedis(t *testing.T, b *testkit.Bubble, l *testkit.Limiter) {
	t.Helper()
	b.Late.Store(false)
	for range 200 {
		time.Sleep(10 * time.Millisecond)
		r := testkit.Must(l.Allow(t.Context(), "found", ginlimit.PerHour(1000)))
		if r.Source == ginlimit.FromRedis {
			return
		}
	}
	t.Fatal("Redis does not decide")
}

// verdict is what a decision on a client's token is expected to be.
type verdict struct {
	allowed   bool
	remaining int
	retry     time.Duration
}

// asks takes a token of alice, and requires a verdict. A retry below 0 may be any.
func asks(t *testing.T, p *ginlimit.Policy, want verdict, why ...string) ginlimit.Result {
	t.Helper()
	r := testkit.Must(p.Allow(t.Context(), "alice"))
	require.Equal(t, want.allowed, r.Allowed, "%+v %s", r, why)
	require.Equal(t, want.remaining, r.Remaining, "%+v %s", r, why)
	if want.retry >= 0 {
		require.InDelta(t, want.retry, r.RetryAfter, float64(50*time.Millisecond), "%+v %s", r, why)
	}
	return r
}
