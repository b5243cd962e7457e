package limits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What processes know of overrides, and of a Redis that has lost some.

// TestALossIsLoggedOnce, with the number of overrides that are gone, and policies are published again at once.
func TestALossIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		overrides int
		lose      func(b *testkit.Bubble)
		want      string // in the log
	}{
		"all":          {3, func(b *testkit.Bubble) { b.Mini.FlushAll() }, "overrides=3"},
		"no overrides": {0, func(b *testkit.Bubble) { b.Mini.FlushAll() }, "may be gone\"\n"},
		"overrides": {2, func(b *testkit.Bubble) {
			for _, end := range []string{"", ":ends", ":changes"} {
				b.Mini.Del("ginlimit:{overrides}" + end)
			}
		}, "overrides=2"},
		"nothing": {2, func(b *testkit.Bubble) { b.Mini.Del("ginlimit:{overrides}:changes") }, ""},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var log testkit.Buffer
			ctx, handler := t.Context(), slog.NewTextHandler(&log, nil)
			toLog := ginlimit.WithLogger(slog.New(handler))
			testkit.NewOperated(t, b.Redis, ginlimit.WithLogger(slog.New(handler))) // one log by two loggers
			l, reader := testkit.NewOperated(t, b.Redis, toLog), testkit.NewOperated(t, b.Connect(t))
			p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
			testkit.Must(p.Allow(ctx, "ann"))
			for i := range row.overrides {
				require.NoError(t, l.Override(ctx, override(fmt.Sprint(i), ginlimit.PerMinute(9))))
			}
			short := override("ended", ginlimit.PerMinute(9))
			short.Until = time.Now().Add(time.Second / 2)
			require.NoError(t, l.Override(ctx, short), "which is not lost, as it has ended")
			time.Sleep(3 * inForce)
			row.lose(b)
			testkit.Must(p.Allow(ctx, "ann"))
			time.Sleep(inForce)
			require.Len(t, testkit.Must(reader.Policies(ctx)), 1)
			if row.want == "" {
				require.Equal(t, row.overrides, l.Stats().Overrides)
				require.Empty(t, log.String())
				return
			}
			require.Zero(t, l.Stats().Overrides)
			require.NoError(t, l.Override(ctx, override("new", ginlimit.PerMinute(9))))
			time.Sleep(4 * time.Hour)
			testkit.Must(p.Allow(ctx, "ann"))
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), "Redis has lost its data")
			require.Contains(t, log.String(), row.want)
		})
	}
}

// copied is what Redis has of overrides.
type copied struct {
	texts         map[string]string
	ends, changes []redis.Z
}

func copyOf(ctx context.Context, rdb *redis.Client) copied {
	const name = "ginlimit:{overrides}"
	return copied{rdb.HGetAll(ctx, name).Val(), rdb.ZRangeWithScores(ctx, name+":ends", 0, -1).Val(),
		rdb.ZRangeWithScores(ctx, name+":changes", 0, -1).Val()}
}

// restore puts it back, as another master does that has missed what came later.
func (c copied) restore(ctx context.Context, rdb *redis.Client) {
	const name = "ginlimit:{overrides}"
	rdb.Del(ctx, name, name+":ends", name+":changes")
	if len(c.texts) > 0 {
		rdb.HSet(ctx, name, c.texts)
		rdb.ZAdd(ctx, name+":ends", c.ends...)
		rdb.ZAdd(ctx, name+":changes", c.changes...)
	}
}

// TestTheLossOfTheLatestOverridesIsLogged: another master has missed them, and may have changes of its own.
func TestTheLossOfTheLatestOverridesIsLogged(t *testing.T) {
	t.Parallel()
	for name, isChanged := range map[string]bool{"as it was": false, "changed since": true} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var log testkit.Buffer
			ctx, toLog := t.Context(), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			l, other := testkit.NewOperated(t, b.Redis, toLog), testkit.NewOperated(t, b.Connect(t))
			p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
			testkit.Must(p.Allow(ctx, "ann"))
			require.NoError(t, l.Override(ctx, override("old", ginlimit.PerMinute(9))))
			before := copyOf(ctx, b.Redis)
			require.NoError(t, l.Override(ctx, override("late", ginlimit.PerMinute(9))))
			require.NoError(t, l.Override(ctx, override("later", ginlimit.PerMinute(9))))
			time.Sleep(inForce)
			require.Empty(t, log.String())
			before.restore(ctx, b.Redis)
			if isChanged {
				require.NoError(t, other.Override(ctx, override("new", ginlimit.PerMinute(9))))
			}
			time.Sleep(3 * inForce)
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), "overrides=2")
		})
	}
}

// TestProcessesKnowWhatRedisHas, whatever changes it: they themselves at the same time, operators, a FLUSHALL, an
// eviction of any key, another master that has missed changes, and ends.
func TestProcessesKnowWhatRedisHas(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		testkit.RunInBubble(t, fmt.Sprint(seed), func(t *testing.T, b *testkit.Bubble) {
			rng, ctx := rand.New(rand.NewPCG(seed, 1)), t.Context()
			var limiters []*testkit.Limiter
			var policies []*ginlimit.Policy
			for range 3 {
				l := testkit.NewOperated(t, b.Connect(t))
				limiters, policies = append(limiters, l), append(policies, testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(1)))
			}
			change := func() {
				o := override(fmt.Sprint("c|", rng.IntN(9)), ginlimit.PerMinute(2+rng.IntN(1000)))
				if o.Until = time.Now().Add(time.Duration(1+rng.IntN(20)) * time.Second); rng.IntN(3) == 0 {
					o.Limits = nil
				}
				require.NoError(t, limiters[rng.IntN(3)].Override(ctx, o))
			}
			before := copyOf(ctx, b.Redis)
			for step := range 40 {
				for range rng.IntN(4) {
					change()
				}
				switch rng.IntN(12) {
				case 0:
					b.Mini.FlushAll()
				case 1, 2, 3:
					b.Mini.Del("ginlimit:{overrides}" + []string{"", ":ends", ":changes"}[rng.IntN(3)])
				case 4, 5:
					before.restore(ctx, b.Redis)
				case 6, 7:
					before = copyOf(ctx, b.Redis)
				}
				for range rng.IntN(2) {
					change()
				}
				for _, p := range policies {
					testkit.Must(p.Peek(ctx, "nobody"))
				}
				time.Sleep(inForce)
				require.Equal(t, limitsIn(ctx, b.Redis), limitsOf(t, policies), "step %d", step)
			}
		})
	}
}

// limitsIn returns the limits that clients have by what Redis has.
func limitsIn(ctx context.Context, rdb *redis.Client) (all [9]int) {
	for i := range all {
		var text struct {
			Limits string
			Until  int64
		}
		all[i] = 1
		stored, err := rdb.HGet(ctx, "ginlimit:{overrides}", fmt.Sprintf(`api|c\|%d`, i)).Bytes()
		if err == nil && json.Unmarshal(stored, &text) == nil && time.Now().UnixMilli() < text.Until {
			all[i] = testkit.Must(ginlimit.ParseLimit(text.Limits)).Rate
		}
	}
	return all
}

// limitsOf returns them as all processes know them, or zeros if they differ.
func limitsOf(t *testing.T, policies []*ginlimit.Policy) (all [9]int) {
	for i := range all {
		for n, p := range policies {
			if rate := limitOf(t, p, fmt.Sprint("c|", i)).Rate; n == 0 || rate == all[i] {
				all[i] = rate
			} else {
				return [9]int{}
			}
		}
	}
	return all
}

// TestWhoListsOverridesKnowsThatTheyAreGone at once, also if Redis has evicted them and not their changes.
func TestWhoListsOverridesKnowsThatTheyAreGone(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewOperated(t, b.Redis)
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(60))))
		require.Equal(t, ginlimit.PerMinute(60), limitOf(t, p, "ann"))
		require.True(t, b.Mini.Del("ginlimit:{overrides}"))
		require.Empty(t, testkit.Must(l.Overrides(t.Context())))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann"))
	})
}
