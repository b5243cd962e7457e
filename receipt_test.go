package ginlimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What is given back to a window is what the request took, whatever others took meanwhile.

// interleaved has a request take a token, one of another kind take one 54 s later, and then the first one's given back.
// It wants two per minute, counted from the second one.
func interleaved(t *testing.T, e testkit.Engine, limiter *ginlimit.Limiter, first, other func() int) {
	limit := ginlimit.PerMinute(2)
	if e.Algorithm == ginlimit.FixedWindow {
		require.Equal(t, 200, other()) // the window begins 10 s before, and has ended when the first one gives back
		e.Advance(10 * time.Second)
	}
	first()
	left := func() int {
		r, err := limiter.Peek(t.Context(), ginlimit.Key("user", "u"), limit)
		require.NoError(t, err)
		return r.Remaining
	}
	require.Equal(t, 1, left())
	require.Equal(t, 200, other())
	e.Advance(10 * time.Second) // the first one would have left, or its window would have ended
	require.Zero(t, left())
	require.Equal(t, 429, other())
	e.Advance(44 * time.Second)
	require.Equal(t, 429, other(), "a third one in 54 seconds")
	e.Advance(6 * time.Second)
	require.Equal(t, 200, other())
}

func TestRefundGivesBackWhatItsRequestTook(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		var meanwhile func()
		r := gin.New()
		r.Use(e.Limiter.Handler(ginlimit.PerMinute(2), ginlimit.WithName("user"), ginlimit.WithKey(ginlimit.ByHeader("User")),
			ginlimit.WithRefund(func(c *gin.Context) bool { return c.FullPath() == "/failed" })))
		r.GET("/", func(*gin.Context) {})
		r.GET("/failed", func(*gin.Context) { meanwhile() })
		other := func() int { return testkit.Get(r, "/", testkit.With("User", "u")).Code }
		meanwhile = func() {
			e.Advance(54 * time.Second)
			require.Equal(t, 200, other())
		}
		interleaved(t, e, e.Limiter, func() int { return testkit.Get(r, "/failed", testkit.With("User", "u")).Code }, other)
	})
}

// TestRefusedIdentityGivesBackWhatItsRequestTook decides on identities one after another.
func TestRefusedIdentityGivesBackWhatItsRequestTook(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb == nil {
			return // nobody comes in between
		}
		// A process: what asks it, its client and its limiter.
		process := func() (func(user, team string) int, *redis.Ring, *ginlimit.Limiter) {
			rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": e.Rdb.Options().Addr}})
			t.Cleanup(func() { _ = rdb.Close() })
			limiter := testkit.NewLimiter(t, rdb, ginlimit.WithAlgorithm(e.Algorithm), ginlimit.WithDenyMemory(0))
			r := testkit.Serve(limiter.Handler(ginlimit.PerMinute(2), ginlimit.WithName("user"), ginlimit.WithKey(ginlimit.ByHeader("User")),
				ginlimit.WithIdentity("team", ginlimit.ByHeader("Team"), ginlimit.PerDay(1000))))
			return func(user, team string) int {
				return testkit.Get(r, "/", testkit.With("User", user), testkit.With("Team", team)).Code
			}, rdb, limiter
		}
		ask, rdb, limiter := process()
		askElsewhere, _, _ := process()
		require.Equal(t, 200, ask("somebody", "full"))
		_, err := limiter.AllowUpTo(t.Context(), ginlimit.Key("team", "full"), 1000, ginlimit.PerDay(1000))
		require.NoError(t, err)

		var calls atomic.Int64
		calls.Store(100)
		rdb.AddHook(testkit.EveryScript(func(send func() error) error {
			if calls.Add(1) == 2 { // the team's
				e.Advance(54 * time.Second)
				assert.Equal(t, 200, askElsewhere("u", "free"))
			}
			return send()
		}))
		interleaved(t, e, limiter, func() int {
			calls.Store(0)
			return ask("u", "full")
		}, func() int { return ask("u", "free") })
	})
}

// TestReturnedTokensEqualModel gives back what some of many calls have taken, in any order.
func TestReturnedTokensEqualModel(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s, seed %d, miniredis", a, seed), func(t *testing.T) {
				t.Parallel()
				followReturns(t, testkit.MiniredisEngine(t, a), seed, 4000/testkit.TraceShare/testkit.RaceShare)
			})
			t.Run(fmt.Sprintf("%s, seed %d, local", a, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { followReturns(t, testkit.LocalEngine(t, a), seed, 20_000/testkit.RaceShare) })
			})
		}
	}
}

// returnable is a call whose tokens may be given back.
type returnable struct {
	limits []ginlimit.Limit
	back   func() error
	in     func(m *testkit.WindowModel)
	until  int64
}

func followReturns(t *testing.T, e testkit.Engine, seed uint64, steps int) {
	r, m := rand.New(rand.NewPCG(seed, 1)), testkit.NewWindowModel(e.Algorithm)
	sets := [][]ginlimit.Limit{
		{ginlimit.PerSecond(7)}, {ginlimit.PerMinute(40)}, {ginlimit.PerMinute(3), ginlimit.PerHour(60)}, {{Rate: 9, Period: 200 * time.Millisecond}},
	}
	if e.Frozen { // but time of this process goes on, by which a receipt of a short window ends
		sets[0], sets[3] = []ginlimit.Limit{{Rate: 7, Period: 10 * time.Second}}, []ginlimit.Limit{{Rate: 9, Period: 20 * time.Second}}
	}
	var taken []returnable
	pass := func(d time.Duration) { e.Advance(d); m.Advance(d) }
	returned := 0
	for i := range steps {
		limits := sets[r.IntN(len(sets))]
		key, l := limits[0].String(), limits[0]
		if r.IntN(3) > 0 {
			pass(time.Duration(r.Int64N(int64(l.Period)/int64(l.Rate) + 1)).Truncate(time.Millisecond))
		}
		taken = slices.DeleteFunc(taken, func(c returnable) bool { return c.until <= m.Now })
		switch kind := r.IntN(10); {
		case kind == 0:
			d := time.Duration(1 + r.Int64N(int64(l.Period)/4))
			require.NoError(t, e.Limiter.Block(t.Context(), key, d, limits...))
			m.Block(key, d, limits)
		case kind < 5 && len(taken) > 0:
			j := r.IntN(len(taken))
			require.NoError(t, taken[j].back())
			taken[j].in(m)
			taken = slices.Delete(taken, j, j+1)
			returned++
		default:
			n := 1 + r.IntN(3)
			got, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, key, n, limits...)
			require.NoError(t, err)
			want := m.Take(key, int64(n), int64(n), limits)
			got.Source = 0
			require.Equal(t, want, got, "seed %d, step %d", seed, i)
			if got.Granted > 0 {
				taken = append(taken, returnable{limits, back, m.Returns(key, int64(n), limits), m.Now + l.Period.Milliseconds()})
			}
		}
		peek, err := e.Limiter.Peek(t.Context(), key, limits...)
		require.NoError(t, err)
		peek.Source = 0
		require.Equal(t, m.Take(key, 0, 1, limits), peek, "seed %d, step %d", seed, i)
	}
	require.Greater(t, returned, steps/10)
}

// TestReturnWritesNoLongTail: what others have taken since is written anew, unless it is too much.
func TestReturnWritesNoLongTail(t *testing.T) {
	t.Parallel()
	for _, later := range []int{0, 1, 150, 1000, 1001} {
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			t.Parallel()
			e, limit := testkit.MiniredisEngine(t, ginlimit.SlidingWindow), ginlimit.PerHour(5000)
			e.Allowed(t, 2, 4998, limit)
			e.Advance(time.Millisecond)
			_, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 3, limit)
			require.NoError(t, err)
			for range later {
				e.Advance(time.Millisecond)
				e.AllowN(t, 1, limit)
			}
			require.NoError(t, back())
			want := 4998 - later
			if later > 1000 {
				want -= 3
			}
			r, err := e.Limiter.Peek(t.Context(), "k", limit)
			require.NoError(t, err)
			require.Equal(t, want, r.Remaining)
			require.Len(t, e.Found(t, "k", limit).Taken, 5000-want)
		})
	}
}

// TestNothingIsReturnedThatMayHaveLeft: a window of a few milliseconds may have ended, and another one begun, before
// Redis gives back.
func TestNothingIsReturnedThatMayHaveLeft(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb == nil {
			return // the process knows
		}
		limit := ginlimit.Limit{Rate: 3, Period: 20 * time.Millisecond}
		_, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 1, limit)
		require.NoError(t, err)
		e.Advance(limit.Period)
		_, _, err = ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 1, limit)
		require.NoError(t, err)
		before := e.Found(t, "k", limit)
		require.NoError(t, back())
		if e.Frozen {
			require.Equal(t, before, e.Found(t, "k", limit))
		}
	})
}

// TestWindowsAreRefundedInTheProcess gives back what a share of the limit gave, and what it owes, without Redis.
func TestWindowsAreRefundedInTheProcess(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		limiter := testkit.WithoutRedis(t, ginlimit.WithAlgorithm(a), ginlimit.WithReplicas(4))
		cost := 1
		r := testkit.Serve(limiter.Handler(ginlimit.PerHour(10), ginlimit.WithName("n"), ginlimit.WithKey(testkit.Everybody),
			ginlimit.WithCost(func(*gin.Context) int { return cost }), ginlimit.WithRefund(func(*gin.Context) bool { return true })))
		for range 3 {
			rec := testkit.Get(r, "/")
			require.Equal(t, http.StatusOK, rec.Code)
			require.Equal(t, "1", testkit.Remaining(rec), "of a share of two")
		}
		p, err := limiter.Peek(t.Context(), ginlimit.Key("n", "all"), ginlimit.PerHour(10))
		require.NoError(t, err)
		require.Equal(t, 2, p.Remaining)
	}
}
