package limits_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What is given back beside a lease leaves others what they had.

// TestCancelsUnderALeaseLeaveTokensToOthers: of reservations whose tokens all come back, others notice next to nothing.
func TestCancelsUnderALeaseLeaveTokensToOthers(t *testing.T) {
	limit := ginlimit.PerSecond(2000)
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t, ginlimit.WithLease(200*time.Millisecond), ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		p := testkit.NewPolicy(t, l, "api", limit)
		b.Busy(t, func() (ginlimit.Result, error) { return p.Allow(t.Context(), "192.0.2.1") })
		b.Advance(2 * time.Second)
		for range 1500 {
			r, err := p.Reserve(t.Context(), "192.0.2.1", 1)
			require.NoError(t, err)
			time.Sleep(time.Millisecond) // Redis drains by whole milliseconds
			require.NoError(t, r.Cancel(t.Context()))
		}
		require.Greater(t, b.LeftTo(t, ginlimit.Key("api", "192.0.2.1"), limit), 1950)
	})
}

// TestRefundsByHandLeaveALease as it is, and are there at once: also beside many, most requests are
// admitted by the lease.
func TestRefundsByHandLeaveALease(t *testing.T) {
	limit := ginlimit.PerHour(3_600_000).WithBurst(10_000)
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t, ginlimit.WithLease(200*time.Millisecond), ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		allow := func() (ginlimit.Result, error) { return l.Allow(t.Context(), "k", limit) }
		b.Busy(t, allow)
		b.Advance(2 * time.Second) // the bucket is full
		_, err := l.AllowN(t.Context(), "k", 5000, limit)
		require.NoError(t, err)
		start, before := time.Now(), l.Stats().Leased
		for range 1000 {
			r, err := allow()
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.NoError(t, l.Refund(t.Context(), "k", 1, limit))
			b.Advance(2 * time.Millisecond)
		}
		require.Greater(t, l.Stats().Leased-before, uint64(900))
		require.NoError(t, l.Close())
		require.InDelta(t, 5000+time.Since(start).Milliseconds(), b.LeftTo(t, "k", limit), 1)
	})
}

// TestCancelsLeaveALease as it is. What it holds at the end counts as used, if it may have flowed back.
func TestCancelsLeaveALease(t *testing.T) {
	limit := ginlimit.PerMinute(60_000)
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t, ginlimit.WithLease(200*time.Millisecond), ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		allow := func() (ginlimit.Result, error) { return l.Allow(t.Context(), "k", limit) }
		b.Busy(t, allow)
		leased := l.Stats().Leased
		for range 1000 {
			r, err := l.Reserve(t.Context(), "k", 10, limit)
			require.NoError(t, err)
			require.True(t, r.Result().Allowed)
			require.NoError(t, r.Cancel(t.Context()))
			_, err = allow()
			require.NoError(t, err)
			b.Advance(2 * time.Millisecond)
		}
		require.Greater(t, l.Stats().Leased-leased, uint64(900), "most are admitted by the lease")
		require.NoError(t, l.Close())
		require.GreaterOrEqual(t, b.LeftTo(t, "k", limit), 60_000-200)
	})
}

// TestNothingIsLostBesideALease: a client that asks for more than its limit gets all of it, whatever
// is given back meanwhile.
func TestNothingIsLostBesideALease(t *testing.T) {
	limit := ginlimit.PerSecond(500)
	for name, beside := range map[string]func(t *testing.T, l *testkit.Limiter) (used int){
		"nothing": func(*testing.T, *testkit.Limiter) int { return 0 },
		"refunds": func(t *testing.T, l *testkit.Limiter) int {
			require.NoError(t, l.Refund(t.Context(), "k", 1, limit))
			return -1
		},
		"settlements": func(t *testing.T, l *testkit.Limiter) int {
			r, err := l.Reserve(t.Context(), "k", 2, limit)
			require.NoError(t, err)
			if !r.Result().Allowed {
				return 0
			}
			require.NoError(t, r.Settle(t.Context(), 1))
			return 1
		},
		"cancels": func(t *testing.T, l *testkit.Limiter) int {
			r, err := l.Reserve(t.Context(), "k", 2, limit)
			require.NoError(t, err)
			require.NoError(t, r.Cancel(t.Context()))
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				d := ginlimit.WithLease(200 * time.Millisecond)
				timeout := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
				all := []*testkit.Limiter{b.Limiter(t, d, timeout), b.Limiter(t, d, timeout)}
				run := func(length time.Duration) (used int) {
					for i := range int(length / time.Millisecond) {
						for _, l := range all {
							r, err := l.Allow(t.Context(), "k", limit)
							require.NoError(t, err)
							used += r.Granted
						}
						if i%20 == 0 {
							used += beside(t, all[i/20%2])
						}
						b.Advance(time.Millisecond)
					}
					return used
				}
				require.LessOrEqual(t, run(2*time.Second), 500+2*500, "with the burst")
				before := all[0].Stats().Leased + all[1].Stats().Leased
				seconds := testkit.Steps(16) // what is held at its ends differs by some 50 tokens
				used := run(time.Duration(seconds) * time.Second)
				require.InDelta(t, seconds*500, used, 80)
				require.Greater(t, all[0].Stats().Leased+all[1].Stats().Leased-before, uint64(used/2))
			})
		})
	}
}

// TestACancelUnderALeaseGivesBackOnce: at once all of it, later what has not flowed back, and
// nothing of a bucket that was full again.
func TestACancelUnderALeaseGivesBackOnce(t *testing.T) {
	limit := ginlimit.PerSecond(200)
	for name, row := range map[string]struct {
		takes time.Duration // the work
		back  int           // tokens of the 40 that it has taken
	}{"at once": {0, 40}, "half of it has flowed back": {100 * time.Millisecond, 20}, "all has": {time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t)
				p, err := l.Policy("api", limit, ginlimit.WithLease(time.Second))
				require.NoError(t, err)
				b.Busy(t, func() (ginlimit.Result, error) { return p.Allow(t.Context(), "192.0.2.1") })
				for range 100 { // so that enough is leased
					b.Advance(5 * time.Millisecond)
					_, err := p.Allow(t.Context(), "192.0.2.1")
					require.NoError(t, err)
				}
				take := func() (n int) { // all that there is now
					for {
						mine, err := p.Allow(t.Context(), "192.0.2.1")
						require.NoError(t, err)
						if !mine.Allowed {
							return n
						}
						n++
					}
				}
				b.Advance(2 * time.Second) // the bucket is full
				r, err := p.Reserve(t.Context(), "192.0.2.1", 40)
				require.NoError(t, err)
				b.Advance(row.takes)
				take()
				require.NoError(t, r.Cancel(t.Context()))
				require.InDelta(t, row.back, take(), 1)
			})
		})
	}
}

// TestWhoHasNoLease: neither a policy with slots or a ban, nor requests of several policies. The limiter's default
// lease does not serve these.
func TestWhoHasNoLease(t *testing.T) {
	limit := ginlimit.PerSecond(1000)
	for name, option := range map[string]ginlimit.PolicyOption{
		"slots":          ginlimit.InFlight(500),
		"a ban":          ginlimit.WithBan(time.Minute, time.Hour),
		"another policy": ginlimit.WithFloor(0), "another policy, which skips": ginlimit.WithFloor(0),
		"refunds": ginlimit.WithRefund(func(*gin.Context) bool { return false }),
	} {
		for _, inTurn := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
					var rdb redis.UniversalClient = b.Client(t)
					if inTurn {
						rdb = struct{ redis.UniversalClient }{rdb}
					}
					l, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(1), ginlimit.WithTimeout(100*time.Millisecond),
						ginlimit.WithDenyCache(100), ginlimit.WithLease(100*time.Millisecond))
					require.NoError(t, err)
					defer l.Close()
					p, err := l.Policy("x", limit, option)
					require.NoError(t, err)
					handler := p.Handler()
					skips := name == "another policy, which skips"
					if skips || name == "another policy" {
						all, err := l.Policy("all", testkit.All(), ginlimit.PerSecond(2000),
							ginlimit.WithSkip(func(*gin.Context) bool { return skips }))
						require.NoError(t, err)
						handler = ginlimit.AllOf(p, all)
					}
					var result ginlimit.Result
					r := gin.New()
					_ = r.SetTrustedProxies(nil)
					r.GET("/", handler, func(c *gin.Context) { result, _ = ginlimit.FromContext(c) })
					for range 200 {
						b.Advance(time.Millisecond)
						require.Equal(t, http.StatusOK, testkit.Get(r, "/").Code)
						require.Equal(t, ginlimit.FromRedis, result.Source)
						if !strings.HasPrefix(name, "another policy") && name != "refunds" { // which are for requests
							mine, err := p.Reserve(t.Context(), "k", 1)
							require.NoError(t, err)
							mine.Release()
							require.Equal(t, ginlimit.FromRedis, mine.Result().Source)
						}
					}
					require.Zero(t, l.Stats().Leased)
				})
			})
		}
	}
}
