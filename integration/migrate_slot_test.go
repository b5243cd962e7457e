package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestSlotsWhileTheirSlotMigrates takes slots and tokens of a client whose keys are on either node
// of a cluster, where each key is asked for alone. Never more than three are in flight, one that
// ends is free at once in its own process, and soon in another, and no token is lost to a denial.
func TestSlotsWhileTheirSlotMigrates(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	first := testkit.Connect(t, m.Addrs[0])
	policy := func() *ginlimit.Policy {
		limiter := testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithDenyCache(0),
			ginlimit.WithFailureMode(ginlimit.FailClosed))
		p, err := limiter.Policy("api", ginlimit.Limit{Rate: 20, Period: 24 * time.Hour}, ginlimit.InFlight(3))
		require.NoError(t, err)
		return p
	}
	p, other := policy(), policy()
	random := rand.New(rand.NewPCG(1, 2))
	migrated := 0
	for i := range 16 {
		client, tokens := fmt.Sprintf("client %d", i), 20
		slots := []*ginlimit.Slot{}
		for j := range 40 {
			if j == 3 {
				if !m.Begin(t, "{api|"+client+"}") {
					break
				}
				migrated++
			}
			if j == 10 {
				keys, err := first.Keys(t.Context(), "ginlimit:{api|"+client+"}:*").Result()
				require.NoError(t, err)
				for _, key := range keys[:min(len(keys), random.IntN(3))] {
					m.Move(t, key)
				}
			}
			what := fmt.Sprintf("step %d of %s, %d held, %d tokens", j, client, len(slots), tokens)
			if random.IntN(2) == 0 && len(slots) > 0 {
				slots[0].Release()
				slots = slots[1:]
				continue
			}
			slot, err := p.Acquire(t.Context(), client)
			require.NoError(t, err, what)
			require.Equal(t, ginlimit.FromRedis, slot.Result().Source, what)
			require.Equal(t, len(slots) < 3 && tokens > 0, slot.Result().Allowed, what)
			if slot.Result().Allowed {
				slots, tokens = append(slots, slot), tokens-1
			}
		}
		require.Eventually(t, func() bool {
			res, err := other.Peek(t.Context(), client)
			return err == nil && res.Allowed == (len(slots) < 3 && tokens > 0)
		}, 20*time.Second, 20*time.Millisecond, client)
		for _, slot := range slots {
			slot.Release()
		}
	}
	require.Positive(t, migrated)
}
