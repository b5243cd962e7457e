package limits_test

import (
	"testing"
	"time"

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

// TestFloorOfAShare: a process that has a share of the limits in an outage leaves its part of the
// floor, of every algorithm. What the batch policy blocks and settles is the whole share.
func TestFloorOfAShare(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ginlimit.Limit{
		"token bucket":   ginlimit.PerDay(100),
		"fixed window":   ginlimit.PerDay(100).WithAlgorithm(ginlimit.FixedWindow),
		"sliding window": ginlimit.PerDay(100).WithAlgorithm(ginlimit.SlidingWindow),
		"calendar":       ginlimit.PerCalendar(100, ginlimit.CalendarDay(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				l := failingLocal(t, b, ginlimit.WithReplicas(4))
				loseRedis(t, b, l)
				batch, people := batchAndPeople(t, l, 40, limit)
				allowed := func(p *ginlimit.Policy) (n int) {
					for {
						r, err := p.Allow(t.Context(), "alice")
						require.NoError(t, err)
						require.Equal(t, ginlimit.FromLocal, r.Source)
						if !r.Allowed {
							return n
						}
						n++
					}
				}
				require.Equal(t, 15, allowed(batch))
				require.Equal(t, 10, allowed(people))

				testkit.RequireMade(t, people.Reset(t.Context(), "alice"))
				testkit.RequireMade(t, batch.Block(t.Context(), "alice", time.Hour))
				require.Zero(t, allowed(people), "a block is for everybody")
				testkit.RequireMade(t, people.Reset(t.Context(), "alice"))
				res, err := batch.Reserve(t.Context(), "alice", 10)
				require.NoError(t, err)
				require.NoError(t, res.Settle(t.Context(), 50), "into debt")
				testkit.RequireMade(t, people.Refund(t.Context(), "alice", 25))
				require.Zero(t, allowed(people), "the debt was paid")
				testkit.RequireMade(t, people.Refund(t.Context(), "alice", 25))
				require.Equal(t, 25, allowed(people))
			})
		})
	}
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
