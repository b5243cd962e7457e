package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestNothingMovesACursor: whatever others, or clients by a script, have written is shown without control characters,
// in JSON too.
func TestNothingMovesACursor(t *testing.T) {
	t.Parallel()
	_, r, rdb := start(t)
	const evil = "\u001b[2J\u009b2J\u202e\u007f\t|"
	quoted, err := json.Marshal(evil)
	require.NoError(t, err)
	in := strings.Trim(string(quoted), `"`)
	put := func(key, field, text string) {
		require.NoError(t, rdb.HSet(t.Context(), key, field, strings.ReplaceAll(text, "EVIL", in)).Err())
	}
	put("ginlimit:{policies}", "foreign",
		`{"v":1,"name":"EVIL","limits":"9/h","handler":true,"key":"EVIL","options":["EVIL"],"build":"EVIL"}`)
	now := float64(time.Now().UnixMilli())
	process := redis.Z{Score: now, Member: "foreign P1"}
	require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{policies}:processes", process).Err())
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	r.ok("override", "report", evil, "9/h", "--until", until, "-y")
	all := rdb.HGetAll(t.Context(), "ginlimit:{overrides}").Val()
	for field, text := range all { // somebody else's note
		put("ginlimit:{overrides}", field, strings.Replace(text, `"limits"`, `"note":"EVIL","limits"`, 1))
	}
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{report|a}:slots", "all", "1", evil, "1 9 9 99999999999999 ").Err())
	require.NoError(t, rdb.PExpire(t.Context(), "ginlimit:{report|a}:slots", time.Minute).Err())
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:{report|"+evil+"}:h", 7, 0).Err())
	r.in = "- {policy: report, client: b, limits: 9/h, for: 1h}"
	for _, args := range [][]string{{"policies"}, {"overrides"}, {"status", "report", evil}, {"slots", "report", "a"},
		{"doctor"}, {"apply", "-", "--prune", "--dry-run"}, {"status", evil, "a"}, {"status", "nobody", "a"}, {"top", evil},
		{"reset", "report", evil}, {"block", "report", evil, "1h"}, {"override", "report", evil, "--end"},
		{"status", "-" + evil}, {"status", "--" + evil}, {evil}, {"block", "report", "a", evil}, {"apply", evil},
		{"override", "report", "a", evil, "--for", evil}, {"status", "login", evil},
		{"__complete", "status", ""}, {"help", evil}} {
		for _, more := range [][]string{nil, {"--json"}} {
			r.terminal = !r.terminal
			got := r.run(append(more, args...)...)
			require.NotRegexp(t, `[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{202e}]`, got.out+got.errs, "%q %q", more, args)
		}
	}
	list := read[[]override](r, "overrides")
	require.Equal(t, evil, list[0].Client)
	require.Equal(t, evil, list[0].Note, "JSON has all of it")
}
