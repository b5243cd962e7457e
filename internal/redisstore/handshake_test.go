package redisstore

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// slowHandshake is a connection whose first reply, to HELLO, takes longer than a decision may.
type slowHandshake struct {
	net.Conn
	first sync.Once
}

func (c *slowHandshake) Read(p []byte) (int, error) {
	c.first.Do(func() { time.Sleep(3 * decisionTime) })
	return c.Conn.Read(p)
}

const decisionTime = 50 * time.Millisecond

// slowServer is a client of a server with slow handshakes, and all of its connections.
func slowServer(t *testing.T) (rdb *redis.Client, conns func() []net.Conn) {
	mini, mu, all := miniredis.NewMiniRedis(), sync.Mutex{}, []net.Conn(nil)
	t.Cleanup(mini.Close)
	rdb = redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := mini.Dial()
			mu.Lock()
			defer mu.Unlock()
			all = append(all, conn)
			return &slowHandshake{Conn: conn}, err
		}})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb, func() []net.Conn {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// TestDecisionsUseConnectionsThatOthersHaveMade: a decision is too short for a slow handshake, but a look for
// overrides is not. Since go-redis 9.23 a client's pipelines have a pool of their own.
func TestDecisionsUseConnectionsThatOthersHaveMade(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(ctx context.Context, s *Store) error{
		"one command": func(ctx context.Context, s *Store) error {
			return send(ctx, s.sender, redis.NewStatusCmd(ctx, "ping")).Err()
		},
		"a pipeline": func(ctx context.Context, s *Store) error {
			pipe := s.sender.Pipeline()
			send(ctx, pipe, redis.NewStatusCmd(ctx, "ping"))
			_, err := pipe.Exec(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := slowServer(t)
				s := New(rdb, Config{Timeout: decisionTime})
				t.Cleanup(s.Close)
				decides := func() error {
					ctx, cancel := context.WithTimeout(t.Context(), decisionTime)
					defer cancel()
					return decide(ctx, s)
				}
				require.Error(t, decides())
				_, _, err := NewOverrides(rdb, "").Look(t.Context(), "")
				require.NoError(t, err)
				for range 3 {
					require.NoError(t, decides())
				}
			})
		})
	}
}

// TestAPipelineIsSentAgainIfItMayBe: its connection may have been cut while it was idle.
func TestAPipelineIsSentAgainIfItMayBe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, conns := slowServer(t)
		sends := newUnhooked(rdb)
		for _, row := range []struct {
			cmd  redis.Cmder
			want require.ErrorAssertionFunc
		}{
			{redis.NewStatusCmd(t.Context(), "ping"), require.NoError},
			{redis.NewStatusCmd(t.Context(), "ping"), require.NoError},
			{&command{Cmder: redis.NewStatusCmd(t.Context(), "ping")}, require.Error},
		} {
			pipe := sends.Pipeline()
			send(t.Context(), pipe, row.cmd)
			_, err := pipe.Exec(t.Context())
			row.want(t, err)
			for _, conn := range conns() {
				_ = conn.Close()
			}
		}
	})
}
