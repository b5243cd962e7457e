package ginlimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestReturnedTokensEqualModel gives back what some of many calls have taken, in any order.
func TestReturnedTokensEqualModel(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s, seed %d, miniredis", a, seed), func(t *testing.T) {
				t.Parallel()
				followReturns(t, testkit.MiniredisEngine(t, a), seed, 4000/testkit.TraceShare/testkit.RaceShare)
			})
			t.Run(fmt.Sprintf("%s, seed %d, local", a, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { followReturns(t, testkit.LocalEngine(t, a), seed, 20_000/testkit.RaceShare) })
			})
		}
	}
}

// returnable is a call whose tokens may be given back.
type returnable struct {
	limits []ginlimit.Limit
	back   func() error
	in     func(m *testkit.WindowModel)
	until  int64
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
		key, l := limits[0].String(), limits[0]
		if r.IntN(3) > 0 {
			pass(time.Duration(r.Int64N(int64(l.Period)/int64(l.Rate) + 1)).Truncate(time.Millisecond))
		}
		taken = slices.DeleteFunc(taken, func(c returnable) bool { return c.until <= m.Now })
		switch kind := r.IntN(10); {
		case kind == 0:
			d := time.Duration(1 + r.Int64N(int64(l.Period)/4))
			require.NoError(t, e.Limiter.Block(t.Context(), key, d, limits...))
			m.Block(key, d, limits)
		case kind < 5 && len(taken) > 0:
			j := r.IntN(len(taken))
			require.NoError(t, taken[j].back())
			taken[j].in(m)
			taken = slices.Delete(taken, j, j+1)
			returned++
		default:
			n := 1 + r.IntN(3)
			got, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, key, n, limits...)
			require.NoError(t, err)
			want := m.Take(key, int64(n), int64(n), limits)
			got.Source = 0
			require.Equal(t, want, got, "seed %d, step %d", seed, i)
			if got.Granted > 0 {
				taken = append(taken, returnable{limits, back, m.Returns(key, int64(n), limits), m.Now + l.Period.Milliseconds()})
			}
		}
		peek, err := e.Limiter.Peek(t.Context(), key, limits...)
		require.NoError(t, err)
		peek.Source = 0
		require.Equal(t, m.Take(key, 0, 1, limits), peek, "seed %d, step %d", seed, i)
	}
	require.Greater(t, returned, steps/10)
}

// TestReturnWritesNoLongTail: what others have taken since is written anew, unless it is too much.
func TestReturnWritesNoLongTail(t *testing.T) {
	t.Parallel()
	for _, later := range []int{0, 1, 150, 1000, 1001} {
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			t.Parallel()
			e, limit := testkit.MiniredisEngine(t, ginlimit.SlidingWindow), ginlimit.PerHour(5000)
			e.Allowed(t, 2, 4998, limit)
			e.Advance(time.Millisecond)
			_, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 3, limit)
			require.NoError(t, err)
			for range later {
				e.Advance(time.Millisecond)
				e.AllowN(t, 1, limit)
			}
			require.NoError(t, back())
			want := 4998 - later
			if later > 1000 {
				want -= 3
			}
			r, err := e.Limiter.Peek(t.Context(), "k", limit)
			require.NoError(t, err)
			require.Equal(t, want, r.Remaining)
			require.Len(t, e.Found(t, "k", limit).Taken, 5000-want)
		})
	}
}

// TestNothingIsReturnedThatMayHaveLeft: a window of a few milliseconds may have ended, and another one begun, before
// Redis gives back.
func TestNothingIsReturnedThatMayHaveLeft(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb == nil {
			return // the process knows
		}
		limit := ginlimit.Limit{Rate: 3, Period: 20 * time.Millisecond}
		_, back, err := ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 1, limit)
		require.NoError(t, err)
		e.Advance(limit.Period)
		_, _, err = ginlimit.Take(t.Context(), e.Limiter, e.Algorithm, "k", 1, limit)
		require.NoError(t, err)
		before := e.Found(t, "k", limit)
		require.NoError(t, back())
		if e.Frozen {
			require.Equal(t, before, e.Found(t, "k", limit))
		}
	})
}
