package limits_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Callers that leave, and calls that fail, while tokens are taken ahead.

// TestCallersThatLeaveLoseNothingOfAQuota: two limiters admit exactly the quota, less one token for each
// caller that left while its call was in flight, which may have taken others ahead.
func TestCallersThatLeaveLoseNothingOfAQuota(t *testing.T) {
	const quota = 700
	for name, limit := range map[string]ginlimit.Limit{
		"calendar": ginlimit.PerCalendar(quota, ginlimit.CalendarMonth(nil, 1)),
		"window":   ginlimit.PerDay(quota).WithAlgorithm(ginlimit.FixedWindow),
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				lease := ginlimit.WithLease(100 * time.Millisecond)
				all := []*testkit.Limiter{b.Limiter(t, lease), b.Limiter(t, lease)}
				admitted, left, leased := 0, 0, 0
				b.Hook.Wait.Store(int64(2 * time.Millisecond))
				for i := range 600 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					if i%10 < 3 { // it leaves while the call is in flight
						time.AfterFunc(time.Millisecond, cancel)
					}
					r, err := all[i%2].Allow(ctx, "k", limit)
					if cancel(); err != nil {
						require.ErrorIs(t, err, context.Canceled)
						left++
						b.Advance(3 * time.Millisecond)
						continue
					}
					if admitted += r.Granted; r.Source == ginlimit.FromLease {
						leased++
					}
				}
				b.Advance(time.Second) // what is held is given back
				for range 2 {
					for _, l := range all {
						admitted += testkit.AdmittedNow(t, l, "k", limit)
					}
				}
				require.Positive(t, left)
				require.Greater(t, leased, quota/3)
				require.Equal(t, quota, admitted+left, "a caller that left while its call was in flight has had its token")
			})
		})
	}
}

// TestWaitersOfACallThatLeaveLoseNothing: a caller that waits for another's call to take tokens ahead
// has taken nothing itself when it leaves, and a caller that leaves its own call leaves the others
// what that took ahead.
func TestWaitersOfACallThatLeaveLoseNothing(t *testing.T) {
	limit := ginlimit.PerDay(1000).WithAlgorithm(ginlimit.FixedWindow)
	for name, leaves := range map[string]func(i int) bool{
		"the waiters": func(i int) bool { return i > 0 && i%2 == 0 },
		"the first":   func(i int) bool { return i == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t)
				require.Equal(t, "rrrlrlllrlllllll", testkit.Sources(t, l, 16, limit))
				before := b.Hook.Calls.Load()
				b.Hook.Wait.Store(int64(20 * time.Millisecond))
				var all sync.WaitGroup
				for i := range 9 {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					all.Go(func() {
						r, err := l.Allow(ctx, "k", limit)
						if leaves(i) {
							assert.ErrorIs(t, err, context.Canceled)
						} else if assert.NoError(t, err) {
							assert.True(t, r.Allowed)
							assert.Equal(t, i > 0, r.Source == ginlimit.FromLease, i)
						}
					})
					time.Sleep(time.Millisecond)
					if leaves(i) {
						defer cancel()
						time.AfterFunc(time.Millisecond, cancel)
					}
				}
				all.Wait()
				require.EqualValues(t, 1, b.Hook.Calls.Load()-before)
				b.Hook.Wait.Store(0)
				require.NoError(t, l.Close())
				waiters := 0
				for i := range 9 {
					if i > 0 && leaves(i) {
						waiters++
					}
				}
				require.Equal(t, 1000-16-9+waiters, b.LeftTo(t, "k", limit), "a call in flight takes what its caller wants")
			})
		})
	}
}

// TestAFailingCallFailsItsWaiters, and costs the limit at most what it may have taken.
func TestAFailingCallFailsItsWaiters(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		require.Equal(t, "rrrrlrlllrlllllll", testkit.Sources(t, l, 17, testkit.LeasePerMinute))
		b.Hook.Wait.Store(int64(20 * time.Millisecond))
		b.Hook.Fail.Store(true)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, err := l.Allow(t.Context(), "k", testkit.LeasePerMinute)
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		require.Less(t, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), time.Second, "none waited for its timeout")
		b.Hook.Wait.Store(0)
		b.Hook.Fail.Store(false)
		require.Equal(t, 1000-17, b.LeftTo(t, "k", testkit.LeasePerMinute), "nothing reached Redis")
		b.Advance(time.Minute)
		r, err := l.Allow(t.Context(), "k", testkit.LeasePerMinute)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	})
}
