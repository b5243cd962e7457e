//go:build integration

package ginlimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long clients wait for a reply, where that must not be what ends a decision.
const patience = time.Hour

// clients are two of one server: one that ends calls with their context, so that callers go themselves, and
// one that does not.
func clients(t *testing.T, addr string) map[string]*redis.Client {
	both := map[string]*redis.Client{}
	for name, direct := range map[string]bool{"direct": true, "by a goroutine": false} {
		rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: direct, ReadTimeout: patience})
		t.Cleanup(func() { _ = rdb.Close() })
		both[name] = rdb
	}
	return both
}
