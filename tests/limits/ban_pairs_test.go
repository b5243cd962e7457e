package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestBanWhereverItIsDecided lasts and grows on a server and in an outage.
func TestBanWhereverItIsDecided(t *testing.T) {
	onEveryPlace(t, func(t *testing.T, p place) {
		policy := testkit.NewPolicy(t, p.limiter, "api", ginlimit.PerSecond(2),
			ginlimit.WithBan(10*time.Second, 40*time.Second))
		p.begin()
		asks(t, policy, verdict{true, 1, 0})
		asks(t, policy, verdict{true, 0, 0})
		require.Equal(t, p.source, asks(t, policy, verdict{false, 0, 10 * time.Second}).Source)
		time.Sleep(5 * time.Second)
		for range 3 {
			asks(t, policy, verdict{false, 0, 5 * time.Second})
		}
		time.Sleep(5 * time.Second)
		asks(t, policy, verdict{true, 1, 0})
		asks(t, policy, verdict{true, 0, 0})
		asks(t, policy, verdict{false, 0, 20 * time.Second}) // on probation
	})
}

// TestBansOfAnOutageStayInTheProcess: what bans without Redis bans nobody once Redis decides again,
// and the process does not know in an outage of the bans in Redis.
func TestBansOfAnOutageStayInTheProcess(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b, ginlimit.WithReplicas(2))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(4),
			ginlimit.WithBan(10*time.Hour, 20*time.Hour))
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
