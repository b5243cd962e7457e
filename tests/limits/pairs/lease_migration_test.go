package pairs_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAGiveBackWhileAHashSlotMigratesVoidsNoLease of another client: a decision on one client gives
// back what it took, as another caller took the room in between, and a third decision sees the level
// fall. That is no jump of Redis' clock.
func TestAGiveBackWhileAHashSlotMigratesVoidsNoLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		limiter, err := ginlimit.NewLimiter(b.Client(t), ginlimit.WithLease(testkit.LeaseLife)) // it learns the clock
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, limiter.Close()) })
		p := testkit.NewPolicy(t, testkit.Wrap(limiter, ginlimit.TokenBucket), "api", testkit.LeasePerMinute,
			ginlimit.PerDay(100_000).WithBurst(2000))
		for i := 0; ; i++ {
			r, err := p.Allow(t.Context(), "bob")
			require.NoError(t, err)
			if r.Source == ginlimit.FromLease {
				break
			}
			require.Less(t, i, 1000, "there is no lease")
			b.Advance(5 * time.Millisecond)
			if i%3 == 0 {
				b.Advance(200 * time.Millisecond)
			}
		}
		take := func() ginlimit.Result {
			r, err := p.AllowN(t.Context(), "alice", 20)
			require.NoError(t, err)
			return r
		}
		for range 2 {
			take()
			b.Advance(10 * time.Millisecond)
		}
		ofAlice := func(key string) bool { return strings.Contains(key, "alice") && strings.HasSuffix(key, ":d") }
		day := ""
		for _, key := range b.Mini.Keys() {
			if ofAlice(key) {
				day = key
			}
		}
		hold, held := make(chan struct{}), make(chan struct{})
		var takes atomic.Int64
		var armed atomic.Bool
		armed.Store(true)
		b.Mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
			switch {
			case !strings.HasPrefix(command, "EVAL"):
			case args[1] != "1":
				peer.WriteError("TRYAGAIN Multiple keys request during rehashing of slot")
				return true
			case ofAlice(args[2]) && takes.Add(1) == 2: // another caller takes the room
				b.Mini.Set(day, "0")
				b.Mini.SetTTL(day, 1728*time.Second)
			case strings.Contains(strings.Join(args, " "), "return") && armed.CompareAndSwap(true, false):
				close(held)
				<-hold
			}
			return false
		})
		require.Positive(t, limiter.Stats().Leases)
		before := limiter.Stats().Leases
		done := make(chan ginlimit.Result, 1)
		go func() { done <- take() }()
		<-held
		b.Mini.Del(day)
		take()
		close(hold)
		require.False(t, (<-done).Allowed)
		b.Advance(2 * time.Millisecond)
		take()
		require.GreaterOrEqual(t, limiter.Stats().Leases, before)
	})
}
