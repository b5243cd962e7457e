package limits_test

import (
	"fmt"
	"math/rand/v2"
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

// TestManyDecisionsOnSeveralPoliciesAtOnce, in any order of the policies: what is charged in the end is what was
// granted, and nothing of what was denied.
func TestManyDecisionsOnSeveralPoliciesAtOnce(t *testing.T) {
	const callers = 16
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		fixed, sliding := ginlimit.PerDay(150).WithAlgorithm(ginlimit.FixedWindow),
			ginlimit.PerDay(150).WithAlgorithm(ginlimit.SlidingWindow)
		year := 365 * 24 * time.Hour
		slow := ginlimit.Limit{Rate: 1, Period: year, Burst: 100}
		var policies []*ginlimit.Policy
		for i, opts := range [][]ginlimit.PolicyOption{
			{slow}, {slow, ginlimit.InFlight(3)}, {fixed}, {sliding}, {ginlimit.Limit{Rate: 1, Period: year, Burst: 60}},
			{fixed, ginlimit.InFlight(9)},
		} {
			policies = append(policies, testkit.NewPolicy(t, b.Limiter, fmt.Sprint("p", i), opts...))
		}
		before := map[int]int{}
		for i, p := range policies {
			before[i] = testkit.Must(p.Status(t.Context(), "k"))[0].Remaining
		}
		granted := make([]atomic.Int64, len(policies))
		var allowed, denied atomic.Int64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(caller), 58))
				for range testkit.Steps(200) {
					some := r.Perm(len(policies))[:2+r.IntN(3)]
					var charges []ginlimit.Charge
					for _, i := range some {
						charges = append(charges, charge(policies[i], "k", 1+r.IntN(4)))
					}
					got, err := ginlimit.ReserveAll(t.Context(), charges...)
					if !assert.NoError(t, err) {
						return
					}
					if !got.Result().Allowed {
						denied.Add(1)
						continue
					}
					allowed.Add(1)
					for j, i := range some {
						granted[i].Add(int64(charges[j].N))
					}
					if r.IntN(4) == 0 {
						time.Sleep(time.Millisecond)
					}
					got.Release()
				}
			})
		}
		all.Wait()
		require.Positive(t, allowed.Load())
		require.Positive(t, denied.Load())
		time.Sleep(time.Second) // what is given back, and slots that are reported
		for i, p := range policies {
			rows := testkit.Must(p.Status(t.Context(), "k"))
			require.Equal(t, before[i]-int(granted[i].Load()), rows[0].Remaining, "policy %d: %s", i, rows[0].Limit)
			for _, row := range rows[1:] {
				require.Equal(t, row.Limit.InFlight, row.Remaining, "slots of policy %d", i)
			}
		}
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}
