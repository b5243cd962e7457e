package faults_test

import (
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestGivingBackIsSentAgainWhileASlotMoves: each bucket of two is given back, though the client has
// given up five times.
func TestGivingBackIsSentAgainWhileASlotMoves(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(time.Second))
		limits := []ginlimit.Limit{ginlimit.PerHour(10), ginlimit.PerDay(20)}
		r, err := l.AllowN(t.Context(), "k", 7, limits...)
		require.NoError(t, err)
		require.Equal(t, 3, r.Remaining)
		refused := 0
		b.Mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
			if command != "EVALSHA" || !slices.Contains(args, "give") || args[1] == "1" && refused == 5 {
				return false
			}
			if args[1] == "1" {
				refused++
				peer.WriteError("MOVED 1 127.0.0.1:6379")
			} else {
				peer.WriteError("TRYAGAIN Multiple keys request during rehashing of slot")
			}
			return true
		})
		require.NoError(t, l.Refund(t.Context(), "k", 7, limits...))
		require.Equal(t, 5, refused)
		b.Mini.Server().SetPreHook(nil)
		for _, limit := range limits {
			r, err := l.Peek(t.Context(), "k", limit)
			require.NoError(t, err)
			require.Equal(t, limit.Rate, r.Remaining)
		}
	})
}
