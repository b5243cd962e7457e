package pairs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestBanByAFloor: a batch policy that is denied by its floor is banned, and so is the policy that it was derived from.
func TestBanByAFloor(t *testing.T) {
	t.Parallel()
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		ban := ginlimit.WithBan(10*time.Hour, 20*time.Hour)
		batch, people := batchAndPeople(t, e.Limiter, 2, ginlimit.PerHour(4), ban)
		asks(t, batch, verdict{true, 1, 0})
		asks(t, batch, verdict{true, 0, 0})
		for range 2 {
			require.InDelta(t, 10*time.Hour, asks(t, batch, verdict{false, 0, -1}).RetryAfter, float64(time.Minute))
		}
		require.InDelta(t, 10*time.Hour, asks(t, people, verdict{false, 0, -1}).RetryAfter, float64(time.Minute))
	})
}

// TestBanAcrossACalendarPeriod lasts to its end, though the quota is whole again; or the client
// waits for the next period if that begins later.
func TestBanAcrossACalendarPeriod(t *testing.T) {
	t.Parallel()
	const h = time.Hour
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { // from midnight
		for name, l := range map[string]*testkit.Limiter{
			"redis":      testkit.NewLimiter(t, b.Redis),
			"remembered": testkit.NewLimiter(t, b.Connect(t), testkit.RemembersDenials()), "local": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, name, ginlimit.PerCalendar(2, ginlimit.CalendarDay(nil)), ginlimit.WithBan(6*h, 12*h))
			time.Sleep(time.Until(time.Now().Truncate(24 * h).Add(22*h + 24*h)))
			asks(t, p, verdict{true, 1, 0})
			asks(t, p, verdict{true, 0, 0})
			asks(t, p, verdict{false, 0, 6 * h})
			asks(t, p, verdict{false, 0, 6 * h})
			time.Sleep(3 * h) // in the next day
			asks(t, p, verdict{false, 0, 3 * h})
			time.Sleep(3 * h) // on probation
			asks(t, p, verdict{true, 1, 0})
			asks(t, p, verdict{true, 0, 0})
			asks(t, p, verdict{false, 0, 20 * h}) // the ban of 12 hours ends before the day
			time.Sleep(12 * h)
			asks(t, p, verdict{false, 0, 12 * h}) // on probation again: the longest ban
			time.Sleep(12 * h)
			asks(t, p, verdict{true, 1, 0})
		}
	})
}

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
		bob, err := p.Allow(t.Context(), "bob")
		require.NoError(t, err)
		require.True(t, bob.Allowed)
		for _, allowed := range []bool{true, false} {
			bob, err = p.Allow(t.Context(), "bob")
			require.NoError(t, err)
			require.Equal(t, allowed, bob.Allowed)
		}
		require.Equal(t, 10*time.Hour, bob.RetryAfter)
		findRedis(t, b, l)
		require.Greater(t, asks(t, p, verdict{false, 0, -1}).RetryAfter, 9*time.Hour, "by Redis' ban")
		bob, err = p.Allow(t.Context(), "bob")
		require.NoError(t, err)
		require.True(t, bob.Allowed, "Redis has not banned bob")
		require.Equal(t, ginlimit.FromRedis, bob.Source)
	})
}
