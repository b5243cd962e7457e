package scripts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// furtherScripts are the scripts that decide nothing, by name.
func furtherScripts(t *testing.T) map[string]string {
	return map[string]string{
		"override": wire.OverrideScript(), "publish": wire.PublishScript(), "plan": wire.Plan(),
		"report": testkit.Read(t, "contrib/top/report.lua"), "read": testkit.Read(t, "contrib/top/read.lua"),
	}
}

// TestFurtherScripts: what decides nothing says how much it did.
func TestFurtherScripts(t *testing.T) {
	t.Parallel()
	mini, advance := testkit.NewMiniredis(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Options().Addr, Protocol: 2}) // as scripts have it
	defer rdb.Close()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // as Redis' clock
	call := func(name string, keys []string, args ...any) any {
		return testkit.Must(eval(t.Context(), rdb, furtherScripts(t)[name], keys, args...).Result())
	}
	change := func(name, text string, ends time.Duration) wire.OverrideChange {
		return wire.OverrideChange{Name: name, Text: text, Ends: now.Add(ends)}
	}
	override := func(limit int, all ...wire.OverrideChange) (last any) {
		o := wire.OverrideChanges{Mark: "mark", Limit: limit, Kept: 3, Changes: all}
		for _, args := range o.Encode(2) {
			last = call("override", wire.OverrideKeys("p"), args...)
		}
		return last
	}
	text := fmt.Sprintf(`{"until":%d}`, now.Add(2*time.Minute).UnixMilli())
	changes := func() []string {
		return testkit.Must(rdb.ZRange(t.Context(), wire.OverrideKeys("p")[2], 0, -1).Result())
	}
	require.Equal(t, "2 mark", override(2, change("a", text, 2*time.Minute), change("b", text, time.Minute)))
	require.Equal(t, []string{"a", "b", "2 mark"}, changes())
	require.Equal(t, "", override(2, change("c", text, time.Hour)), "too many")
	advance(90 * time.Second)
	require.Equal(t, "4 mark", override(2, change("c", text, time.Hour)), "the second has ended")
	require.Equal(t, []string{"2 mark", "c", "4 mark"}, changes(), "the latest three")
	require.NoError(t, rdb.ZRem(t.Context(), wire.OverrideKeys("p")[1], "a").Err())
	require.Equal(t, wire.EndsMissing, override(2, change("c", "", 0)), "an end was evicted")
	end := redis.Z{Score: float64(now.Add(2 * time.Minute).UnixMilli()), Member: "a"}
	require.NoError(t, rdb.ZAdd(t.Context(), wire.OverrideKeys("p")[1], end).Err())
	require.Equal(t, "6 mark", override(2, change("c", "", 0)))
	require.EqualValues(t, 2, rdb.HLen(t.Context(), wire.OverrideKeys("p")[0]).Val(), "the stamp, and the first")
	require.NoError(t, rdb.Del(t.Context(), wire.OverrideKeys("p")[2]).Err())
	require.Equal(t, "8 mark", override(2, change("c", text, time.Hour)))
	require.Equal(t, []string{"c", "8 mark"}, changes(), "evicted")
	for _, stamp := range []string{"foreign", "", "99999999999999999999 x"} {
		require.NoError(t, rdb.HSet(t.Context(), wire.OverrideKeys("p")[0], "", stamp).Err())
		require.Equal(t, "2 mark", override(2, change("c", text, time.Hour)), stamp)
		require.Equal(t, []string{"c", "2 mark"}, changes(), "nobody knows what came before")
	}

	publish := func(process string) any {
		p := wire.Publication{Process: process, Life: 3 * time.Minute, MaxTexts: 2, MaxMembers: 2,
			Texts: map[string]string{"a": "A"}}
		return call("publish", wire.PolicyKeys("p"), p.Encode()...)
	}
	require.EqualValues(t, 1, publish("P1"))
	require.EqualValues(t, 1, publish("P2"))
	require.EqualValues(t, 0, publish("P3"), "too many")
	advance(4 * time.Minute)
	require.EqualValues(t, 1, publish("P3"), "the others are gone")

	keys, args := wire.EncodePlan("plan", "token", "text", time.Minute)
	require.EqualValues(t, 0, call("plan", keys, args...))
	require.NoError(t, rdb.Set(t.Context(), wire.PlanToken("plan"), "token", time.Minute).Err())
	require.EqualValues(t, 1, call("plan", keys, args...))

	const report = "1 2 3 4 5 6 7 8\nd 1 1 ann\nc 2 0 bob\n"
	require.EqualValues(t, 1, call("report", []string{"top"}, "P", 1, 0, report, 10, 256, 100))
	require.EqualValues(t, 0, call("report", []string{"top"}, "P", 1, 0, report, 10, 256, 100), "it has it already")
	require.EqualValues(t, 1, call("report", []string{"top"}, "P", 2, 0, report, 10, 256, 100))
	list := call("read", []string{"top"}, 10).([]any)
	require.Equal(t, "1 4 6 8 10 12 14 16\nd 2 2 ann\nc 4 0 bob\n", list[1])
}
