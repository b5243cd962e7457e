package plancache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTextsOfPlans: the text in Redis, its expiry, and what another process reads from it.
func TestTextsOfPlans(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := newCache(t, nil, nil)
	for text, row := range map[string]struct {
		answer plan[string]
		shared time.Duration
	}{
		"short plan a": {plan[string]{value: "a"}, life},
		"plan a":       {plan[string]{value: "a", retained: true}, life + retention},
		"unknown":      {plan[string]{err: errUnknown}, life},
	} {
		got, shared := c.encode(row.answer)
		require.Equal(t, text, got)
		require.Equal(t, row.shared, shared)
		for _, left := range []time.Duration{shared, shared - time.Minute, 0} {
			want := row.answer
			want.stored, want.ends = true, now.Add(left-shared+life)
			require.Equal(t, want, c.decode(text, now, left))
		}
		want := row.answer
		want.stored, want.ends = true, now.Add(life)
		require.Equal(t, want, c.decode(text, now, shared+time.Hour), "another process may have a longer life")
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
		fresh, usable bool
		until         time.Duration // without retention
		retained      time.Duration
	}{
		"nothing":        {plan[string]{}, false, false, -1, -1},
		"new":            {plan[string]{ends: now.Add(life)}, true, true, recheck, recheck},
		"invalid":        {plan[string]{ends: now.Add(life), invalid: true}, false, true, recheck, recheck},
		"soon over":      {plan[string]{ends: now.Add(1)}, true, true, 1, recheck},
		"over":           {plan[string]{ends: now}, false, true, 0, recheck},
		"soon forgotten": {plan[string]{ends: now.Add(1 - retention)}, false, true, 1 - retention, 1},
		"forgotten":      {plan[string]{ends: now.Add(-retention)}, false, false, -retention, 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, row.fresh, row.plan.fresh(now))
			require.Equal(t, row.usable, row.plan.usable(now))
			if row.until >= -retention && row.until != -1 {
				require.Equal(t, row.until, row.plan.usedUntil(now, row.plan.ends).until.Sub(now))
				require.Equal(t, row.retained, row.plan.usedUntil(now, row.plan.ends.Add(retention)).until.Sub(now))
			}
		})
	}
}
