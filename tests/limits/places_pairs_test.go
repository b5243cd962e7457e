package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The tests of this folder use two features together. docs/reference.md names them.

// place is where the decisions of a test are made.
type place struct {
	name    string
	limiter *testkit.Limiter
	source  ginlimit.Source // once begin was called
	begin   func()          // makes Redis too late
}

// onEveryPlace runs a test in a bubble: with a server, and in an outage.
func onEveryPlace(t *testing.T, test func(t *testing.T, p place)) {
	t.Helper()
	for _, name := range []string{"server", "outage"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				p := place{name: name, limiter: failingLocal(t, b), source: ginlimit.FromRedis, begin: func() {}}
				if name == "outage" {
					p.source, p.begin = ginlimit.FromLocal, func() { loseRedis(t, b, p.limiter) }
				}
				test(t, p)
			})
		})
	}
}

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
