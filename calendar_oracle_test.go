package ginlimit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/calendar"
)

// civil is a calendar as its documentation has it. It asks a zone for nothing but the date at a moment, and looks at one day after
// another.
type civil struct {
	unit  string // "day", "week" or "month"
	first int    // weekday of a week, day of a month
	zone  *time.Location
}

// begins reports whether a period begins on a day, which is midnight in UTC.
func (c civil) begins(day time.Time) bool {
	switch c.unit {
	case "week":
		return int(day.Weekday()) == c.first
	case "month":
		isLast := day.AddDate(0, 0, 1).Day() == 1
		return day.Day() == c.first || isLast && day.Day() < c.first
	}
	return true
}

// date returns the date at a moment, as midnight in UTC.
func (c civil) date(at time.Time) time.Time {
	year, month, day := at.In(c.zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// midnight returns the first moment that has the date of a day, or a later one.
func (c civil) midnight(day time.Time) time.Time {
	const step = 15 * time.Minute
	reached := func(at time.Time) bool { return !c.date(at).Before(day) }
	from := day.Add(-25 * time.Hour)
	for !reached(from.Add(step)) {
		from = from.Add(step)
	}
	before, after := from, from.Add(step)
	for after.Sub(before) > time.Millisecond {
		if middle := before.Add(after.Sub(before) / 2).Truncate(time.Millisecond); reached(middle) {
			after = middle
		} else {
			before = middle
		}
	}
	return after
}

// period returns when the period of a moment begins and ends.
func (c civil) period(now time.Time) (start, end time.Time) {
	day := c.date(now).AddDate(0, 0, 2) // clocks that are set back show an earlier date again
	for !c.begins(day) || c.midnight(day).After(now) {
		day = day.AddDate(0, 0, -1)
	}
	next := day.AddDate(0, 0, 1)
	for !c.begins(next) || !c.midnight(next).After(now) {
		next = next.AddDate(0, 0, 1)
	}
	return c.midnight(day), c.midnight(next)
}

// TestPeriodsAreThoseOfTheDates has moments of forty years in zones that have done strange things, half of them near where they have.
func TestPeriodsAreThoseOfTheDates(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "America/St_Johns", "Africa/Cairo", "Asia/Beirut", "Asia/Gaza",
		"Australia/Lord_Howe", "Antarctica/Troll", "Antarctica/Casey", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham", "Atlantic/Azores",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, r := location(t, name), rand.New(rand.NewPCG(1, 1))
			for range 60 {
				now := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(r.Int64N(int64(40 * 365 * 24 * time.Hour)))).Truncate(time.Millisecond)
				if _, change := now.In(zone).ZoneBounds(); !change.IsZero() && r.IntN(2) == 0 {
					now = change.Add(time.Duration(r.IntN(100*3600)-50*3600) * time.Second)
				}
				weekday, day := r.IntN(7), 1+r.IntN(31)
				for rule, oracle := range map[calendar.Rule]civil{
					{Unit: calendar.Day, Zone: zone}:                  {"day", 0, zone},
					{Unit: calendar.Week, First: weekday, Zone: zone}: {"week", weekday, zone},
					{Unit: calendar.Month, First: day, Zone: zone}:    {"month", day, zone},
				} {
					start, end := rule.Period(now)
					wantStart, wantEnd := oracle.period(now)
					require.True(t, start.Equal(wantStart) && end.Equal(wantEnd), "%+v at %s:\nfrom %s to %s, want\nfrom %s to %s", rule,
						now.In(zone), start.In(zone), end.In(zone), wantStart.In(zone), wantEnd.In(zone))
				}
			}
		})
	}
}
