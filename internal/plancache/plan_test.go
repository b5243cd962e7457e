package plancache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTextsOfPlans: what Redis keeps, for how long, and what another process makes of it.
func TestTextsOfPlans(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := newCache(t, nil, nil)
	for text, row := range map[string]struct {
		answer plan[string]
		kept   time.Duration
	}{
		"short plan a": {plan[string]{value: "a"}, life},
		"plan a":       {plan[string]{value: "a", rested: true}, life + rest},
		"unknown":      {plan[string]{err: errUnknown}, life},
	} {
		got, kept := c.encode(row.answer)
		require.Equal(t, text, got)
		require.Equal(t, row.kept, kept)
		for _, left := range []time.Duration{kept, kept - time.Minute, 0} {
			want := row.answer
			want.stored, want.ends = true, now.Add(left-kept+life)
			require.Equal(t, want, c.decode(text, now, left))
		}
		want := row.answer
		want.stored, want.ends = true, now.Add(life)
		require.Equal(t, want, c.decode(text, now, kept+time.Hour), "another process may have a longer life")
	}
	for _, foreign := range []string{"", "short ", "a", "short a", "unknown ", "Unknown", "short short plan a"} {
		require.Zero(t, c.decode(foreign, now, life), foreign)
	}
}

// TestAges of plans.
func TestAges(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, row := range map[string]struct {
		plan          plan[string]
		lives, serves bool
		until         time.Duration // without a rest
		rested        time.Duration
	}{
		"nothing":        {plan[string]{}, false, false, -1, -1},
		"new":            {plan[string]{ends: now.Add(life)}, true, true, recheck, recheck},
		"invalid":        {plan[string]{ends: now.Add(life), invalid: true}, false, true, recheck, recheck},
		"soon over":      {plan[string]{ends: now.Add(1)}, true, true, 1, recheck},
		"over":           {plan[string]{ends: now}, false, true, 0, recheck},
		"soon forgotten": {plan[string]{ends: now.Add(1 - rest)}, false, true, 1 - rest, 1},
		"forgotten":      {plan[string]{ends: now.Add(-rest)}, false, false, -rest, 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, row.lives, row.plan.lives(now))
			require.Equal(t, row.serves, row.plan.serves(now))
			if row.until >= -rest && row.until != -1 {
				require.Equal(t, row.until, row.plan.goBy(now, row.plan.ends).until.Sub(now))
				require.Equal(t, row.rested, row.plan.goBy(now, row.plan.ends.Add(rest)).until.Sub(now))
			}
		})
	}
}
