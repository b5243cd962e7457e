// Package redistest gives tests and benchmarks a redis-server.
package redistest

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// Start starts a redis-server that ends with the test, and returns its address. Where there is none
// it skips the test; in CI it fails.
func Start(tb testing.TB) (addr string) {
	tb.Helper()
	s, err := redisserver.Start(tb.Context())
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s.Addr
}

// Connect returns a client, as the quickstart has it, that ends with the test.
func Connect(tb testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
