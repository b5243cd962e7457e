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
		p := testkit.Must(testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithDenyCache(0),
			ginlimit.WithFailureMode(ginlimit.FailClosed)).Policy("api", limits...))
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
			require.ErrorIs(t, testkit.Err(p.Peek(t.Context(), "alice")), ginlimit.ErrUnavailable, c.what)
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

// TestResetHealsSharesThatCannotBeRead, on miniredis.
func TestResetHealsSharesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	resetHealsShares(t, rdb)
}

// resetHealsShares has a Reset of a tenant or of all end what is wrong with each of the keys of a shared policy. A
// tenant's Reset leaves what others hold, if that can be read.
func resetHealsShares(t *testing.T, rdb *redis.Client) {
	p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithDenyCache(0),
		ginlimit.WithFailureMode(ginlimit.FailClosed)), "shared", ginlimit.PerDay(1000), ginlimit.WithShares(unusedTenant))
	const name = "ginlimit:{shared|alice}:d"
	spoil := map[string]func(key string) error{
		"no expiry":     func(key string) error { return rdb.Persist(t.Context(), key).Err() },
		"another type":  func(key string) error { return rdb.LPush(t.Context(), key, "what").Err() },
		"another value": func(key string) error { return rdb.Set(t.Context(), key, "what", time.Minute).Err() },
		"other totals":  func(key string) error { return rdb.HSet(t.Context(), key, "t", "what").Err() },
	}
	for _, key := range []string{name, name + ":back", name + ":tenants", name + ":tenants:held"} {
		for what, spoil := range spoil {
			for reset, of := range map[string]*ginlimit.Policy{"all": p, "one": p.Share("a", 1)} {
				require.NoError(t, p.Reset(t.Context(), "alice"))
				for tenant, n := range map[string]int{"a": 300, "b": 100} {
					testkit.Must(p.Share(tenant, 1).AllowN(t.Context(), "alice", n))
					require.NoError(t, p.Share(tenant, 1).Refund(t.Context(), "alice", 1)) // makes a record
				}
				if what != "no expiry" {
					require.NoError(t, rdb.Del(t.Context(), key).Err())
				}
				require.NoError(t, spoil(key))
				require.NoError(t, of.Reset(t.Context(), "alice"), "%s: %s of %s", reset, what, key)
				r, err := p.Share("a", 1).AllowN(t.Context(), "alice", 10)
				require.NoError(t, err, "%s: %s of %s", reset, what, key)
				require.True(t, r.Allowed)
				left := []int{490}
				if reset == "one" {
					left = append(left, 441) // b holds 99
				}
				require.Contains(t, left, r.Remaining, "%s: %s of %s", reset, what, key)
			}
		}
	}
}
