//go:build integration

package limits_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestBucketsWhileRedisIsFull of keys that are written all the time: 20 clients take what they get. By volatile-ttl
// they get too much beside keys that live longer than their buckets, and no more than their limit beside other clients
// of the same policy. Where Redis evicts nothing they never get more. docs/operations.md has what this finds.
func TestBucketsWhileRedisIsFull(t *testing.T) {
	testkit.Nightly(t, "a flood of keys for seconds, beside which buckets must lose their keys")
	t.Parallel()
	for _, c := range []struct {
		evicts, others string
		more           bool
	}{
		{"volatile-ttl", "api", false},
		{"volatile-ttl", "login", true},
		{"volatile-ttl", "sessions", true},
		{"noeviction", "api", false},
		{"noeviction", "sessions", false},
	} {
		testkit.Run(t, c.evicts+" beside "+c.others, func(t *testing.T) {
			addr := testkit.StartRedis(t, "--maxmemory", "4mb", "--maxmemory-policy", c.evicts)
			rdb := testkit.Connect(t, addr)
			limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithFailureMode(ginlimit.FailClosed),
				ginlimit.WithDenyCache(0))
			policies := map[string]*ginlimit.Policy{
				"api":   testkit.NewPolicy(t, limiter, "api", ginlimit.PerMinute(60)),
				"login": testkit.NewPolicy(t, limiter, "login", ginlimit.Per(5, 15*time.Minute)),
			}
			var began time.Time
			admitted := 0
			take := func() {
				for client := range 20 {
					if r, err := policies["api"].Allow(t.Context(), fmt.Sprint("client ", client)); err == nil && r.Allowed {
						admitted++
					}
				}
			}
			began = time.Now()
			take()
			var written atomic.Int64
			done := make(chan struct{})
			var flood sync.WaitGroup
			defer flood.Wait()
			defer close(done)
			flood.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					name := fmt.Sprint("invented ", n) // what does not fit is an error
					if p := policies[c.others]; p != nil {
						_, _ = p.Allow(t.Context(), name)
					} else {
						_ = rdb.Set(t.Context(), name, fmt.Sprintf("%0200d", n), 2*time.Hour).Err()
					}
					written.Store(int64(n))
				}
			})
			allowed := func() int { return 20 * (60 + int(time.Since(began)/time.Second) + 1) }
			for written.Load() < 50_000 && admitted <= 2*allowed() {
				take()
				require.False(t, !c.more && admitted > allowed(), "%d of %d", admitted, allowed())
			}
			t.Logf("%d of %d, beside %d keys", admitted, allowed(), written.Load())
			require.Equal(t, c.more, admitted > allowed())
		})
	}
}
