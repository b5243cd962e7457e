package ginlimit_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// windowTraceLimits are the sets of limits that traces of windows run under.
var windowTraceLimits = [][]ginlimit.Limit{
	{ginlimit.PerSecond(10)},
	{ginlimit.PerMinute(100)},
	{ginlimit.PerMinute(1)},
	{ginlimit.PerHour(5)},
	{{Rate: 3, Period: 2 * time.Millisecond}},
	{{Rate: 1, Period: time.Millisecond}},
	{{Rate: 7, Period: 50 * time.Millisecond}},
	{{Rate: 40, Period: 30 * time.Millisecond}},
	{{Rate: 17, Period: 7 * 24 * time.Hour}},
	{ginlimit.PerSecond(5), ginlimit.PerMinute(60)},
	{ginlimit.PerSecond(3), ginlimit.PerMinute(11), ginlimit.PerDay(50)},
	{{Rate: 9, Period: 100 * time.Millisecond}, {Rate: 13, Period: 3 * time.Second}},
}

// ampleWindow never refuses, beside a limit under test.
var ampleWindow = ginlimit.Limit{Rate: 1 << 20, Period: 13 * time.Millisecond}

func windowTrace(seed uint64, length int) []step {
	return trace(seed, length, windowTraceLimits, ampleWindow)
}

// follow makes the steps of a trace on an engine and on a model, which must agree at each.
func (e engine) follow(t *testing.T, seed uint64, steps []step, m steppable, source ginlimit.Source) {
	for i, s := range steps {
		e.advance(s.wait)
		m.advance(s.wait)
		want := s.expect(m)
		if want != (ginlimit.Result{}) {
			want.Source = source
		}
		got, err := s.apply(t.Context(), e.limiter)
		if err != nil || got != want {
			require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
		}
		if e.rdb != nil {
			e.requireBoundedLogs(t, s)
		}
	}
}

// requireBoundedLogs wants no more entries in a log than the limit has tokens.
func (e engine) requireBoundedLogs(t *testing.T, s step) {
	if e.algorithm != ginlimit.SlidingWindow {
		return
	}
	for _, l := range s.limits {
		entries, err := e.rdb.LLen(t.Context(), e.redisKey(s.key, l)).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, entries, 2*int64(l.Rate)+1, "with the header")
	}
}

const windowTraceSteps = 5000

func TestWindowTraceEqualsModelOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		for seed := range uint64(traceSeeds / 2) {
			t.Run(fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				t.Parallel()
				miniredisEngine(t, a).follow(t, seed, windowTrace(seed, windowTraceSteps/2/traceShare/raceShare), newWindowModel(a), ginlimit.FromRedis)
			})
		}
	}
}

func TestWindowTraceEqualsModelInProcess(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		for seed := range uint64(traceSeeds) {
			t.Run(fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					localEngine(t, a).follow(t, seed, windowTrace(seed, windowTraceSteps), newWindowModel(a), ginlimit.FromLocal)
				})
			})
		}
	}
}

// found reads a window as it is in Redis; now is 0.
func (e engine) found(t *testing.T, key string, l ginlimit.Limit) *modelWindow {
	ctx, name := t.Context(), e.redisKey(key, l)
	var left *redis.DurationCmd
	var value *redis.StringCmd
	var list *redis.StringSliceCmd
	_, err := e.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		left = p.PTTL(ctx, name)
		if e.algorithm == ginlimit.FixedWindow {
			value = p.Get(ctx, name)
		} else {
			list = p.LRange(ctx, name, 0, -1)
		}
		return nil
	})
	w, ttl := &modelWindow{}, left.Val().Milliseconds()
	if err == redis.Nil || err == nil && left.Val() <= 0 {
		return w
	}
	require.NoError(t, err)
	numbers := func(text string) (all []int64) {
		for _, word := range strings.Fields(text) {
			n, err := strconv.ParseInt(word, 10, 64)
			require.NoError(t, err)
			all = append(all, n)
		}
		return all
	}
	if value != nil {
		n, left := numbers(value.Val()), ttl
		if len(n) == 3 {
			left, w.blocked = ttl-n[1], ttl-n[2]
		}
		w.begun = left - l.Period.Milliseconds()
		w.taken = make([]int64, n[0])
		return w
	}
	header := numbers(list.Val()[0])
	before, now := header[0], header[2]-ttl
	if len(header) == 4 {
		w.blocked = header[3] - now
	}
	for entry := range slices.Chunk(list.Val()[1:], 2) {
		at, total := numbers(entry[0])[0], numbers(entry[1])[0]
		w.taken = append(w.taken, slices.Repeat([]int64{at - now}, int(total-before))...)
		before = total
	}
	require.Equal(t, header[1], before, "the total")
	return w
}
