//go:build integration

package limits_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// separateLimiters returns limiters of a new server with a client each, as in n processes, that remember denials.
func separateLimiters(t *testing.T, n int) []*testkit.Limiter {
	return limitersOf(t, testkit.StartRedis(t), n)
}

// limitersOf returns the same of a server.
func limitersOf(t *testing.T, addr string, n int) []*testkit.Limiter {
	limiters := make([]*testkit.Limiter, n)
	for i := range limiters {
		limiters[i] = testkit.NewLimiter(t, testkit.Connect(t, addr), testkit.RemembersDenials())
	}
	return limiters
}

// Guarantee 1, of a bucket that refills: never above burst + rate × t, nor much below. What callers
// were too slow to take, on a busy machine, is still in the bucket; but before Redis 7.2, time that
// passes within a script refills nothing.
func TestEightProcessesAdmitTheRate(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	limiters, rdb := limitersOf(t, addr, 8), testkit.Connect(t, addr)
	limit := ginlimit.PerSecond(1000).WithBurst(60_000)           // which is not full again before the test ends
	start := testkit.Must(rdb.Time(t.Context()).Result())         // the clock that the bucket goes by, which may be set
	_, err := limiters[0].AllowN(t.Context(), "k", 60_000, limit) // from here on it is the rate alone
	require.NoError(t, err)
	empty := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var admitted atomic.Int64
	var all sync.WaitGroup
	for _, limiter := range limiters {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := limiter.Allow(t.Context(), "k", limit)
				assert.NoError(t, err)
				admitted.Add(int64(r.Granted))
			}
		})
	}
	all.Wait()
	most := testkit.Must(rdb.Time(t.Context()).Result()).Sub(start).Milliseconds() + 2 // that had begun
	require.LessOrEqual(t, admitted.Load(), most)

	least := 1000*time.Since(empty).Seconds() - 1
	left := testkit.Must(limiters[0].Peek(t.Context(), "k", limit))
	t.Logf("%d admitted and %d left of %.0f", admitted.Load(), left.Remaining, least)
	require.GreaterOrEqual(t, float64(admitted.Load())+float64(left.Remaining), least/2) // in a script Redis' clock stands
}

// Guarantee 3: waiting RetryAfter admits, and 5 ms less does not. The clock of the server is real, so
// a wait that took too long to tell is tried again.
func TestWaitingRetryAfterAdmits(t *testing.T) {
	t.Parallel()
	limiter := separateLimiters(t, 1)[0]
	for i, limit := range []ginlimit.Limit{
		ginlimit.PerSecond(10).WithBurst(1), ginlimit.PerSecond(7).WithBurst(2),
		ginlimit.PerMinute(700).WithBurst(1), {Rate: 3, Period: 250 * time.Millisecond},
		ginlimit.Per(3, 250*time.Millisecond).WithAlgorithm(ginlimit.FixedWindow),
		ginlimit.Per(3, 250*time.Millisecond).WithAlgorithm(ginlimit.SlidingWindow),
	} {
		testkit.Run(t, limit.String(), func(t *testing.T) {
			for attempt := 0; ; attempt++ {
				require.Less(t, attempt, 500, "every wait took too long")
				key := fmt.Sprint(i, attempt)
				testkit.Must(limiter.AllowN(t.Context(), key, int(testkit.Burst(limit)), limit))
				asked := time.Now()
				r := testkit.Must(limiter.Allow(t.Context(), key, limit))
				if r.Allowed {
					continue // a token came back in between
				}
				answered := time.Now()

				<-time.After(time.Until(answered.Add(r.RetryAfter - 5*time.Millisecond)))
				early := testkit.Must(limiter.Peek(t.Context(), key, limit))
				if time.Since(asked) < r.RetryAfter-time.Millisecond {
					require.False(t, early.Allowed, "5 ms early")
				}
				onTime := time.Since(asked) < r.RetryAfter-time.Millisecond
				<-time.After(time.Until(answered.Add(r.RetryAfter)))
				r = testkit.Must(limiter.Allow(t.Context(), key, limit))
				require.True(t, r.Allowed, "after RetryAfter")
				if onTime {
					return
				}
			}
		})
	}
}

// TestChangesDelayNoClock: before Redis 7.2 the clock goes on while a script runs. Blocks end on time all the
// same, however often others give back meanwhile, and what records time is when it was.
func TestChangesDelayNoClock(t *testing.T) {
	testkit.Nightly(t, "a Redis before 7.2 that gets no core within a script counts that time")
	t.Parallel()
	client := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, client, testkit.Patient())
	const changes, most = 2000, 10 * time.Millisecond
	for _, algorithm := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		testkit.Run(t, algorithm.String(), func(t *testing.T) {
			limit := ginlimit.PerHour(10_000)
			limit.Algorithm = algorithm
			p := testkit.NewPolicy(t, limiter, algorithm.String(), limit)
			late := time.Hour
			for try := 0; try < 3 && late > most; try++ { // a busy machine may be late in each script
				key := fmt.Sprint(try)
				testkit.Must(p.AllowN(t.Context(), key, 5000))
				require.NoError(t, p.Block(t.Context(), key, time.Hour))
				before := testkit.Must(p.Peek(t.Context(), key))
				begin := time.Now()
				for range changes {
					require.NoError(t, p.Refund(t.Context(), key, 1))
				}
				passed := time.Since(begin)
				after := testkit.Must(p.Peek(t.Context(), key))
				late = min(late, after.RetryAfter-before.RetryAfter+passed)
			}
			require.LessOrEqual(t, late, most)
		})
	}
	testkit.Run(t, "tenants", func(t *testing.T) {
		shared := testkit.NewPolicy(t, limiter, "tenants", ginlimit.PerHour(100_000), ginlimit.WithShares(unusedTenant))
		p := shared.Share("a", 1)
		late := time.Hour
		for try := 0; try < 3 && late > most; try++ {
			key := fmt.Sprint(try)
			testkit.Must(p.AllowN(t.Context(), key, 1))
			begin := time.Now()
			for range changes {
				require.True(t, testkit.Must(p.AllowN(t.Context(), key, 1)).Allowed)
			}
			passed := time.Since(begin)
			full := testkit.Must(p.Peek(t.Context(), key)).ResetAfter
			late = min(late, full-(changes+1)*36*time.Millisecond+passed) // a token flows back in 36 ms
		}
		require.LessOrEqual(t, late, most)
	})
	testkit.Run(t, "record", func(t *testing.T) {
		p := testkit.NewPolicy(t, limiter, "record", ginlimit.PerHour(10_000))
		testkit.Must(p.AllowN(t.Context(), "k", 5000))
		giveBack := func() {
			require.NoError(t, testkit.Must(p.Reserve(t.Context(), "k", 2)).Settle(t.Context(), 1))
		}
		giveBack()
		begin := time.Now()
		for range changes {
			giveBack()
		}
		passed, key := time.Since(begin), "ginlimit:{record|k}:h:back"
		value := testkit.Must(client.Get(t.Context(), key).Result())
		left := testkit.Must(client.PTTL(t.Context(), key).Result())
		var ends int64
		testkit.Must(fmt.Sscan(value, &ends))
		require.LessOrEqual(t, passed-(time.Duration(ends)*time.Millisecond-left), most, value)
	})
}

// TestDenyCacheDeniesNoClientThatRedisWouldAdmit looks into the bucket, without taking anything, just before
// each denial.
func TestDenyCacheDeniesNoClientThatRedisWouldAdmit(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, looker := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), testkit.NewLimiter(t, rdb)
	var known atomic.Int64
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	begin := time.Now()
	enough := func() bool { return time.Since(begin) > 2*time.Second && known.Load() > 50 }
	var all sync.WaitGroup
	for i, limit := range []ginlimit.Limit{
		ginlimit.PerSecond(200).WithBurst(1), ginlimit.PerSecond(70).WithBurst(2), ginlimit.PerSecond(500),
		{Rate: 3, Period: 10 * time.Millisecond, Burst: 2},
		{Rate: 3, Period: 20 * time.Millisecond, Algorithm: ginlimit.FixedWindow},
		{Rate: 3, Period: 20 * time.Millisecond, Algorithm: ginlimit.SlidingWindow},
		ginlimit.PerSecond(5), // also a busy machine asks for it before its next token
	} {
		all.Go(func() {
			key := fmt.Sprint("client ", i)
			for ctx.Err() == nil && !enough() {
				before, err := looker.Peek(t.Context(), key, limit)
				assert.NoError(t, err)
				r, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
				if r.Source == ginlimit.FromCache {
					known.Add(1)
					assert.False(t, before.Allowed, "%s: there was a token", limit)
				}
			}
		})
	}
	all.Wait()
	require.True(t, enough(), "%d denials from memory", known.Load())
}

// Guarantee 1, of a bucket so slow that no token comes back.
func TestEightProcessesAdmitExactlyTheBurst(t *testing.T) {
	t.Parallel()
	for _, limits := range [][]ginlimit.Limit{
		{ginlimit.PerDay(1).WithBurst(1000)},
		{ginlimit.PerDay(1).WithBurst(1000), {Rate: 1, Period: 48 * time.Hour, Burst: 1001}},
	} {
		testkit.Run(t, fmt.Sprint(limits), func(t *testing.T) {
			admitExactly(t, 1000, limits)
		})
	}
}

func admitExactly(t *testing.T, want int, limits []ginlimit.Limit) {
	var admitted atomic.Int64
	var all sync.WaitGroup
	for _, limiter := range separateLimiters(t, 8) {
		for range 4 {
			all.Go(func() {
				for range 100 {
					r, err := limiter.Allow(t.Context(), "k", limits...)
					assert.NoError(t, err)
					admitted.Add(int64(r.Granted))
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, want, admitted.Load())
}

// TestBucketsWhileRedisIsFull of keys that are written all the time: 20 clients take what they get. By volatile-ttl
// they get too much beside keys that live longer than their buckets, and no more than their limit beside other clients
// of the same policy. Where Redis evicts nothing they never get more. docs/operations.md has what this finds.
func TestBucketsWhileRedisIsFull(t *testing.T) {
	testkit.Nightly(t, "a flood of keys for seconds, beside which buckets must lose their keys")
	t.Parallel()
	for _, c := range []struct {
		evicts, others string
		more           bool
	}{
		{"volatile-ttl", "api", false},
		{"volatile-ttl", "login", true},
		{"volatile-ttl", "sessions", true},
		{"noeviction", "api", false},
		{"noeviction", "sessions", false},
	} {
		testkit.Run(t, c.evicts+" beside "+c.others, func(t *testing.T) {
			addr := testkit.StartRedis(t, "--maxmemory", "4mb", "--maxmemory-policy", c.evicts)
			rdb := testkit.Connect(t, addr)
			limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithFailureMode(ginlimit.FailClosed),
				ginlimit.WithDenyCache(0))
			policies := map[string]*ginlimit.Policy{
				"api":   testkit.NewPolicy(t, limiter, "api", ginlimit.PerMinute(60)),
				"login": testkit.NewPolicy(t, limiter, "login", ginlimit.Per(5, 15*time.Minute)),
			}
			var began time.Time
			admitted := 0
			take := func() {
				for client := range 20 {
					if r, err := policies["api"].Allow(t.Context(), fmt.Sprint("client ", client)); err == nil && r.Allowed {
						admitted++
					}
				}
			}
			began = time.Now()
			take()
			var written atomic.Int64
			done := make(chan struct{})
			var flood sync.WaitGroup
			defer flood.Wait()
			defer close(done)
			flood.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					name := fmt.Sprint("invented ", n) // what does not fit is an error
					if p := policies[c.others]; p != nil {
						_, _ = p.Allow(t.Context(), name)
					} else {
						_ = rdb.Set(t.Context(), name, fmt.Sprintf("%0200d", n), 2*time.Hour).Err()
					}
					written.Store(int64(n))
				}
			})
			allowed := func() int { return 20 * (60 + int(time.Since(began)/time.Second) + 1) }
			for written.Load() < 50_000 && admitted <= 2*allowed() {
				take()
				require.False(t, !c.more && admitted > allowed(), "%d of %d", admitted, allowed())
			}
			t.Logf("%d of %d, beside %d keys", admitted, allowed(), written.Load())
			require.Equal(t, c.more, admitted > allowed())
		})
	}
}
