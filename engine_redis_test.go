//go:build integration

package ginlimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func init() { engines["redis-server"] = redisEngine }

// redisEngine moves the clock of a redis-server by shortening what its keys have left to live.
func redisEngine(t testing.TB, a ginlimit.Algorithm) engine {
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	ctx := t.Context()
	return engine{
		limiter:   testkit.NewLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0)), // it knows nothing of such a clock
		algorithm: a,
		rdb:       rdb,
		ahead:     3 * time.Second,
		advance: func(d time.Duration) {
			keys, err := rdb.Keys(ctx, "*").Result()
			require.NoError(t, err)
			for _, key := range keys {
				ttl, err := rdb.PTTL(ctx, key).Result()
				require.NoError(t, err)
				if ttl > 0 {
					require.NoError(t, rdb.PExpire(ctx, key, max(0, ttl-d)).Err())
				}
			}
		},
		state: func(key string, l ginlimit.Limit) (int64, string) {
			name := testkit.RedisKey(key, l)
			var ttl *redis.DurationCmd
			var value *redis.StringCmd
			_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
				ttl, value = p.PTTL(ctx, name), p.Get(ctx, name)
				return nil
			})
			if err == redis.Nil {
				return 0, ""
			}
			require.NoError(t, err)
			return max(0, ttl.Val().Milliseconds()), value.Val()
		},
	}
}
