package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What is given back beside a lease leaves others what they had.

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
			r := testkit.Must(l.Reserve(t.Context(), "k", 2, limit))
			if !r.Result().Allowed {
				return 0
			}
			require.NoError(t, r.Settle(t.Context(), 1))
			return 1
		},
		"cancels": func(t *testing.T, l *testkit.Limiter) int {
			require.NoError(t, testkit.Must(l.Reserve(t.Context(), "k", 2, limit)).Cancel(t.Context()))
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
							r := testkit.Must(l.Allow(t.Context(), "k", limit))
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
				p := testkit.Must(l.Policy("api", limit, ginlimit.WithLease(time.Second)))
				b.Busy(t, func() (ginlimit.Result, error) { return p.Allow(t.Context(), "192.0.2.1") })
				for range 100 { // so that enough is leased
					b.Advance(5 * time.Millisecond)
					testkit.Must(p.Allow(t.Context(), "192.0.2.1"))
				}
				take := func() (n int) { // all that there is now
					for {
						mine := testkit.Must(p.Allow(t.Context(), "192.0.2.1"))
						if !mine.Allowed {
							return n
						}
						n++
					}
				}
				b.Advance(2 * time.Second) // the bucket is full
				r := testkit.Must(p.Reserve(t.Context(), "192.0.2.1", 40))
				b.Advance(row.takes)
				take()
				require.NoError(t, r.Cancel(t.Context()))
				require.InDelta(t, row.back, take(), 1)
			})
		})
	}
}
