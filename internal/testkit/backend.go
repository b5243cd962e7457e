package testkit

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// Backend is where the buckets of a test are.
type Backend struct {
	Limiter *Limiter
	Other   *Limiter // of another process, if there is one
}

// OnEveryBackend runs a test in a bubble: with one server, with a client whose keys may be on
// several, in the process, and in an outage.
func OnEveryBackend(t *testing.T, test func(t *testing.T, b Backend)) {
	t.Helper()
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, b *Bubble) Backend{
		"server": func(t *testing.T, b *Bubble) Backend {
			return Backend{NewLimiter(t, b.Redis), NewLimiter(t, b.Connect(t))}
		},
		"in turn": func(t *testing.T, b *Bubble) Backend {
			wrap := func() redis.UniversalClient { return struct{ redis.UniversalClient }{b.Connect(t)} }
			return Backend{NewLimiter(t, wrap()), NewLimiter(t, wrap())}
		},
		"local": func(t *testing.T, _ *Bubble) Backend {
			l := NewLocal(t)
			return Backend{l, l}
		},
		"outage": func(t *testing.T, b *Bubble) Backend {
			b.Late.Store(true)
			limiter, err := ginlimit.NewLimiter(b.Redis, ginlimit.WithReplicas(1))
			require.NoError(t, err)
			t.Cleanup(func() { _ = limiter.Close() })
			l := Wrap(limiter, ginlimit.TokenBucket)
			for range 5 {
				_, err := l.Allow(t.Context(), "breaker", ginlimit.PerHour(100))
				require.NoError(t, err)
			}
			return Backend{l, l}
		},
	} {
		RunInBubble(t, name, func(t *testing.T, b *Bubble) { test(t, start(t, b)) })
	}
}

// AdmittedNow takes all tokens that there are, one by one.
func AdmittedNow(t *testing.T, l *Limiter, key string, limits ...ginlimit.Limit) (n int) {
	t.Helper()
	for {
		r, err := l.Allow(t.Context(), key, limits...)
		require.NoError(t, err)
		if !r.Allowed {
			return n
		}
		n++
	}
}

// RequireMade wants that a change was made, in an outage in this process.
func RequireMade(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
}
