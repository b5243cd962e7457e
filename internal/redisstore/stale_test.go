package redisstore

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestConnectionsAreClosedNowAndThen, however often the server cannot write: it may be the master
// still, whose replica is away for long.
func TestConnectionsAreClosedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mini := miniredis.NewMiniRedis()
		defer mini.Close()
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", PoolSize: 3,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return mini.Dial() },
		})
		defer rdb.Close()
		s := staleConns{timeout: time.Second}
		open := func() {
			for range 3 {
				conn := rdb.Conn()
				defer conn.Close()
				require.NoError(t, conn.Ping(t.Context()).Err())
			}
		}
		for range 3 {
			for _, left := range []uint32{0, 3, 3} {
				open()
				s.note(rdb, replyError("NOREPLICAS Not enough good replicas to write."))
				synctest.Wait()
				require.Equal(t, left, rdb.PoolStats().IdleConns)
				time.Sleep(stalePause/3 + time.Millisecond)
			}
		}
	})
}
