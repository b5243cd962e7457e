package limits_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestPeriodsAreThoseOfTheDates has moments of forty years in zones that have done strange things,
// half of them near where they have.
func TestPeriodsAreThoseOfTheDates(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "America/St_Johns",
		"Africa/Cairo", "Asia/Beirut", "Asia/Gaza",
		"Australia/Lord_Howe", "Antarctica/Troll", "Antarctica/Casey", "Pacific/Apia",
		"Pacific/Kwajalein", "Pacific/Chatham", "Atlantic/Azores",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, r := testkit.Location(t, name), rand.New(rand.NewPCG(1, 1))
			for range 60 {
				now := time.Date(1990, 1, 1, 0, 0, 0, 0,
					time.UTC).Add(time.Duration(r.Int64N(int64(40 * 365 * 24 * time.Hour)))).Truncate(time.Millisecond)
				if _, change := now.In(zone).ZoneBounds(); !change.IsZero() && r.IntN(2) == 0 {
					now = change.Add(time.Duration(r.IntN(100*3600)-50*3600) * time.Second)
				}
				weekday, day := r.IntN(7), 1+r.IntN(31)
				for rule, oracle := range map[calendar.Rule]testkit.Civil{
					{Unit: calendar.Day, Zone: zone}:                  {Unit: "day", First: 0, Zone: zone},
					{Unit: calendar.Week, First: weekday, Zone: zone}: {Unit: "week", First: weekday, Zone: zone},
					{Unit: calendar.Month, First: day, Zone: zone}:    {Unit: "month", First: day, Zone: zone},
				} {
					start, end := rule.Period(now)
					wantStart, wantEnd := oracle.Period(now)
					require.True(t, start.Equal(wantStart) && end.Equal(wantEnd),
						"%+v at %s:\nfrom %s to %s, want\nfrom %s to %s", rule,
						now.In(zone), start.In(zone), end.In(zone), wantStart.In(zone), wantEnd.In(zone))
				}
			}
		})
	}
}
