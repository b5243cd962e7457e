package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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

// TestBansOfAnOutageStayInTheProcess: what bans without Redis bans nobody once Redis decides again,
// and the process does not know in an outage of the bans in Redis.
func TestBansOfAnOutageStayInTheProcess(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b, ginlimit.WithReplicas(2))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(4), ginlimit.WithBan(10*time.Hour, 20*time.Hour))
		for left := 3; left >= 0; left-- {
			asks(t, p, verdict{true, left, 0})
		}
		asks(t, p, verdict{false, 0, 10 * time.Hour})
		loseRedis(t, b, l)
		time.Sleep(time.Second)
		asks(t, p, verdict{true, 1, 0}, "its share")
		asks(t, p, verdict{true, 0, 0})
		require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{false, 0, 10 * time.Hour}).Source)
		bob := testkit.Must(p.Allow(t.Context(), "bob"))
		require.True(t, bob.Allowed)
		for _, allowed := range []bool{true, false} {
			bob = testkit.Must(p.Allow(t.Context(), "bob"))
			require.Equal(t, allowed, bob.Allowed)
		}
		require.Equal(t, 10*time.Hour, bob.RetryAfter)
		findRedis(t, b, l)
		require.Greater(t, asks(t, p, verdict{false, 0, -1}).RetryAfter, 9*time.Hour, "by Redis' ban")
		bob = testkit.Must(p.Allow(t.Context(), "bob"))
		require.True(t, bob.Allowed, "Redis has not banned bob")
		require.Equal(t, ginlimit.FromRedis, bob.Source)
	})
}

// TestSharesInAnOutage: each process decides by the same rule on its share of the limit. Who holds what
// is another matter there than in Redis.
func TestSharesInAnOutage(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b, ginlimit.WithReplicas(2))
		p := shared(t, testkit.Backend{Limiter: l}, ginlimit.PerHour(16))
		p.asks(t, "a", 200, 200, 200, 200, 200, 200, 200, 200, 429)
		require.Equal(t, ginlimit.FromRedis, p.found.Source)
		loseRedis(t, b, l)
		p.asks(t, "a", 200, 200, 200, 200, 429) // of 8
		require.Equal(t, ginlimit.FromLocal, p.found.Source)
		require.Equal(t, ginlimit.CauseShare, p.found.Cause)
		p.asks(t, "b", 200, 200, 429)
		require.Equal(t, ginlimit.CauseShare, p.found.Cause)
		findRedis(t, b, l)
		p.asks(t, "a", 429)
		p.asks(t, "b", 200)
		require.Equal(t, ginlimit.FromRedis, p.found.Source)
	})
}
