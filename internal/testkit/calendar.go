package testkit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Civil is a calendar as its documentation has it. It asks a zone for nothing but the date at a
// moment, and looks at one day after another.
type Civil struct {
	Unit  string // "day", "week" or "month"
	First int    // weekday of a week, day of a month
	Zone  *time.Location
}

// Begins reports whether a period begins on a day, which is midnight in UTC.
func (c Civil) Begins(day time.Time) bool {
	switch c.Unit {
	case "week":
		return int(day.Weekday()) == c.First
	case "month":
		isLast := day.AddDate(0, 0, 1).Day() == 1
		return day.Day() == c.First || isLast && day.Day() < c.First
	}
	return true
}

// date returns the date at a moment, as midnight in UTC.
func (c Civil) date(at time.Time) time.Time {
	year, month, day := at.In(c.Zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// midnight returns the first moment that has the date of a day, or a later one.
func (c Civil) midnight(day time.Time) time.Time {
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

// Period returns when the period of a moment begins and ends.
func (c Civil) Period(now time.Time) (start, end time.Time) {
	day := c.date(now).AddDate(0, 0, 2) // clocks that are set back show an earlier date again
	for !c.Begins(day) || c.midnight(day).After(now) {
		day = day.AddDate(0, 0, -1)
	}
	next := day.AddDate(0, 0, 1)
	for !c.Begins(next) || !c.midnight(next).After(now) {
		next = next.AddDate(0, 0, 1)
	}
	return c.midnight(day), c.midnight(next)
}

// Location returns a time zone.
func Location(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	require.NoError(t, err)
	return loc
}
