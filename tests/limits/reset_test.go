package limits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestResetHealsSlotsThatCannotBeRead, on miniredis.
func TestResetHealsSlotsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	resetHealsSlots(t, rdb)
}

// resetHealsSlots has a Reset end what is wrong with the key of slots. Those that are held stay held, where the key
// still says so.
func resetHealsSlots(t *testing.T, rdb *redis.Client) {
	const key = "ginlimit:{api|alice}:slots"
	for _, limits := range [][]ginlimit.PolicyOption{
		{ginlimit.InFlight(4)},
		{ginlimit.InFlight(4), ginlimit.PerHour(5)},
		{ginlimit.InFlight(4), ginlimit.PerHour(5), ginlimit.WithBan(time.Minute, time.Hour)},
	} {
		p, err := testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithDenyCache(0),
			ginlimit.WithFailureMode(ginlimit.FailClosed)).Policy("api", limits...)
		require.NoError(t, err)
		for _, c := range []struct {
			what  string
			spoil func() error
			free  int
		}{
			{"no expiry", func() error { return rdb.Set(t.Context(), key, "PX 1 3 ", 0).Err() }, 1},
			{"no expiry, several", func() error {
				return rdb.Set(t.Context(), key, "9000 9000 3 PX 1 1 1 9000 ; PY 1 2 2 9000 ;", 0).Err()
			}, 1},
			{"another type", func() error { return rdb.LPush(t.Context(), key, "what").Err() }, 4},
			{"another value", func() error { return rdb.Set(t.Context(), key, "what", time.Minute).Err() }, 4},
		} {
			require.NoError(t, rdb.Del(t.Context(), key).Err())
			require.NoError(t, c.spoil())
			_, err = p.Peek(t.Context(), "alice")
			require.ErrorIs(t, err, ginlimit.ErrUnavailable, c.what)
			require.NoError(t, p.Reset(t.Context(), "alice"), c.what)
			rows, err := p.Status(t.Context(), "alice")
			require.NoError(t, err, c.what)
			require.Equal(t, c.free, rows[0].Remaining, c.what)
		}
		require.NoError(t, rdb.Set(t.Context(), key, "PX 1 3 ", time.Second).Err())
		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.Equal(t, "PX 1 3 ", rdb.Get(t.Context(), key).Val(), "slots that are held stay")
		require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Second)
	}
}
