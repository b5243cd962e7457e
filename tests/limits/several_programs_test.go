package limits_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestNobodyFindsAChargeThatDoesNotStay where this process decides: while requests are denied by the second policy, the
// first is full.
func TestNobodyFindsAChargeThatDoesNotStay(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*testkit.Limiter{"process": testkit.NewLocal(t), "outage": testkit.WithoutRedis(t)} {
		testkit.Run(t, name, func(t *testing.T) {
			a, b := testkit.NewPolicy(t, l, "a", ginlimit.PerHour(5)), testkit.NewPolicy(t, l, "b", ginlimit.PerHour(1))
			require.True(t, testkit.Must(b.Allow(t.Context(), "k")).Allowed)
			var all sync.WaitGroup
			var done atomic.Bool
			for range 4 {
				all.Go(func() {
					for !done.Load() {
						assert.False(t, testkit.Must(ginlimit.ReserveAll(t.Context(), charge(a, "k", 2),
							charge(b, "k", 1))).Result().Allowed)
					}
				})
			}
			missing := 0
			for range testkit.Steps(40_000) {
				if testkit.Must(a.Peek(t.Context(), "k")).Remaining < 5 {
					missing++
				}
			}
			done.Store(true)
			all.Wait()
			require.Zero(t, missing)
		})
	}
}

// denying are a policy that denies for a second, and others that deny for much longer.
func denying(t *testing.T, b testkit.Backend, fast ...ginlimit.PolicyOption) *ginlimit.Policy {
	t.Helper()
	p := testkit.NewPolicy(t, b.Limiter, "fast", append(fast, ginlimit.PerSecond(1))...)
	require.True(t, testkit.Must(p.Allow(t.Context(), "k")).Allowed)
	return p
}

// TestThePolicyWithTheLongestWaitAnswers, whatever denies first, and at once.
func TestThePolicyWithTheLongestWaitAnswers(t *testing.T) {
	t.Parallel()
	hour := ginlimit.PerHour(1)
	for name, prepare := range map[string]func(t *testing.T, b testkit.Backend) []ginlimit.Charge{
		"in any order": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour)
			testkit.Must(slow.Allow(t.Context(), "k"))
			return []ginlimit.Charge{charge(denying(t, b), "k", 1), charge(slow, "k", 1)}
		},
		"a share": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour, ginlimit.WithShares(unusedTenant)).Share("one", 1)
			testkit.Must(slow.Allow(t.Context(), "k"))
			return []ginlimit.Charge{charge(denying(t, b), "k", 1), charge(slow, "k", 1)}
		},
		"after a ban": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour)
			testkit.Must(slow.Allow(t.Context(), "k"))
			fast := denying(t, b, ginlimit.WithBan(time.Minute, time.Hour), ginlimit.WithQueue(1, time.Millisecond))
			return []ginlimit.Charge{charge(fast, "k", 1), charge(slow, "k", 1)}
		},
		"of two bans": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", ginlimit.PerSecond(1), ginlimit.WithBan(time.Hour, time.Hour),
				ginlimit.WithQueue(1, time.Millisecond))
			testkit.Must(slow.Allow(t.Context(), "k"))
			fast := denying(t, b, ginlimit.WithBan(time.Minute, time.Hour), ginlimit.WithQueue(1, time.Millisecond))
			return []ginlimit.Charge{charge(fast, "k", 1), charge(slow, "k", 1)}
		},
		"a line without a place": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour)
			testkit.Must(slow.Allow(t.Context(), "k"))
			fast := denying(t, b, ginlimit.WithQueue(1, time.Minute))
			go func() { _, _ = ginlimit.ReserveAll(t.Context(), charge(fast, "k", 1)) }()
			synctest.Wait()
			return []ginlimit.Charge{charge(fast, "k", 1), charge(slow, "k", 1)}
		},
		"behind others in a line": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour)
			testkit.Must(slow.Allow(t.Context(), "k"))
			fast := denying(t, b, ginlimit.WithQueue(5, time.Minute))
			for range 2 {
				go func() { _, _ = ginlimit.ReserveAll(t.Context(), charge(fast, "k", 1)) }()
				synctest.Wait()
			}
			return []ginlimit.Charge{charge(fast, "k", 1), charge(slow, "k", 1)}
		},
		"while a slot is missing": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			queue := ginlimit.WithQueue(5, 10*time.Second)
			slots := testkit.NewPolicy(t, b.Limiter, "slots", ginlimit.InFlight(1), queue)
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour, queue)
			r := reserveAll(t, charge(slow, "k", 1), charge(slots, "k", 1))
			require.True(t, r.Result().Allowed)
			t.Cleanup(r.Release)
			return []ginlimit.Charge{charge(slots, "k", 1), charge(slow, "k", 1)}
		},
		"of the same policy as a slot": func(t *testing.T, b testkit.Backend) []ginlimit.Charge {
			slow := testkit.NewPolicy(t, b.Limiter, "slow", hour, ginlimit.InFlight(1), ginlimit.WithQueue(5, 10*time.Second))
			other := testkit.NewPolicy(t, b.Limiter, "other", ginlimit.PerHour(9))
			r := reserveAll(t, charge(slow, "k", 1), charge(other, "k", 1))
			require.True(t, r.Result().Allowed)
			t.Cleanup(r.Release)
			return []ginlimit.Charge{charge(slow, "k", 1), charge(other, "k", 1)}
		},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			for reversed, order := range map[bool]string{false: "first", true: "last"} {
				t.Run(order, func(t *testing.T) {
					testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
						charges := prepare(t, b)
						if reversed {
							charges[0], charges[1] = charges[1], charges[0]
						}
						start := time.Now()
						r := reserveAll(t, charges...)
						require.Equal(t, "slow", r.Result().Name, "%+v", r.Results())
						require.Greater(t, r.Result().RetryAfter, 50*time.Minute)
						require.LessOrEqual(t, time.Since(start), time.Millisecond)
					})
				})
			}
		})
	}
}

// slowly delays every script of a client.
func slowly(rdb *redis.Client, calls *atomic.Int64, delay func(cmds []redis.Cmder) time.Duration) {
	rdb.AddHook(testkit.Hook(func(cmds []redis.Cmder, send func() error) error {
		calls.Add(1)
		time.Sleep(delay(cmds))
		return send()
	}))
}

// TestAClientThatIsKnownToBeDeniedCostsNoRoundTrip, wherever its policy stands, also where keys may be on several
// servers.
func TestAClientThatIsKnownToBeDeniedCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(redis.UniversalClient) redis.UniversalClient{
		"server": func(rdb redis.UniversalClient) redis.UniversalClient { return rdb }, "wrapped": wrap,
	} {
		for at := range 3 {
			testkit.RunInBubble(t, fmt.Sprint(name, at), func(t *testing.T, b *testkit.Bubble) {
				var calls atomic.Int64
				slowly(b.Redis, &calls, func([]redis.Cmder) time.Duration { return 0 })
				l := testkit.NewLimiter(t, client(b.Redis), testkit.RemembersDenials())
				charges := make([]ginlimit.Charge, 3)
				for i := range charges {
					limit := ginlimit.PerHour(100)
					if i == at {
						limit = ginlimit.PerHour(1)
					}
					charges[i] = charge(testkit.NewPolicy(t, l, fmt.Sprint(i), limit), "k", 1)
				}
				require.True(t, reserveAll(t, charges...).Result().Allowed)
				require.False(t, reserveAll(t, charges...).Result().Allowed)
				synctest.Wait()
				before := calls.Load()
				for range 90 {
					time.Sleep(10 * time.Millisecond)
					require.False(t, reserveAll(t, charges...).Result().Allowed)
				}
				synctest.Wait()
				require.Zero(t, calls.Load()-before)
			})
		}
	}
}

// TestDryRunsTakeNoTimeOfTheirOwn, nor do policies whose keys may be on several servers: all take as long as the
// slowest.
func TestDryRunsTakeNoTimeOfTheirOwn(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		client func(redis.UniversalClient) redis.UniversalClient
		dry    int
		live   int
	}{
		"dry runs":          {func(rdb redis.UniversalClient) redis.UniversalClient { return rdb }, 5, 1},
		"two and dry runs":  {func(rdb redis.UniversalClient) redis.UniversalClient { return rdb }, 5, 2},
		"dry runs, wrapped": {wrap, 5, 2}, "several, wrapped": {wrap, 0, 6},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var calls atomic.Int64
			var slow atomic.Bool
			slowly(b.Redis, &calls, func(cmds []redis.Cmder) time.Duration {
				if slow.Load() && cmds[0].Name() == "evalsha" { // not what greets a server on a new connection
					return 5 * time.Millisecond
				}
				return 0
			})
			l := testkit.NewLimiter(t, row.client(b.Redis))
			var charges []ginlimit.Charge
			for i := range row.live + row.dry {
				opts := []ginlimit.PolicyOption{ginlimit.PerHour(100)}
				if i >= row.live {
					opts = append(opts, ginlimit.WithDryRun())
				}
				charges = append(charges, charge(testkit.NewPolicy(t, l, fmt.Sprint(i), opts...), "k", 1))
			}
			for range 3 { // loads the scripts
				require.True(t, reserveAll(t, charges...).Result().Allowed)
			}
			slow.Store(true)
			start := time.Now()
			require.True(t, reserveAll(t, charges...).Result().Allowed)
			require.Equal(t, 5*time.Millisecond, time.Since(start))
		})
	}
}
