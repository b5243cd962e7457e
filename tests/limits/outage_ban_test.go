package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestADenialWithoutRedisTakesOneTimeout, also if a policy that queues would ban.
func TestADenialWithoutRedisTakesOneTimeout(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter, err := ginlimit.NewLimiter(b.Redis, ginlimit.WithTimeout(100*time.Millisecond), ginlimit.WithReplicas(1))
		require.NoError(t, err)
		defer limiter.Close()
		first, err := limiter.Policy("first", ginlimit.PerHour(1))
		require.NoError(t, err)
		second, err := limiter.Policy("second", ginlimit.PerHour(1), ginlimit.WithQueue(1, time.Millisecond),
			ginlimit.WithBan(time.Hour, 2*time.Hour))
		require.NoError(t, err)
		b.Late.Store(true)
		for range 2 {
			start := time.Now()
			testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: first, Client: "k", N: 1},
				ginlimit.Charge{Policy: second, Client: "k", N: 1}))
			require.LessOrEqual(t, time.Since(start), 120*time.Millisecond)
		}
	})
}

// TestTheLongestWaitAnswersWithoutRedis, of tokens or of a slot.
func TestTheLongestWaitAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	limiter := testkit.NewLocal(t)
	tokens := testkit.NewPolicy(t, limiter, "tokens", ginlimit.PerMinute(120).WithBurst(1))
	slots := testkit.NewPolicy(t, limiter, "slots", ginlimit.InFlight(1))
	reserve := func() ginlimit.Result {
		r := testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: tokens, Client: "k", N: 1},
			ginlimit.Charge{Policy: slots, Client: "k", N: 1}))
		return r.Result()
	}
	require.True(t, reserve().Allowed)
	require.Equal(t, ginlimit.CauseInFlight, reserve().Cause)
}
