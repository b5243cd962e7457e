package redisstore

import (
	"context"
	"net"
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

// slowServer returns a client of a server with slow handshakes.
func slowServer(t *testing.T) *redis.Client {
	mini := miniredis.NewMiniRedis()
	t.Cleanup(mini.Close)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := mini.Dial()
			return &slowHandshake{Conn: conn}, err
		}})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb
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
				rdb := slowServer(t)
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
