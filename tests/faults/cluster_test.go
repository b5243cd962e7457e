package faults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// migrate has the hash slots of all keys migrate, until the function returned is called: Redis answers
// TRYAGAIN to a script of several keys, and decides by a script of one.
func migrate(b *testkit.Bubble) (end func()) {
	b.Mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
		if !strings.HasPrefix(command, "EVAL") || args[1] == "0" || args[1] == "1" {
			return false
		}
		peer.WriteError("TRYAGAIN Multiple keys request during rehashing of slot")
		return true
	})
	return func() { b.Mini.Server().SetPreHook(nil) }
}

// TestAHashSlotThatMigrates: Redis decides on one key, and the failure mode on several, which are
// charged nothing in Redis. No breaker opens. A line a minute says why.
func TestAHashSlotThatMigrates(t *testing.T) {
	for name, row := range map[string]struct {
		failure ginlimit.FailureMode
		source  ginlimit.Source
		err     error
	}{
		"local":  {ginlimit.FailLocal, ginlimit.FromLocal, nil},
		"open":   {ginlimit.FailOpen, ginlimit.FromOpen, nil},
		"closed": {ginlimit.FailClosed, ginlimit.FromRedis, ginlimit.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				l, log := testkit.LoggedLimiter(t, b.Connect(t), ginlimit.WithFailureMode(row.failure))
				one := testkit.NewPolicy(t, l, "one", ginlimit.PerHour(10))
				for kind, option := range map[string]ginlimit.PolicyOption{
					"limits": ginlimit.PerDay(20), "ban": ginlimit.WithBan(time.Hour, time.Hour),
				} {
					several := testkit.NewPolicy(t, l, kind, ginlimit.PerHour(10), option)
					left := func(n int) {
						t.Helper()
						r := testkit.Must(several.Peek(t.Context(), "alice"))
						require.Equal(t, ginlimit.FromRedis, r.Source)
						require.Equal(t, n, r.Remaining, kind)
					}
					before := testkit.Must(several.Reserve(t.Context(), "alice", 3))
					end := migrate(b)
					for range 5 {
						r, err := several.Reserve(t.Context(), "alice", 1)
						require.ErrorIs(t, err, row.err)
						require.Equal(t, row.source, r.Result().Source)
						require.Equal(t, row.err == nil, r.Result().Allowed)
						require.Equal(t, ginlimit.FromRedis, testkit.Must(one.Allow(t.Context(), kind)).Source)
					}
					require.ErrorIs(t, before.Cancel(t.Context()), ginlimit.ErrUnavailable)
					require.ErrorIs(t, several.Refund(t.Context(), "alice", 1), ginlimit.ErrUnavailable)
					end()
					left(7)
					require.NoError(t, several.Refund(t.Context(), "alice", 3))
					left(10)
				}
				require.Nil(t, l.Stats().Transitions)
				require.Equal(t, 1, strings.Count(log.String(), "code=TRYAGAIN"), log)
			})
		})
	}
}
