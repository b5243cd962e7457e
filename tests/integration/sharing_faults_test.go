package integration

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Calls of several keys share a pipeline, and commands in it, and leases are on, while a server
// goes away and returns or is replaced.

// Half of the keys have one limit. The others have two of one rate: their buckets are charged
// together, so they lack as many tokens at any time, and their keys live for as long. Only the
// first of the two refuses.
var (
	oneLimit  = []ginlimit.Limit{ginlimit.PerSecond(250).WithBurst(50)}
	twoLimits = []ginlimit.Limit{{Rate: 2400, Period: 2 * time.Minute, Burst: 100},
		ginlimit.PerHour(72_000).WithBurst(1000)}
)

// tokenWeight is how long a token takes to flow back into the buckets of two limits.
const tokenWeight = 50 * time.Millisecond

// ringHeartbeat is how often a ring asks its shards whether they answer. The third failure in a row
// makes another one of its keys.
const ringHeartbeat = 50 * time.Millisecond

func TestSharedCallsWhileAServerFails(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *site{
		"ring: shard killed and started again": ringKilled,
		"ring: shard frozen":                   ringFrozen,
		"Sentinel failover":                    sentinelFailover,
		"cluster: replica promoted":            masterKilled,
	} {
		testkit.Run(t, name, func(t *testing.T) {
			s := start(t)
			_, ring := s.rdb.(*redis.Ring)
			limits := map[string][]ginlimit.Limit{}
			for i, key := range keysOn(t, s) {
				if limits[key] = oneLimit; i%2 == 1 {
					limits[key] = twoLimits
				}
			}
			lost, refused := loss{bursts: s.bursts}, []string(nil)
			reader, end, charged := another(t, s.rdb), make(chan struct{}), make(chan int, 1)
			go func() { charged <- assertChargedTogether(t, reader, limits, end) }()
			timeout := ginlimit.WithTimeout(3 * ginlimit.DefaultTimeout)
			c := ride(t, s.rdb, limits, timeout, func(start time.Time, limiters []*testkit.Limiter) {
				lost.from = time.Since(start)
				s.fail()
				mended, asked := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(asked)
					refused = refusedByBreaker(limiters, mended)
				}()
				pause(s.lasts)
				s.mend()
				close(mended)
				<-asked
				for _, limiter := range limiters {
					assert.True(t, testkit.BecomesTrue(t.Context().Done(), inRedis(limiter)))
					stats := limiter.Stats()
					assert.Greater(t, stats.Decisions, stats.Batches, "calls share pipelines")
				}
				lost.to = time.Since(start)
			})
			if ring { // until all have seen it go and come, a key's bucket is on two shards, each of which regains tokens
				lost.to += waveLife
				lost.twice = lost.to - lost.from
			}
			c.judge(t, lost)
			close(end)
			require.Positive(t, <-charged)
			require.True(t, testkit.BecomesTrue(t.Context().Done(), inRedis(testkit.NewLimiter(t, s.rdb, timeout))))
			limiter := testkit.NewLimiter(t, s.rdb)
			for _, key := range refused {
				var r ginlimit.Result
				// the client may still ask for a node that is gone
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() (ok bool) {
					var err error
					r, err = limiter.Peek(t.Context(), key, slowLimit)
					return err == nil
				}))
				assert.Equal(t, slowLimit.Burst, r.Remaining, "a call that the breaker refused is not made later")
			}
			say(t, "%d calls refused by the breaker", len(refused))
		})
	}
}

// another returns another client of the servers that a client has, as another process would have it.
func another(t *testing.T, rdb redis.UniversalClient) redis.UniversalClient {
	t.Helper()
	var next redis.UniversalClient
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		next = redis.NewClusterClient(&redis.ClusterOptions{Addrs: rdb.Options().Addrs})
	case *redis.Ring:
		next = redis.NewRing(&redis.RingOptions{Addrs: rdb.Options().Addrs,
			HeartbeatFrequency: rdb.Options().HeartbeatFrequency})
	case *redis.Client:
		if rdb.Options().Addr == "FailoverClient" { // it does not tell its Sentinels
			return rdb
		}
		next = redis.NewClient(&redis.Options{Addr: rdb.Options().Addr})
	}
	require.NotNil(t, next)
	t.Cleanup(func() { _ = next.Close() })
	return next
}

// refusedByBreaker asks for keys that nobody else asks for, and returns those that no server was
// asked about, as the breaker was open.
func refusedByBreaker(limiters []*testkit.Limiter, until <-chan struct{}) (keys []string) {
	for call := 0; ; call++ {
		for process, limiter := range limiters {
			key := fmt.Sprintf("process %d, call %d", process, call)
			if _, err := limiter.Allow(context.Background(), key, slowLimit); errors.Is(err, dispatch.ErrOpen) {
				keys = append(keys, key)
			}
		}
		select {
		case <-until:
			return keys
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// assertChargedTogether asserts, again and again while calls are made, that several limits of a key
// are charged all or none: guarantee 2. It returns how often it saw that they were charged.
func assertChargedTogether(t *testing.T, rdb redis.UniversalClient, limits map[string][]ginlimit.Limit,
	until <-chan struct{}) (charged int) {
	ttls := redis.NewScript("return {redis.call('pttl', KEYS[1]), redis.call('pttl', KEYS[2])}")
	for {
		for key, all := range limits {
			if len(all) == 1 {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			ms, err := ttls.Run(ctx, rdb, []string{testkit.RedisKey(key, all[0]), testkit.RedisKey(key, all[1])}).Int64Slice()
			cancel()
			if cluster, ok := rdb.(*redis.ClusterClient); ok && err != nil {
				cluster.ReloadState(context.Background())
			}
			// Redis' clock may go on within a script. A missing key is a full bucket.
			if err == nil && assert.InDelta(t, max(0, ms[0]), max(0, ms[1]),
				float64(tokenWeight.Milliseconds())/2, key) && ms[0] > 0 {
				charged++
			}
		}
		select {
		case <-until:
			return charged
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// keysOn returns keys, the first two of which are on the server that will fail, and the others
// elsewhere if there are several servers.
func keysOn(t *testing.T, s *site) (keys []string) {
	t.Helper()
	on := func(key string) string {
		var node *redis.Client
		var err error
		switch rdb := s.rdb.(type) {
		case *redis.ClusterClient:
			node, err = rdb.MasterForKey(t.Context(), testkit.RedisKey(key, oneLimit[0]))
		case *redis.Ring:
			node, err = rdb.GetShardClientForKey(testkit.RedisKey(key, oneLimit[0]))
		default:
			return ""
		}
		require.NoError(t, err)
		return node.Options().Addr
	}
	for i := 0; len(keys) < 4; i++ {
		key := fmt.Sprint("key ", i)
		if (on(key) == on(s.key)) == (len(keys) < 2) || on(key) == "" {
			keys = append(keys, key)
		}
	}
	return keys
}

func ringKilled(t *testing.T) *site {
	addr, process := testkit.StartRedisProcess(t)
	return ringOf(t, addr, site{
		bursts: 3, // on the shard, on the other one, and on the shard when it is back
		fail:   func() { require.NoError(t, process.Kill()) },
		mend:   func() { require.NotNil(t, testkit.LaunchRedis(t, addr)) },
	})
}

func ringFrozen(t *testing.T) *site {
	addr, process := testkit.StartRedisProcess(t)
	return ringOf(t, addr, site{
		bursts: 2,
		fail:   func() { require.NoError(t, process.Signal(syscall.SIGSTOP)) },
		mend:   func() { require.NoError(t, process.Signal(syscall.SIGCONT)) },
	})
}

// ringOf completes the site of a ring, of which the shard at an address fails.
func ringOf(t *testing.T, addr string, s site) *site {
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr, "b": testkit.StartRedis(t)},
		HeartbeatFrequency: ringHeartbeat})
	t.Cleanup(func() { _ = rdb.Close() })
	s.rdb, s.lasts, s.degrades = rdb, time.Second, someKeys
	for i := 0; ; i++ {
		s.key = fmt.Sprint("hot ", i)
		shard := testkit.Must(rdb.GetShardClientForKey(testkit.RedisKey(s.key, oneLimit[0])))
		if shard.Options().Addr == addr {
			return &s
		}
	}
}
