package ginlimit_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases beside each other feature: see docs/pairs.md.

// admittedBy takes all tokens of the client "alice" that there are, one by one, of policies that take turns.
func admittedBy(t *testing.T, policies ...*ginlimit.Policy) (n int) {
	t.Helper()
	for denied := 0; denied < len(policies); {
		denied = 0
		for _, p := range policies {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			if n += r.Granted; !r.Allowed {
				denied++
			}
		}
	}
	return n
}

// leases uses a policy until it admits from a lease, and returns how many tokens that took.
func (b *leaseBench) leases(t *testing.T, p *ginlimit.Policy) (n int) {
	t.Helper()
	for range 400 {
		r, err := p.Allow(t.Context(), "alice")
		require.NoError(t, err)
		if n += r.Granted; r.Source == ginlimit.FromLease {
			return n
		}
		b.advance(time.Millisecond)
	}
	t.Fatal("there is no lease")
	return n
}

// TestWaitsUnderALease are served from it, and neither sooner nor later than the limit admits.
func TestWaitsUnderALease(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithLease(100*time.Millisecond), testkit.TrustsClock())
		p := newPolicy(t, l, ginlimit.PerSecond(100).WithBurst(200), ginlimit.WithName("api"))
		var all sync.WaitGroup
		start := time.Now()
		for range 3 {
			all.Go(func() {
				for range 300 {
					assert.NoError(t, p.Wait(t.Context(), "alice"))
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.Positive(t, l.Stats().Leased)
		require.GreaterOrEqual(t, time.Since(start), 7*time.Second-10*time.Millisecond, "900 tokens, of which 200 are there at once")
		require.Less(t, time.Since(start), 7500*time.Millisecond)

		leased := l.Stats().Leased
		queued := newPolicy(t, l, ginlimit.PerMinute(60_000), ginlimit.WithName("queued"), ginlimit.WithConcurrency(1),
			ginlimit.WithQueue(1, time.Hour))
		for range 50 {
			slot, next := acquire(t, queued), make(chan *ginlimit.Slot, 1)
			all.Go(func() { next <- acquire(t, queued) })
			time.Sleep(10 * time.Millisecond)
			slot.Release()
			slot = <-next
			require.True(t, slot.Result().Allowed)
			require.Equal(t, ginlimit.FromRedis, slot.Result().Source)
			slot.Release()
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, leased, l.Stats().Leased, "who waits for a slot takes no tokens ahead")
	})
}

// TestALeaseLeavesTheFloor of its policy to the others of its name, in the same process and in others, with and without leases.
func TestALeaseLeavesTheFloor(t *testing.T) {
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		for name, of := range map[string]struct {
			same  bool
			lease time.Duration
		}{"one process": {true, leaseLife}, "two processes": {false, leaseLife}, "without a lease": {false, 0}} {
			t.Run(a.String()+", "+name, func(t *testing.T) {
				onLeaseBench(t, func(t *testing.T, b *leaseBench) {
					limit := leasePerMinute
					if a == ginlimit.FixedWindow {
						limit = ginlimit.PerMinute(1000)
					}
					l := b.limiter(t, ginlimit.WithAlgorithm(a))
					other := l
					if !of.same {
						other = b.limiter(t, ginlimit.WithAlgorithm(a))
					}
					name := ginlimit.WithName("api")
					batch := newPolicy(t, l, limit, name, ginlimit.WithFloor(400))
					people := newPolicy(t, other, limit, name, ginlimit.WithLease(of.lease))
					require.Equal(t, 600, admittedBy(t, batch))
					require.Positive(t, l.Stats().Leased)
					require.Equal(t, 400, admittedBy(t, people))
					require.Zero(t, admittedBy(t, batch, people))
				})
			})
		}
	}
}

// TestALeaseOfACalendarQuota ends with its period: in each, processes with leases admit exactly the quota.
func TestALeaseOfACalendarQuota(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		life := ginlimit.WithLease(2 * time.Hour) // in which 200 tokens flow back
		one, two := b.limiter(t, life), b.limiter(t, life)
		quota, name := ginlimit.PerCalendar(2400, endingDay()), ginlimit.WithName("api")
		p, q := newPolicy(t, one, quota, name), newPolicy(t, two, quota, name)
		used := b.leases(t, p) + b.leases(t, q)
		require.Less(t, used, 2000)
		b.advance(time.Minute)
		require.Equal(t, 2400, admittedBy(t, p, q), "nothing is left of the period that has ended")
		b.advance(24 * time.Hour)
		used = b.leases(t, p) + b.leases(t, q)
		require.Equal(t, 2400, used+admittedBy(t, p, q))
	})
}

// TestAnotherPlanEndsALease at once in the process that asks for the plan.
func TestAnotherPlanEndsALease(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		plan := []ginlimit.Limit{leasePerMinute}
		p := newPolicy(t, b.limiter(t), leasePerMinute, ginlimit.WithName("api"),
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return plan, nil }))
		allow := func() ginlimit.Result {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			return r
		}
		for _, other := range []ginlimit.Limit{ginlimit.PerHour(0), ginlimit.PerMinute(1), leasePerMinute.WithBurst(2000), ginlimit.PerHour(50)} {
			plan = []ginlimit.Limit{leasePerMinute}
			b.advance(5 * time.Second) // after two changes within this time there is no lease
			require.NoError(t, p.Reset(t.Context(), "alice"))
			used := b.leases(t, p)
			plan = []ginlimit.Limit{other}
			got := allow()
			require.NotEqual(t, ginlimit.FromLease, got.Source, "%s", other)
			require.Equal(t, other.Rate > 1, got.Allowed, "%s", other)
			if other.Rate == 1 {
				require.Greater(t, got.RetryAfter, time.Minute, "what was used under the other plan counts")
			}
			plan = []ginlimit.Limit{leasePerMinute}
			used += admittedBy(t, p)
			require.LessOrEqual(t, used, 1000, "%s: no token is used twice", other)
			require.Greater(t, used, 980, "%s: few tokens are lost", other)
		}
	})
}

// TestADryRunUnderALease counts as without one, and denies nobody. It shares the lease with the policy in force of its name.
func TestADryRunUnderALease(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		opts := []ginlimit.Option{ginlimit.WithName("api"), byUser()}
		trial := newPolicy(t, l, leasePerMinute, append(opts, ginlimit.WithDryRun())...)
		force := newPolicy(t, l, leasePerMinute, opts...)
		var found ginlimit.Result
		router := serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		sources := map[ginlimit.Source]int{}
		for range 1000 {
			require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
			require.True(t, found.Allowed)
			sources[found.Source]++
		}
		require.Greater(t, sources[ginlimit.FromLease], 500)
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.False(t, found.Allowed)
		require.Zero(t, admittedBy(t, force), "its tokens are the dry run's")

		require.NoError(t, force.Reset(t.Context(), "alice"))
		b.leases(t, force)
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.True(t, found.Allowed)
	})
}

// TestARememberedDenialLeavesTheLease: who wants more than there is is denied from memory, and who wants less is admitted from
// the lease. A refund ends the denial and the lease.
func TestARememberedDenialLeavesTheLease(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		require.Equal(t, "rrrlrlllrl", sources(t, l, 10, leasePerMinute)) // and holds 6
		e := engine{limiter: l}
		require.True(t, e.allowN(t, 984, leasePerMinute).Allowed)
		for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromMemory, ginlimit.FromMemory} {
			r := e.allowN(t, 7, leasePerMinute)
			require.False(t, r.Allowed)
			require.Equal(t, source, r.Source)
		}
		r := e.allowN(t, 2, leasePerMinute)
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.FromLease, r.Source)
		require.Equal(t, 4, r.Remaining)
		require.False(t, e.allowN(t, 5, leasePerMinute).Allowed)
		require.Equal(t, ginlimit.FromMemory, e.allowN(t, 5, leasePerMinute).Source)
		require.NoError(t, l.Refund(t.Context(), "k", 1, leasePerMinute))
		r = e.allowN(t, 1, leasePerMinute)
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.False(t, e.allowN(t, 1, leasePerMinute).Allowed)
	})
}

// TestLeasesWhileAHashSlotMigrates of several limits: no more is admitted than each allows, and what was not used goes back.
func TestLeasesWhileAHashSlotMigrates(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		day := ginlimit.PerDay(100_000).WithBurst(2000)
		p := newPolicy(t, l, leasePerMinute, ginlimit.WithName("api"), ginlimit.WithLimits(day))
		used := b.leases(t, p)
		end := migrate(b.Bubble)
		for range 200 {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			used++
		}
		require.Positive(t, l.Stats().Leases)
		require.NoError(t, l.Close())
		end()
		other := b.limiter(t)
		for limit, whole := range map[ginlimit.Limit]int{leasePerMinute: 1000, day: 2000} {
			r, err := other.Peek(t.Context(), ginlimit.Key("api", "alice"), limit)
			require.NoError(t, err)
			require.InDelta(t, whole-used, r.Remaining, 2, limit)
		}
	})
}
