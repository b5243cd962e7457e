package testkit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// AmpleWindow never denies, beside a limit under test.
var AmpleWindow = ginlimit.Limit{Rate: 1 << 20, Period: 13 * time.Millisecond}

// WindowTrace is [Trace] with limits of windows.
func WindowTrace(seed uint64, length int) []Step {
	return Trace(seed, length, windowTraceLimits, AmpleWindow)
}

// Follow makes the steps of a trace on an engine and on a model, which must agree at each. Some that are denied are
// made once more when the denial ends, or a millisecond before.
func (e Engine) Follow(t *testing.T, seed uint64, steps []Step, m Steppable, source ginlimit.Source) {
	for i, s := range steps {
		wait := e.follow(t, fmt.Sprintf("seed %d, step %d", seed, i), s, m, source).RetryAfter
		if i%2 == 0 && 0 < wait && wait <= time.Second {
			s.Wait = wait - Millis(int64(i/2%2))
			e.follow(t, fmt.Sprintf("seed %d, after step %d", seed, i), s, m, source)
		}
	}
}

func (e Engine) follow(t *testing.T, what string, s Step, m Steppable, source ginlimit.Source) ginlimit.Result {
	e.Advance(s.Wait)
	m.Advance(s.Wait)
	want := s.Expect(m)
	if want != (ginlimit.Result{}) {
		want.Source = source
	}
	got, err := s.Apply(t.Context(), e.Limiter)
	if err != nil || got != want {
		require.Failf(t, "differs", "%s, %s:\nwant %+v\n got %+v, error %v", what, s, want, got, err)
	}
	if e.Rdb != nil {
		e.requireBoundedLogs(t, s)
	}
	return want
}

// requireBoundedLogs wants no more entries in a log than the limit has tokens.
func (e Engine) requireBoundedLogs(t *testing.T, s Step) {
	if e.Algorithm != ginlimit.SlidingWindow {
		return
	}
	for _, l := range s.Limits {
		entries, err := e.Rdb.LLen(t.Context(), e.RedisKey(s.Key, l)).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, entries, 2*int64(l.Rate)+1, "with the header")
	}
}

// Found reads a window as it is in Redis; now is 0.
func (e Engine) Found(t *testing.T, key string, l ginlimit.Limit) *ModelWindow {
	ctx, name := t.Context(), e.RedisKey(key, l)
	var left *redis.DurationCmd
	var value *redis.StringCmd
	var list *redis.StringSliceCmd
	_, err := e.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		left = p.PTTL(ctx, name)
		if e.Algorithm == ginlimit.FixedWindow {
			value = p.Get(ctx, name)
		} else {
			list = p.LRange(ctx, name, 0, -1)
		}
		return nil
	})
	w, ttl := &ModelWindow{}, left.Val().Milliseconds()
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
			left, w.Blocked = ttl-n[1], ttl-n[2]
		}
		w.Begun = left - l.Period.Milliseconds()
		w.Taken = make([]int64, n[0])
		return w
	}
	header := numbers(list.Val()[0])
	before, now := header[0], header[2]-ttl
	if len(header) == 4 {
		w.Blocked = header[3] - now
	}
	for entry := range slices.Chunk(list.Val()[1:], 2) {
		at, total := numbers(entry[0])[0], numbers(entry[1])[0]
		w.Taken = append(w.Taken, slices.Repeat([]int64{at - now}, int(total-before))...)
		before = total
	}
	require.Equal(t, header[1], before, "the total")
	return w
}
