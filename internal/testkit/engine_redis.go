//go:build integration

package testkit

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

func servers() map[string]startEngine { return map[string]startEngine{"redis-server": RedisEngine} }

// RedisEngine moves the clock of a redis-server by shortening what its keys have left to live.
func RedisEngine(t testing.TB, a ginlimit.Algorithm) Engine {
	rdb := Connect(t, StartRedis(t))
	ctx := t.Context()
	return Engine{
		// it knows nothing of such a clock
		Limiter:   NewLimiter(t, rdb, WithAlgorithm(a), ginlimit.WithDenyCache(0)),
		Algorithm: a,
		Rdb:       rdb,
		Started:   time.Now(),
		Advance: func(d time.Duration) {
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
		State: func(key string, l ginlimit.Limit) (int64, string) {
			name := RedisKey(key, l)
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
