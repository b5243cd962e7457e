package limits_test

import (
	"sync/atomic"
	"testing"
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
func interleaved(t *testing.T, e testkit.Engine, limiter *testkit.Limiter, first, other func() int) {
	limit := ginlimit.PerMinute(2)
	if e.Algorithm == ginlimit.FixedWindow {
		require.Equal(t, 200, other()) // the window begins 10 s before, and has ended when the first one gives back
		e.Advance(10 * time.Second)
	}
	first()
	left := func() int {
		r := testkit.Must(limiter.Peek(t.Context(), ginlimit.Key("user", "u"), limit))
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
		r.Use(e.Limiter.Handler("user", ginlimit.PerMinute(2).WithAlgorithm(e.Algorithm),
			ginlimit.WithKey(ginlimit.ByHeader("User")),
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

// TestADeniedPolicyGivesBackWhatItsRequestTook decides on policies one after another.
func TestADeniedPolicyGivesBackWhatItsRequestTook(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb == nil {
			return // nobody comes in between
		}
		// A process: what asks it, its client and its limiter.
		process := func() (func(user, team string) int, *redis.Ring, *testkit.Limiter) {
			rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": e.Rdb.Options().Addr}})
			t.Cleanup(func() { _ = rdb.Close() })
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(e.Algorithm), ginlimit.WithDenyCache(0))
			r := testkit.Serve(ginlimit.AllOf(
				limiter.Must("user", testkit.Key("User"), ginlimit.PerMinute(2).WithAlgorithm(e.Algorithm)),
				limiter.Must("team", testkit.Key("Team"), ginlimit.PerDay(1000).WithAlgorithm(e.Algorithm))))
			return func(user, team string) int {
				return testkit.Get(r, "/", testkit.With("User", user), testkit.With("Team", team)).Code
			}, rdb, limiter
		}
		ask, rdb, limiter := process()
		askElsewhere, _, _ := process()
		require.Equal(t, 200, ask("somebody", "full"))
		testkit.Must(limiter.AllowUpTo(t.Context(), ginlimit.Key("team", "full"), 1000, ginlimit.PerDay(1000)))

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
