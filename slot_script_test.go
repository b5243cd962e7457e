package ginlimit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// slotMessage is what a process asks of four slots, and what it is told: how many are in use.
type slotMessage struct {
	process, settled, held, attempts string
	after                            time.Duration // since the last message
	inUse                            int64
}

// TestMessagesAboutSlots sends messages in orders in which a network may deliver them.
func TestMessagesAboutSlots(t *testing.T) {
	t.Parallel()
	for name, messages := range map[string][]slotMessage{
		"one after another": {{"PA", "0", "0", "1,", 0, 0}, {"PA", "1", "1", "2,", 0, 1}, {"PA", "2", "2", "3,", 0, 2}, {"PA", "3", "0", "4,", 0, 0}},
		"what is not settled counts by its number": {
			{"PA", "0", "0", "2,", 0, 0}, {"PA", "0", "0", "1,", 0, 1}, {"PA", "0", "0", "3,", 0, 2}, {"PA", "1", "1", "4,", 0, 3}, {"PA", "3", "2", "5,", 0, 3},
			{"PA", "5", "1", "6,", 0, 1},
		},
		"settled in part":                  {{"PA", "0", "0", "2,", 0, 0}, {"PA", "1", "0", "3,", 0, 1}, {"PA", "2", "1", "4,", 0, 2}, {"PA", "3", "2", "5,", 0, 3}},
		"an older message changes nothing": {{"PA", "5", "3", "6,", 0, 3}, {"PA", "2", "0", "7,", 0, 4}, {"PA", "6", "4", "", 0, 4}},
		"the sooner, the fewer":            {{"PA", "5", "3", "6,", 0, 3}, {"PA", "5", "2", "7,", 0, 3}, {"PA", "5", "3", "", 0, 4}},
		"repeated":                         {{"PA", "0", "0", "1,", 0, 0}, {"PA", "0", "0", "1,", 0, 0}, {"PA", "0", "0", "2,", 0, 1}, {"PA", "0", "0", "1,", 0, 1}},
		"late":                             {{"PA", "2", "1", "3,", 0, 1}, {"PA", "0", "0", "2,", 0, 2}, {"PA", "0", "0", "1,", 0, 2}, {"PA", "3", "2", "", 0, 2}},
		"several at once":                  {{"PA", "0", "0", "1,2,3,", 0, 0}, {"PA", "0", "0", "4,5,", 0, 3}, {"PA", "0", "0", "", 0, 4}, {"PA", "4", "4", "", 0, 4}},
		"processes": {
			{"PA", "0", "0", "1,", 0, 0}, {"PB", "0", "0", "1,", 0, 1}, {"PC", "7", "1", "8,", 0, 3}, {"PA", "1", "1", "2,", 0, 4}, {"PB", "1", "0", "2,", 0, 3},
			{"PC", "8", "0", "9,", 0, 2}, {"PA", "1", "0", "", 0, 2},
		},
		"a process that is silent": {
			{"PA", "0", "0", "1,2,", 0, 0}, {"PB", "0", "0", "1,", 9 * time.Second, 2}, {"PB", "1", "1", "2,", time.Second - time.Millisecond, 3}, {"PB", "2", "2", "3,", time.Millisecond, 2},
			{"PC", "0", "0", "1,", time.Second, 3}, {"PA", "2", "2", "", 0, 6}, {"PC", "1", "1", "", 11 * time.Second, 1},
		},
		"one that was silent comes back": {{"PA", "0", "0", "1,2,", 0, 0}, {"PB", "0", "0", "1,", 10 * time.Second, 0}, {"PA", "2", "2", "3,", 0, 3}},
		"one after another is silent": {
			{"PA", "0", "0", "1,", 0, 0}, {"PB", "0", "0", "1,", time.Second, 1}, {"PC", "0", "0", "1,", 5 * time.Second, 2},
			{"PC", "1", "1", "2,", 4 * time.Second, 2}, {"PC", "2", "2", "", time.Second, 2},
		},
		"many": {
			{"PA", "0", "0", "1,", 0, 0}, {"PB", "0", "0", "1,", time.Second, 1}, {"PC", "0", "0", "1,", 5 * time.Second, 2}, {"PA", "1", "0", "", 0, 2},
			{"PB", "1", "1", "", 4 * time.Second, 2}, {"PB", "1", "1", "2,", 0, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, advance := newMiniredis(t)
			for _, limits := range [][]ginlimit.Limit{
				{ginlimit.PerHour(1000)}, {{Rate: -1}}, {ginlimit.PerHour(1000), ginlimit.PerCalendar(1000, ginlimit.CalendarMonth(nil, 1))},
			} {
				require.NoError(t, rdb.FlushAll(t.Context()).Err())
				args := slotArgs(t, rdb, limits)
				for i, m := range messages {
					advance(m.after)
					n := len(args)
					copy(args[n-5:], []any{m.process, m.settled, m.held, m.attempts})
					charges := 0
					for range m.attempts {
						charges++
					}
					args[slices.Index(args, any("take"))+2] = charges / 2
					reply, err := rdb.Do(t.Context(), args...).Int64Slice()
					require.NoError(t, err)
					require.Equal(t, m.inUse, reply[len(reply)-1], "message %d under %v: %q", i, limits, rdb.Get(t.Context(), "ginlimit:{api|alice}:slots").Val())
				}
			}
		})
	}
}

// slotArgs returns the command that takes one of four slots, from which nothing is taken yet.
func slotArgs(t *testing.T, rdb *redis.Client, limits []ginlimit.Limit) []any {
	t.Helper()
	hook := &lateHook{}
	seen := redis.NewClient(rdb.Options())
	seen.AddHook(hook)
	t.Cleanup(func() { require.NoError(t, seen.Close()) })
	limiter := harness.NewLimiter(t, seen, harness.Patient(), ginlimit.WithFailure(ginlimit.FailClosed))
	p, err := limiter.Policy(limits[0], ginlimit.WithLimits(limits[1:]...), ginlimit.WithName("api"), ginlimit.WithConcurrency(4))
	require.NoError(t, err)
	_, err = p.Acquire(t.Context(), "alice")
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NoError(t, limiter.Close())
	require.NoError(t, rdb.Del(t.Context(), "ginlimit:{api|alice}:slots").Err())
	return hook.args
}
