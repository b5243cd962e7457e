//go:build integration

package faults_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestNoChargeIsSentTwice freezes Redis for longer than the client waits for a reply: the charge that
// was on its way is made once, whatever the client makes of it.
func TestNoChargeIsSentTwice(t *testing.T) {
	t.Parallel()
	patience := 100 * time.Millisecond
	for name, start := range map[string]func(t *testing.T) (redis.UniversalClient, *os.Process){
		"server": func(t *testing.T) (redis.UniversalClient, *os.Process) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience, MinIdleConns: 8}), process
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, *os.Process) {
			addr, process := testkit.StartRedisProcess(t, "--cluster-enabled", "yes")
			require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{addr}, ReadTimeout: patience, PoolSize: 10, MinIdleConns: 8}), process
		},
	} {
		for _, callers := range []int{1, 8} { // alone, and some in a pipeline
			testkit.Run(t, fmt.Sprint(name, " ", callers), func(t *testing.T) {
				rdb, process := start(t)
				defer rdb.Close()
				limiter, limit := testkit.NewLimiter(t, rdb), ginlimit.PerHour(100)
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
					_, err := limiter.Peek(t.Context(), "k", limit)
					return err == nil && rdb.PoolStats().IdleConns >= 8
				}))
				// It goes on while a client that sends again would do so, on a connection of which Redis
				// has heard by then.
				require.NoError(t, process.Signal(syscall.SIGSTOP))
				resumed := time.AfterFunc(3*patience, func() { _ = process.Signal(syscall.SIGCONT) })
				defer resumed.Stop()
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						if _, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit); err != nil {
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
						}
					})
				}
				all.Wait()
				for i := range callers {
					var r ginlimit.Result
					require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
						var err error
						r, err = limiter.Peek(t.Context(), fmt.Sprint("client ", i), limit)
						return err == nil
					}))
					require.GreaterOrEqual(t, r.Remaining, 99, "charged once, or never if it was not sent")
				}
			})
		}
	}
}

func TestForeignValuesAreErrorsAndStay(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, ctx := testkit.NewLimiter(t, rdb), t.Context()
	hour, minute := ginlimit.PerHour(7), ginlimit.PerMinute(7)
	name := testkit.RedisKey("k", hour)
	for _, c := range []struct {
		what  string
		write func() error
	}{
		{"a list", func() error { return rdb.RPush(ctx, name, "x").Err() }},
		{"a list that expires", func() error {
			return errorsOf(rdb.RPush(ctx, name, "x").Err(), rdb.PExpire(ctx, name, time.Hour).Err())
		}},
		{"a hash", func() error { return rdb.HSet(ctx, name, "a", "b").Err() }},
		{"text", func() error { return rdb.Set(ctx, name, "text", time.Hour).Err() }},
		{"a word below zero", func() error { return rdb.Set(ctx, name, "-x", time.Hour).Err() }},
		{"a block without an end", func() error { return rdb.Set(ctx, name, "3 x", time.Hour).Err() }},
		{"three numbers", func() error { return rdb.Set(ctx, name, "0 5 5", time.Hour).Err() }},
		{"a number without expiry", func() error { return rdb.Set(ctx, name, "0", 0).Err() }},
	} {
		t.Run(c.what, func(t *testing.T) {
			require.NoError(t, rdb.Del(ctx, name).Err())
			require.NoError(t, c.write())
			before := testkit.Must(rdb.Dump(ctx, name).Result())
			for _, limits := range [][]ginlimit.Limit{{hour}, {minute, hour}} {
				require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", limits...)), ginlimit.ErrUnavailable)
				require.ErrorIs(t, testkit.Err(limiter.Peek(ctx, "k", limits...)), ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Refund(ctx, "k", 1, limits...), ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Block(ctx, "k", time.Hour, limits...), ginlimit.ErrUnavailable)
			}
			require.Equal(t, before, testkit.Must(rdb.Dump(ctx, name).Result()))
			require.Zero(t, rdb.Exists(ctx, testkit.RedisKey("k", minute)).Val(), "all or none")
			require.NoError(t, limiter.Reset(ctx, "k", minute, hour))
			require.Equal(t, 6, testkit.Must(limiter.Allow(ctx, "k", hour)).Remaining)
		})
	}
}

// TestResetOfKeysWithoutExpiry, as after somebody's PERSIST or a restore.
func TestResetOfKeysWithoutExpiry(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, ctx := testkit.NewLimiter(t, rdb), t.Context()
	limits := []ginlimit.Limit{
		ginlimit.PerHour(7), ginlimit.PerDay(8).WithAlgorithm(ginlimit.FixedWindow),
		ginlimit.PerMinute(9).WithAlgorithm(ginlimit.SlidingWindow),
	}
	testkit.Must(limiter.AllowN(ctx, "k", 3, limits...))
	require.NoError(t, limiter.Refund(ctx, "k", 1, limits...)) // makes a record, too
	keys := rdb.Keys(ctx, "*k*").Val()
	require.Greater(t, len(keys), len(limits))
	for _, key := range keys {
		require.NoError(t, rdb.Persist(ctx, key).Err())
	}
	require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", limits...)), ginlimit.ErrUnavailable)
	require.NoError(t, limiter.Reset(ctx, "k", limits...))
	for _, limit := range limits {
		require.Equal(t, limit.Rate-1, testkit.Must(limiter.Allow(ctx, "k", limit)).Remaining)
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestFullMemoryChargesAllOrNone(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, ctx := testkit.NewLimiter(t, rdb), t.Context()
	minute, hour := ginlimit.PerMinute(5), ginlimit.PerHour(5)
	_, err := limiter.Allow(ctx, "k", minute) // one of the two buckets exists
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", minute, hour)), ginlimit.ErrUnavailable)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	require.Equal(t, 4, testkit.Must(limiter.Peek(ctx, "k", minute)).Remaining)
}

func TestPrefixesKeepLimitersApart(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limit, ctx := ginlimit.PerHour(1), t.Context()
	for _, prefix := range []string{"", "a", "b"} {
		r := testkit.Must(testkit.NewLimiter(t, rdb, ginlimit.WithPrefix(prefix)).Allow(ctx, "k", limit))
		require.True(t, r.Allowed)
	}
	require.ElementsMatch(t, []string{"{test|k}:h", "a:{test|k}:h", "b:{test|k}:h"}, rdb.Keys(ctx, "*").Val())
}

func TestFailoverClientsDecide(t *testing.T) {
	t.Parallel()
	master := testkit.StartRedis(t)
	_, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, []byte("sentinel monitor main 127.0.0.1 "+port+" 1\n"), 0o600))
	sentinel, _ := testkit.StartRedisProcess(t, config, "--sentinel")
	options := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel}}
	want := 6
	for _, rdb := range []redis.UniversalClient{redis.NewFailoverClient(options),
		redis.NewFailoverClusterClient(options)} {
		defer rdb.Close()
		limiter := testkit.NewLimiter(t, rdb)
		for range 3 {
			want--
			r := testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(6)))
			require.Equal(t, ginlimit.FromRedis, r.Source)
			require.Equal(t, want, r.Remaining)
		}
	}
}
