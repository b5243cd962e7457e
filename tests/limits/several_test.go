package limits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Several policies are one decision, wherever their keys lie: see docs/reference.md.

// TestTwoTenantsOfOneBucketInOneDecision take no more than it holds.
func TestTwoTenantsOfOneBucketInOneDecision(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		shared := testkit.NewPolicy(t, b.Limiter, "shared", ginlimit.PerHour(10), ginlimit.WithShares(unusedTenant))
		one, two := shared.Share("one", 1), shared.Share("two", 1)
		require.False(t, reserveAll(t, charge(one, "k", 6), charge(two, "k", 6)).Result().Allowed)
		require.Zero(t, testkit.Must(one.Status(t.Context(), "k"))[0].ResetAfter)
		require.True(t, reserveAll(t, charge(one, "k", 4), charge(two, "k", 4)).Result().Allowed)
		require.Equal(t, 48*time.Minute, testkit.Must(one.Status(t.Context(), "k"))[0].ResetAfter)
	})
}

// TestARememberedDenialHidesNoLongerOne: the policy that waits longest answers, also if this process forgot that it
// denies, as somebody looked at it, or took a token where two were wanted.
func TestARememberedDenialHidesNoLongerOne(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(t *testing.T, slow *ginlimit.Policy){
		"nothing":     func(*testing.T, *ginlimit.Policy) {},
		"a look":      func(t *testing.T, slow *ginlimit.Policy) { testkit.Must(slow.Status(t.Context(), "k")) },
		"one token":   func(t *testing.T, slow *ginlimit.Policy) { testkit.Must(slow.Allow(t.Context(), "k")) },
		"a give-back": func(t *testing.T, slow *ginlimit.Policy) { require.NoError(t, slow.Refund(t.Context(), "k", 1)) },
	} {
		testkit.Run(t, name, func(t *testing.T) {
			for place, wrapped := range map[string]bool{"server": false, "wrapped": true} {
				testkit.RunInBubble(t, place, func(t *testing.T, b *testkit.Bubble) {
					rdb := redis.UniversalClient(b.Redis)
					if wrapped {
						rdb = wrap(rdb)
					}
					l := testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
					fast, slow := testkit.NewPolicy(t, l, "fast", ginlimit.PerSecond(1)),
						testkit.NewPolicy(t, l, "slow", ginlimit.PerHour(3))
					all := []ginlimit.Charge{charge(fast, "k", 1), charge(slow, "k", 3)}
					reserve := func() ginlimit.Result { return reserveAll(t, all...).Result() }
					require.True(t, reserve().Allowed)
					require.NoError(t, slow.Refund(t.Context(), "k", 1))
					time.Sleep(2 * time.Millisecond)
					require.Equal(t, "slow", reserve().Name)
					between(t, slow)
					want := reserve()
					require.Equal(t, "slow", want.Name)
					require.Greater(t, want.RetryAfter, 19*time.Minute)
				})
			}
		})
	}
}

// TestWhatALookFindsIsToldEachTime: a policy that denies for longer answers though the faster one's denial is
// remembered and its own cannot be.
func TestWhatALookFindsIsToldEachTime(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		n     int
		opts  []ginlimit.PolicyOption
		least time.Duration // of RetryAfter; 0 is never
	}{
		"a cost above the burst": {4, nil, 0},
		"beside slots":           {3, []ginlimit.PolicyOption{ginlimit.InFlight(5)}, time.Minute},
		"with a ban":             {3, []ginlimit.PolicyOption{ginlimit.WithBan(2*time.Hour, 2*time.Hour)}, time.Minute},
		"with both": {3, []ginlimit.PolicyOption{ginlimit.InFlight(5),
			ginlimit.WithBan(2*time.Hour, 2*time.Hour)}, time.Minute},
	} {
		for place, wrapped := range map[string]bool{"server": false, "wrapped": true} {
			testkit.RunInBubble(t, name+", "+place, func(t *testing.T, b *testkit.Bubble) {
				rdb := redis.UniversalClient(b.Redis)
				if wrapped {
					rdb = wrap(rdb)
				}
				l := testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
				fast := testkit.NewPolicy(t, l, "fast", ginlimit.PerSecond(1))
				slow := testkit.NewPolicy(t, l, "slow", append(row.opts, ginlimit.PerHour(3))...)
				for range 2 {
					testkit.Must(fast.Allow(t.Context(), "k"))
				}
				reserveAll(t, charge(slow, "k", 2)).Release()
				time.Sleep(10 * time.Millisecond)
				for range 3 {
					r := reserveAll(t, charge(fast, "k", 1), charge(slow, "k", row.n)).Result()
					require.Equal(t, "slow", r.Name)
					if row.least == 0 {
						require.Equal(t, ginlimit.CauseNever, r.Cause)
					} else {
						require.Greater(t, r.RetryAfter, row.least)
					}
				}
			})
		}
	}
}
