package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestLargeChangesAtOnceAreMadeWhole: each of some large changes finds room before the others have taken it. Then all
// are made, and none is left half made.
func TestLargeChangesAtOnceAreMadeWhole(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	o := NewOverrides(redis.NewClient(&redis.Options{Addr: mini.Addr()}), "p")
	change := func(mark string, n int) {
		c := &wire.OverrideChanges{Mark: mark, Limit: 1000, Kept: 4000}
		for i := range n {
			c.Changes = append(c.Changes, wire.OverrideChange{
				Name: fmt.Sprintf("api|%s%d", mark, i), Text: "{}", Ends: time.Now().Add(time.Hour),
			})
		}
		stamp, err := o.Change(t.Context(), c)
		require.NoError(t, err)
		require.Contains(t, stamp, " "+mark, mark)
	}
	var calls atomic.Int32
	mini.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		if command == "EVALSHA" {
			switch calls.Add(1) {
			case 2: // after the first of a
				change("b", 900)
			case 4: // after the first of b
				change("c", 800)
			}
		}
		return false
	})
	change("a", 200)
	names, err := mini.HKeys(wire.OverrideKeys("p")[0])
	require.NoError(t, err)
	require.Len(t, names, 1+200+900+800)
}

// TestEndsThatAreAddedChangeNone: while a process adds ends that Redis has evicted, another one puts an end off.
func TestEndsThatAreAddedChangeNone(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	o := NewOverrides(redis.NewClient(&redis.Options{Addr: mini.Addr()}), "p")
	change := func(mark, name string, end time.Time) {
		one := wire.OverrideChange{Name: name, Text: fmt.Sprintf(`{"until":%d}`, end.UnixMilli()), Ends: end}
		stamp, err := o.Change(t.Context(), &wire.OverrideChanges{
			Mark: mark, Limit: 1000, Kept: 4000, Changes: []wire.OverrideChange{one},
		})
		require.NoError(t, err)
		require.Contains(t, stamp, " "+mark)
	}
	soon, later := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	change("a", "api|ann", soon)
	keys := wire.OverrideKeys("p")
	require.True(t, mini.Del(keys[1]))
	var once atomic.Bool
	mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if command == "ZADD" && !once.Swap(true) {
			change("b", "api|ann", later)
		}
		return false
	})
	change("c", "api|bob", soon)
	require.True(t, once.Load())
	end, err := mini.ZScore(keys[1], "api|ann")
	require.NoError(t, err)
	require.EqualValues(t, later.UnixMilli(), end)
}
