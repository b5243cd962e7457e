package limits_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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

// wrap returns a client that may have several servers, as far as a limiter knows.
func wrap(rdb redis.UniversalClient) redis.UniversalClient {
	return struct{ redis.UniversalClient }{rdb}
}

// loses drops, while it is set, the reply to scripts on keys that have a text, or the scripts themselves.
type loses struct {
	text   atomic.Pointer[string]
	before atomic.Bool // the server sees it not
	mu     sync.Mutex
	args   string // of what was lost: other scripts may travel along
}

// of reports whether anything of a policy was lost.
func (l *loses) of(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.args, fmt.Sprint("{p", i, "|k}"))
}

func (l *loses) hook() testkit.Hook {
	return func(cmds []redis.Cmder, send func() error) error {
		text, lost := l.text.Load(), false
		for _, cmd := range cmds {
			lost = lost || text != nil && strings.HasPrefix(cmd.Name(), "eval") &&
				strings.Contains(fmt.Sprint(cmd.Args()...), *text)
		}
		if !lost {
			return send()
		}
		if !l.before.Load() {
			_ = send()
		}
		for _, cmd := range cmds {
			l.mu.Lock()
			l.args += fmt.Sprint(cmd.Args()...)
			l.mu.Unlock()
			cmd.SetErr(context.DeadlineExceeded)
		}
		return context.DeadlineExceeded
	}
}

// TestLostRepliesLoseNothingTwice: several servers answer, but for one. What was charged there may stay; what the
// others took for a request that failed or is denied is given back, once.
func TestLostRepliesLoseNothingTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testkit.Seeds(40)) {
		testkit.RunInBubble(t, fmt.Sprint("seed ", seed), func(t *testing.T, b *testkit.Bubble) {
			r, lost := rand.New(rand.NewPCG(seed, 58)), new(loses)
			modes := []ginlimit.FailureMode{ginlimit.FailClosed, ginlimit.FailLocal, ginlimit.FailOpen}
			looks := testkit.NewLimiter(t, b.Connect(t))
			b.Redis.AddHook(lost.hook())
			l := testkit.NewLimiter(t, wrap(b.Redis))
			year := 365 * 24 * time.Hour
			var policies, reads []*ginlimit.Policy
			for i := range 3 {
				opts := []ginlimit.PolicyOption{ginlimit.Limit{Rate: 1, Period: year, Burst: 60}}
				if r.IntN(2) == 0 {
					algorithm := []ginlimit.Algorithm{ginlimit.FixedWindow, ginlimit.SlidingWindow}[r.IntN(2)]
					opts = []ginlimit.PolicyOption{ginlimit.Per(60, year).WithAlgorithm(algorithm)}
				}
				if r.IntN(3) == 0 {
					opts = append(opts, ginlimit.InFlight(1))
				}
				opts = append(opts, ginlimit.WithFailureMode(modes[r.IntN(3)]))
				name := fmt.Sprint("p", i)
				policies, reads = append(policies, testkit.NewPolicy(t, l, name, opts...)),
					append(reads, testkit.NewPolicy(t, looks, name, opts...))
			}
			left := func() (all []int) {
				for _, p := range reads {
					all = append(all, testkit.Must(p.Status(t.Context(), "k"))[0].Remaining)
				}
				return all
			}
			before := left()
			for step := range 60 {
				var charges []ginlimit.Charge
				for _, p := range policies {
					charges = append(charges, charge(p, "k", 1+r.IntN(6)))
				}
				missing := -1
				if r.IntN(3) > 0 {
					missing = r.IntN(3)
					text := fmt.Sprint("{p", missing, "|k}")
					lost.before.Store(r.IntN(2) == 0)
					lost.text.Store(&text)
				}
				lost.args = ""
				reservation, err := ginlimit.ReserveAll(t.Context(), charges...)
				time.Sleep(30 * time.Second) // whatever is late has ended, and the breaker closes
				lost.text.Store(nil)
				time.Sleep(30 * time.Second)
				allowed := err == nil && reservation.Result().Allowed
				after := left()
				for i, c := range charges {
					taken := before[i] - after[i]
					switch {
					case lost.of(i):
						require.Contains(t, []int{0, c.N}, taken, "step %d: policy %d of %v, allowed %v", step, i, charges, allowed)
					case allowed && reservation.Results()[i].Source == ginlimit.FromRedis:
						require.Equal(t, c.N, taken, "step %d: policy %d, %+v", step, i, reservation.Results())
					default:
						require.Zero(t, taken, "step %d: policy %d; missing %d, %v", step, i, missing, err)
					}
				}
				if before = after; err == nil {
					reservation.Release()
					if r.IntN(2) == 0 && missing < 0 && allowed {
						require.NoError(t, reservation.Cancel(t.Context()))
					}
				}
				before = left()
			}
			require.Zero(t, l.Stats().Slots)
		})
	}
}
