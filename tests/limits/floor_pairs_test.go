package limits_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// batchAndPeople returns a policy for people, and one derived from it that leaves tokens to them.
func batchAndPeople(t *testing.T, l *testkit.Limiter, floor int,
	opts ...ginlimit.PolicyOption) (batch, people *ginlimit.Policy) {
	t.Helper()
	people = testkit.NewPolicy(t, l, "api", append(opts, testkit.ByUser())...)
	return testkit.Derive(t, people, ginlimit.WithFloor(floor)), people
}

// TestDenialByAFloorIsRememberedForItAlone: the policy without the floor goes on, and the one with it costs no call.
func TestDenialByAFloorIsRememberedForItAlone(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]ginlimit.Limit{
		"token bucket": {ginlimit.PerHour(4)},
		"calendar":     {ginlimit.PerCalendar(4, ginlimit.CalendarDay(nil)), ginlimit.PerHour(4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				l := testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())
				batch, people := batchAndPeople(t, l, 3, ginlimit.WithLimits(limits...))
				asks(t, batch, verdict{true, 0, 0})
				for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache, ginlimit.FromCache} {
					require.Equal(t, source, asks(t, batch, verdict{false, 0, -1}).Source)
				}
				require.Equal(t, ginlimit.FromRedis, asks(t, people, verdict{true, 2, 0}).Source)
				require.NoError(t, people.Refund(t.Context(), "alice", 2))
				asks(t, batch, verdict{true, 0, 0}, "a refund ends it at once")
			})
		})
	}
}
