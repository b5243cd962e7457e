package limits_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Denials beside leases, and what a client is told.

// TestAClientThatWaitsIsAdmitted beside leases too, if nobody else took the token: as Redis says, as
// this process says while it does not ask Redis again, and in whole seconds over HTTP.
func TestAClientThatWaitsIsAdmitted(t *testing.T) {
	const fixed = ginlimit.FixedWindow
	for name, row := range map[string]struct {
		limits []ginlimit.Limit
		lease  time.Duration
	}{
		"a token bucket":  {[]ginlimit.Limit{ginlimit.PerSecond(500)}, 200 * time.Millisecond},
		"a long lease":    {[]ginlimit.Limit{ginlimit.PerMinute(60).WithBurst(100)}, time.Minute},
		"a small one":     {[]ginlimit.Limit{ginlimit.PerSecond(1000).WithBurst(10)}, 20 * time.Millisecond},
		"several":         {[]ginlimit.Limit{ginlimit.PerSecond(500), ginlimit.PerMinute(6000)}, 200 * time.Millisecond},
		"a window":        {[]ginlimit.Limit{ginlimit.PerMinute(60).WithAlgorithm(fixed)}, time.Second},
		"a short window":  {[]ginlimit.Limit{ginlimit.Per(10, 50*time.Millisecond).WithAlgorithm(fixed)}, time.Second},
		"has no leases":   {[]ginlimit.Limit{ginlimit.PerSecond(5)}, 200 * time.Millisecond},
		"has none at all": {[]ginlimit.Limit{ginlimit.PerSecond(5)}, 0},
	} {
		for trusts, opts := range map[string][]ginlimit.LimiterOption{"trusted": {testkit.RemembersDenials()}, "learning": nil} {
			t.Run(name+", "+trusts, func(t *testing.T) {
				testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
					l := testkit.NewLimiter(t, b.Client(t), append(opts, ginlimit.WithLease(row.lease))...)
					p := testkit.NewPolicy(t, l, "api", ginlimit.WithLimits(row.limits...))
					sources := map[ginlimit.Source]int{}
					for i := range 16 {
						var last ginlimit.Result
						for last.Allowed = true; last.Allowed; {
							var err error
							last, err = p.Allow(t.Context(), "alice")
							require.NoError(t, err)
						}
						if i%2 == 0 { // while the denial is remembered
							b.Advance(min(last.RetryAfter/3, 20*time.Millisecond).Truncate(time.Millisecond))
							r, err := p.Allow(t.Context(), "alice")
							require.NoError(t, err)
							if r.Allowed { // somebody gave back
								continue
							}
							last = r
						}
						sources[last.Source]++
						require.Positive(t, last.RetryAfter)
						b.Advance(last.RetryAfter)
						r, err := p.Allow(t.Context(), "alice")
						require.NoError(t, err)
						require.True(t, r.Allowed, "round %d: after %s, %+v", i, last.RetryAfter, r)
					}
					require.NotEmpty(t, sources)
					if trusts == "trusted" {
						require.Positive(t, sources[ginlimit.FromCache])
					}
				})
			})
		}
	}
}

// TestRetryAfterOverHTTPBesideLeases is in whole seconds, rounded up.
func TestRetryAfterOverHTTPBesideLeases(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		r := testkit.Serve(l.Handler("api", ginlimit.PerMinute(60).WithBurst(100), ginlimit.WithLease(time.Minute)))
		for range 8 {
			rec := testkit.Get(r, "/")
			for rec.Code == http.StatusOK {
				rec = testkit.Get(r, "/")
			}
			require.Equal(t, http.StatusTooManyRequests, rec.Code)
			seconds, err := strconv.Atoi(rec.Header().Get("Retry-After"))
			require.NoError(t, err)
			require.Positive(t, seconds)
			b.Advance(time.Duration(seconds) * time.Second)
			require.Equal(t, http.StatusOK, testkit.Get(r, "/").Code)
		}
	})
}

// TestRemainingCanBeTaken at once by the process that was told so, with nobody else there.
func TestRemainingCanBeTaken(t *testing.T) {
	for name, limits := range map[string][]ginlimit.Limit{
		"a token bucket": {ginlimit.PerSecond(500)},
		"several":        {ginlimit.PerSecond(500), ginlimit.PerMinute(6000).WithBurst(900)},
		"a window":       {ginlimit.Per(400, 5*time.Second).WithAlgorithm(ginlimit.FixedWindow)},
	} {
		for _, calls := range []int{1, 3, 10, 61, 150} {
			t.Run(name+" after "+strconv.Itoa(calls), func(t *testing.T) {
				testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
					lease := ginlimit.WithLease(200 * time.Millisecond)
					l, other := b.Limiter(t, lease), b.Limiter(t, lease)
					var last ginlimit.Result
					for i := range calls {
						for _, l := range []*testkit.Limiter{other, l} {
							r, err := l.Allow(t.Context(), "k", limits...)
							require.NoError(t, err)
							if last = r; r.Source == ginlimit.FromLease {
								require.Zero(t, r.RetryAfter)
							}
						}
						if i < calls-1 {
							b.Advance(time.Duration(i%3) * time.Millisecond)
						}
					}
					require.GreaterOrEqual(t, testkit.AdmittedNow(t, l, "k", limits...), last.Remaining)
				})
			})
		}
	}
}

// TestTokensOfBothTakeOneTimeout: a request that takes tokens of the lease and others from Redis makes
// two calls, and both together take no longer than the timeout.
func TestTokensOfBothTakeOneTimeout(t *testing.T) {
	limit := ginlimit.PerHour(3600).WithBurst(1000)
	for way, want := range map[time.Duration]error{ // there and back
		20 * time.Millisecond: nil,
		30 * time.Millisecond: ginlimit.ErrUnavailable,
	} {
		t.Run(way.String(), func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				timeout := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
				l, other := b.Limiter(t, timeout), b.Limiter(t, timeout)
				var last ginlimit.Result
				for range 40 {
					r, err := l.Allow(t.Context(), "k", limit)
					require.NoError(t, err)
					last = r
				}
				require.Equal(t, ginlimit.FromLease, last.Source)
				held := last.Remaining
				r, err := other.Peek(t.Context(), "k", limit)
				require.NoError(t, err)
				r, err = other.AllowN(t.Context(), "k", r.Remaining-held, limit)
				require.NoError(t, err)
				require.True(t, r.Allowed)

				b.Hook.Wait.Store(int64(way))
				start := time.Now()
				r, err = l.AllowN(t.Context(), "k", held+1, limit)
				require.ErrorIs(t, err, want)
				require.Equal(t, want == nil, r.Allowed)
				require.LessOrEqual(t, time.Since(start), ginlimit.DefaultTimeout*11/10)
				b.Hook.Wait.Store(0)
			})
		})
	}
}

// TestDenialsAreHeld while tokens are leased, for half of the lease and more, so that Redis is asked
// seldom; not without a deny cache, and not by what has no leases.
func TestDenialsAreHeld(t *testing.T) {
	limit := ginlimit.PerSecond(500)
	count := func(t *testing.T, b *testkit.LeaseBench, opts ...ginlimit.LimiterOption) (calls int64, admitted int) {
		l := testkit.NewLimiter(t, b.Client(t), opts...)
		testkit.AdmittedNow(t, l, "k", limit)
		before := b.Hook.Calls.Load()
		for range 2000 {
			r, err := l.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			admitted += r.Granted
			b.Advance(time.Millisecond / 2)
		}
		return b.Hook.Calls.Load() - before, admitted
	}
	lease := ginlimit.WithLease(200 * time.Millisecond)
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		calls, admitted := count(t, b, lease, testkit.RemembersDenials())
		require.InDelta(t, 500, admitted, 80, "but for the last hold")
		require.Less(t, calls, int64(40), "a call or two for each hold")
	})
	t.Run("without a deny cache", func(t *testing.T) {
		testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
			_, admitted := count(t, b, lease)
			require.InDelta(t, 500, admitted, 80, "but for the last hold")
		})
	})
	t.Run("of a window for as long as it says", func(t *testing.T) {
		testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
			l := b.Limiter(t, ginlimit.WithLease(20*time.Millisecond))
			testkit.AdmittedNow(t, l, "k", fixedMinute)
			before := b.Hook.Calls.Load()
			for range 1500 {
				r, err := l.Allow(t.Context(), "k", fixedMinute)
				require.NoError(t, err)
				require.False(t, r.Allowed)
				b.Advance(time.Millisecond)
			}
			require.LessOrEqual(t, b.Hook.Calls.Load()-before, int64(4), "one each second, and what is given back")
		})
	})
}

// TestFewerTokensThanALeaseHolds are not denied to who is content with them, though the limit has none.
func TestFewerTokensThanALeaseHolds(t *testing.T) {
	for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache} {
		t.Run(source.String(), func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t)
				require.Equal(t, "rrrrlrlllrl", testkit.Sources(t, l, 11, testkit.LeasePerMinute)) // and holds 6
				r, err := l.Reserve(t.Context(), "k", testkit.LeaseBurst-17, testkit.LeasePerMinute)
				require.NoError(t, err)
				require.True(t, r.Result().Allowed)
				if source == ginlimit.FromCache {
					denied, err := l.AllowN(t.Context(), "k", 7, testkit.LeasePerMinute)
					require.NoError(t, err)
					require.False(t, denied.Allowed)
				}
				for i, want := range []int{4, 2, 0} {
					n := []int{4, 5, 5}[i]
					got, err := l.AllowUpTo(t.Context(), "k", n, testkit.LeasePerMinute)
					require.NoError(t, err)
					require.Equal(t, want, got.Granted)
					require.Equal(t, want > 0, got.Allowed)
					require.Equal(t, want > 0, got.Source == ginlimit.FromLease)
				}
			})
		})
	}
}

// TestHoldsEndBeforeClientsComeBack: a client that waits for its RetryAfter, as a header rounds it, is
// admitted, though another one was denied just before.
func TestHoldsEndBeforeClientsComeBack(t *testing.T) {
	for name, row := range map[string]struct {
		limit ginlimit.Limit
		lease time.Duration
		n     int
	}{
		"one token a second":       {ginlimit.PerMinute(60).WithBurst(100), time.Minute, 1},
		"several tokens":           {ginlimit.PerMinute(600).WithBurst(1000), 200 * time.Millisecond, 20},
		"many tokens a second":     {ginlimit.PerSecond(500), 200 * time.Millisecond, 1},
		"the whole burst at once":  {ginlimit.PerSecond(500), 200 * time.Millisecond, 300},
		"without leases, the same": {ginlimit.PerMinute(60).WithBurst(100), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t, ginlimit.WithLease(row.lease))
				_, err := l.AllowUpTo(t.Context(), "k", 5000, row.limit)
				require.NoError(t, err)
				ask := func() ginlimit.Result {
					r, err := l.AllowN(t.Context(), "k", row.n, row.limit)
					require.NoError(t, err)
					return r
				}
				r := ask()
				require.False(t, r.Allowed)
				back := (r.RetryAfter + time.Second - 1).Truncate(time.Second)
				due := time.Duration(row.n) * row.limit.Period / time.Duration(row.limit.Rate) // nobody else takes them
				b.Advance(due - time.Millisecond)
				require.False(t, ask().Allowed)
				b.Advance(back - due + time.Millisecond)
				require.True(t, ask().Allowed)
			})
		})
	}
}

// TestRemainingOfADeniedRequest for several tokens is what a smaller one may take.
func TestRemainingOfADeniedRequest(t *testing.T) {
	limit := ginlimit.PerSecond(500)
	for _, d := range []time.Duration{200 * time.Millisecond, 0} {
		t.Run(d.String(), func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t, ginlimit.WithLease(d))
				r, err := l.Peek(t.Context(), "k", limit)
				require.NoError(t, err)
				r, err = l.AllowN(t.Context(), "k", r.Remaining-40, limit)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.Equal(t, 40, r.Remaining)
				for range 2 { // the second may be denied by the deny cache
					r, err = l.AllowN(t.Context(), "k", 60, limit)
					require.NoError(t, err)
					require.False(t, r.Allowed)
					require.Equal(t, 40, r.Remaining)
				}
				require.Equal(t, 40, testkit.AdmittedNow(t, l, "k", limit))
			})
		})
	}
}
