package testkit

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// Unreachable is a client of a server that refuses connections, and that does not try again. It may
// be in a bubble: it uses no network, and go-redis only dials in the background after as many
// failures as its pool is large.
func Unreachable(t testing.TB) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1,
		PoolSize: 1000, Dialer: RefuseConnection})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// RefuseConnection is the Dialer of a server that refuses connections.
func RefuseConnection(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// WithoutRedis returns a limiter without its Redis.
func WithoutRedis(t testing.TB, opts ...ginlimit.LimiterOption) *Limiter {
	return NewLimiter(t, Unreachable(t), append([]ginlimit.LimiterOption{ginlimit.WithFailureMode(ginlimit.FailLocal)},
		opts...)...)
}
