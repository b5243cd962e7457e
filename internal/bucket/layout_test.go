package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLayout says of a list what every call on it needs.
func TestLayout(t *testing.T) {
	t.Parallel()
	token, _ := New(Token, "s", 10, 10, 1000)
	fixed, _ := New(FixedWindow, "s", 10, 10, 1000)
	period, _ := NewCalendar("d", 10, 60_000, 1)
	ban, slots, ahead, tenants := NewBan(1, 2), NewSlots(3), NewAhead(&token, 4), NewTenants(&token)
	for name, row := range map[string]struct {
		buckets []Bucket
		want    Layout
	}{
		"a token bucket":           {[]Bucket{token}, Layout{1, int(Token), -1, -1, -1, -1, true, []int{1}, 1, 1}},
		"windows":                  {[]Bucket{fixed, period}, Layout{2, int(FixedWindow), -1, -1, -1, -1, false, []int{5, 5}, 10, 2}},
		"tokens and a period":      {[]Bucket{period, token}, Layout{2, TokensCalendar, -1, -1, -1, -1, false, []int{5, 1}, 6, 2}},
		"tokens, a ban, slots":     {[]Bucket{token, token, ban, slots}, Layout{2, int(Token), 2, 3, -1, -1, false, []int{1, 1, 2, 1}, 5, 5}},
		"of several policies":      {[]Bucket{fixed, token, slots, slots}, Layout{2, Mixed, -1, 2, -1, -1, false, []int{5, 1, 1, 1}, 8, 4}},
		"tokens of tenants":        {[]Bucket{token, tenants}, Layout{1, int(Token), -1, -1, 1, -1, false, []int{1, 1}, 2, 2}},
		"tokens, and taken before": {[]Bucket{token, ahead}, Layout{1, int(Token), -1, -1, -1, 1, false, []int{1, 1}, 2, 2}},
	} {
		require.Equal(t, row.want, *NewLayout(row.buckets), name)
	}
}
