package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases need trust in the clock of Redis, which a process learns from whatever it asks about.

// TestLeaseNeedsTrust: a clock that stands still has none.
func TestLeaseNeedsTrust(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(testkit.LeaseLife))
		for range 10 {
			time.Sleep(10 * time.Millisecond)
			require.Equal(t, "rr", testkit.Sources(t, l, 2, testkit.LeasePerMinute))
		}
		b.Advance(0)
		limit := ginlimit.PerSecond(1000)
		for range 3 {
			_, err := l.AllowN(t.Context(), "k", 100, limit)
			require.NoError(t, err)
			b.Advance(20 * time.Millisecond)
		}
		require.Contains(t, testkit.Sources(t, l, 4, limit), "l")
	})
}

// TestABusyKeyHasLeases though others charge it between any two calls of a process: it learns all
// the same that Redis' clock runs.
func TestABusyKeyHasLeases(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		var all []*testkit.Limiter
		for range 4 {
			all = append(all, testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(100*time.Millisecond)))
		}
		limit := ginlimit.PerSecond(1000)
		_, err := all[0].AllowN(t.Context(), "k", 500, limit)
		require.NoError(t, err)
		for range 40 {
			b.Advance(10 * time.Millisecond)
			for _, l := range all {
				testkit.Sources(t, l, 2, limit)
			}
		}
		for _, l := range all {
			require.Positive(t, l.Stats().Leased)
		}
	})
}

// TestAKeyThatIsFullTellsOfTheClock, for the leases of others.
func TestAKeyThatIsFullTellsOfTheClock(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(testkit.LeaseLife))
		for range 12 {
			_, err := l.Allow(t.Context(), "full again", ginlimit.PerSecond(1000))
			require.NoError(t, err)
			b.Advance(10 * time.Millisecond)
		}
		require.Equal(t, "rrrl", testkit.Sources(t, l, 4, testkit.LeasePerMinute))
	})
}

// TestRefusalsTellLeasesOfTheClock, and a clock that is set as they show ends leases.
func TestRefusalsTellLeasesOfTheClock(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(testkit.LeaseLife))
		refused := func() {
			_, err := l.AllowN(t.Context(), "used up", 2, ginlimit.PerHour(2))
			require.NoError(t, err)
		}
		refused()
		refused()
		b.Advance(10 * time.Millisecond)
		refused()
		require.Equal(t, "rrrlrl", testkit.Sources(t, l, 6, testkit.LeasePerMinute))
		require.Equal(t, 1, l.Stats().Leases)
		time.Sleep(time.Second) // a refusal is remembered for as long
		b.Mini.SetTime(time.Now().Add(time.Minute))
		refused()
		require.Zero(t, l.Stats().Leases)
	})
}
