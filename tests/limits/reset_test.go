package limits_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// onServers runs a test on miniredis and on a redis-server.
func onServers(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb != nil {
			test(t, e.Rdb)
		}
	})
}

// TestResetHealsSlotsThatCannotBeRead: a Reset ends what is wrong with the key of slots. Those that are held stay held,
// where the key still says so.
func TestResetHealsSlotsThatCannotBeRead(t *testing.T) { onServers(t, resetHealsSlots) }

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
			{"no expiry", func() error {
				return rdb.HSet(t.Context(), key, "all", "9000 9000 3 2", "PX", "1 1 1 9000 ", "PY", "1 2 2 9000 ").Err()
			}, 1},
			{"others' fields", func() error { return rdb.HSet(t.Context(), key, "what", "9000 9000 3 2").Err() }, 4},
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
		held := map[string]string{"all": "9000 9000 3 1", "PX": "1 3 3 9000 "}
		require.NoError(t, rdb.HSet(t.Context(), key, held).Err())
		require.NoError(t, rdb.PExpire(t.Context(), key, time.Second).Err())
		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.Equal(t, held, rdb.HGetAll(t.Context(), key).Val(), "slots that are held stay")
		require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Second)
	}
}

// TestResetHealsSharesThatCannotBeRead: a Reset of a tenant or of all ends what is wrong with each of the keys of a
// shared policy. A tenant's Reset leaves what others hold, if that can be read.
func TestResetHealsSharesThatCannotBeRead(t *testing.T) { onServers(t, resetHealsShares) }

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

// TestReturnedTokensEqualModel settles some of many reservations, in any order, while others take, and Refunds and
// Blocks come in between.
func TestReturnedTokensEqualModel(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(4) {
			testkit.Run(t, fmt.Sprintf("%s, seed %d, miniredis", a, seed), func(t *testing.T) {
				followReturns(t, testkit.MiniredisEngine(t, a), seed, testkit.Steps(400))
			})
			t.Run(fmt.Sprintf("%s, seed %d, local", a, seed), func(t *testing.T) {
				testkit.InSynctest(t, func(t *testing.T) { followReturns(t, testkit.LocalEngine(t, a), seed, testkit.Steps(8000)) })
			})
		}
	}
}

// returnable is a reservation whose tokens may be given back.
type returnable struct {
	*ginlimit.Reservation
	n     int64
	back  func(n int64) // in the model
	until int64
}

func followReturns(t *testing.T, e testkit.Engine, seed uint64, steps int) {
	r, m := rand.New(rand.NewPCG(seed, 1)), testkit.NewWindowModel(e.Algorithm)
	sets := [][]ginlimit.Limit{
		{ginlimit.PerSecond(7)}, {ginlimit.PerMinute(40)}, {ginlimit.PerMinute(3), ginlimit.PerHour(60)},
		{{Rate: 9, Period: 200 * time.Millisecond}},
	}
	if e.Frozen { // but time of this process goes on, by which a receipt of a short window ends
		sets[0], sets[3] = []ginlimit.Limit{{Rate: 7, Period: 10 * time.Second}},
			[]ginlimit.Limit{{Rate: 9, Period: 20 * time.Second}}
	}
	var taken []returnable
	pass := func(d time.Duration) { e.Advance(d); m.Advance(d) }
	returned := 0
	for i := range steps {
		limits := sets[r.IntN(len(sets))]
		l := limits[0]
		key := l.String()
		if r.IntN(3) > 0 {
			pass(time.Duration(r.Int64N(int64(l.Period)/int64(l.Rate) + 1)).Truncate(time.Millisecond))
		}
		taken = slices.DeleteFunc(taken, func(c returnable) bool { return c.until <= m.Now })
		switch kind := r.IntN(10); {
		case kind == 0:
			d := time.Duration(1 + r.Int64N(int64(l.Period)/4))
			require.NoError(t, e.Limiter.Block(t.Context(), key, d, limits...))
			m.Block(key, d, limits)
		case kind == 1: // of all: of less, nobody knows whose tokens they are
			require.NoError(t, e.Limiter.Refund(t.Context(), key, 100, limits...))
			m.Refund(key, 100, limits)
		case kind < 5 && len(taken) > 0:
			j := r.IntN(len(taken))
			actual := max(0, r.Int64N(taken[j].n+2)-2)
			require.NoError(t, taken[j].Settle(t.Context(), int(actual)))
			taken[j].back(taken[j].n - actual)
			taken = slices.Delete(taken, j, j+1)
			returned++
		default:
			n := 1 + r.Int64N(3)
			reserved := testkit.Must(e.Limiter.Reserve(t.Context(), key, int(n), limits...))
			got, want := reserved.Result(), m.Take(key, n, n, limits)
			want.Name, got.Source = got.Name, 0
			require.Equal(t, want, got, "seed %d, step %d", seed, i)
			if got.Granted > 0 {
				taken = append(taken, returnable{reserved, n, m.Returns(key, limits), m.Now + l.Period.Milliseconds()})
			}
		}
		peek := testkit.Must(e.Limiter.Peek(t.Context(), key, limits...))
		peek.Source = 0
		want := m.Take(key, 0, 1, limits)
		want.Name = peek.Name
		require.Equal(t, want, peek, "seed %d, step %d", seed, i)
	}
	require.Greater(t, returned, steps/10)
}

// TestAReturnFindsItsTokens among those that others have taken before and since. With very many on both sides
// Redis gives back the oldest, so that no script takes long.
func TestAReturnFindsItsTokens(t *testing.T) {
	for _, row := range []struct{ earlier, later int }{{0, 1}, {1, 1100}, {501, 501}} {
		t.Run(fmt.Sprint(row.earlier, row.later), func(t *testing.T) {
			testkit.OnEveryEngineOf(t, ginlimit.SlidingWindow, func(t *testing.T, e testkit.Engine) {
				limit := ginlimit.PerHour(100_000)
				others := func(n int) {
					for range n {
						e.AllowN(t, 2, limit)
						e.Advance(time.Millisecond)
					}
				}
				others(row.earlier)
				all, part := e.Reserve(t, 501, limit), e.Reserve(t, 2, limit) // perhaps in the same millisecond
				e.Advance(time.Millisecond)
				others(row.later)
				taken := 2 * (row.earlier + row.later)
				require.Equal(t, 100_000-taken-503, e.Left(t, limit))
				require.NoError(t, all.Cancel(t.Context()))
				require.Equal(t, 100_000-taken-2, e.Left(t, limit))
				require.NoError(t, part.Cancel(t.Context()))
				require.Equal(t, 100_000-taken, e.Left(t, limit))
				others(1)
				require.Equal(t, 100_000-taken-2, e.Left(t, limit))
			})
		})
	}
}
