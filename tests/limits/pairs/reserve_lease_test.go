package pairs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Reservations of a key of which processes hold tokens. See docs/reference.md.

// TestACancelGivesBackNothingOfOthers: tokens of a lease that go back lay below the reservation, so
// that what is left of it has flowed back sooner.
func TestACancelGivesBackNothingOfOthers(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"all of it has flowed back": 6 * time.Second, "some of it has": 2 * time.Second, "none": 0,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				limit := ginlimit.PerMinute(600).WithBurst(1000) // half of which is kept for leases of 25 s
				policy := func(d time.Duration) *ginlimit.Policy {
					l := testkit.NewLimiter(t, b.Connect(t), ginlimit.WithLease(d), testkit.RemembersDenials(),
						ginlimit.WithTimeout(ginlimit.DefaultTimeout))
					return testkit.NewPolicy(t, l, "api", limit)
				}
				holder, other := policy(time.Minute), policy(0)
				left := func() int {
					r, err := other.Peek(t.Context(), "alice")
					require.NoError(t, err)
					return r.Remaining
				}
				reserve(t, other, 150, true) // below the lease, so that not all of that flows back
				held := 0
				for range 400 { // at the rate of the limit
					r, err := holder.Allow(t.Context(), "alice")
					require.NoError(t, err)
					require.True(t, r.Allowed)
					held = r.Remaining
					if r.Source == ginlimit.FromLease && held > 150 {
						break
					}
					time.Sleep(100 * time.Millisecond)
				}
				require.Greater(t, held, 150)
				mine := reserve(t, other, 50, true)
				level, at := 1000-left(), time.Now()
				for now, before := left(), 1000; now <= before+2; { // until the lease goes back
					require.Less(t, time.Since(at), time.Minute)
					time.Sleep(100 * time.Millisecond)
					before, now = now, left()
				}
				back := level - int(time.Since(at)/(100*time.Millisecond)) - (1000 - left())
				require.Greater(t, back, 50)
				time.Sleep(wait)
				reserve(t, other, 100, true)
				own, before := max(0, level-int(time.Since(at)/(100*time.Millisecond))-back), left()
				require.NoError(t, mine.Cancel(t.Context()))
				require.InDelta(t, before+min(own, 50), left(), 1)
			})
		})
	}
}
