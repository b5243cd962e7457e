package ginlimit

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/calendar"
)

// Calendar is the days, weeks or months of a time zone, each of which has a quota of its own.
//
// A period begins at midnight, or where clocks are set forward over midnight, when they are. The clock is that of this process:
// if it is off by seconds, so is the boundary, and no period's quota is passed. What was used of a period is known for an hour after
// its end, in Redis and in a process, so a clock may be set back by as much. The zero Calendar has no periods. Calendars are
// comparable: those of the same text, or of the same arguments with zones that [time.LoadLocation] finds by their names, are
// equal. Those names need the time zone database, which an application may embed: import _ "time/tzdata".
type Calendar struct{ rule calendar.Rule }

// CalendarDay returns the days of a zone; nil is UTC.
func CalendarDay(loc *time.Location) Calendar { return newCalendar(calendar.Day, 0, loc) }

// CalendarWeek returns the weeks of a zone that begin with a weekday; nil is UTC.
func CalendarWeek(loc *time.Location, first time.Weekday) Calendar {
	return newCalendar(calendar.Week, int(first), loc)
}

// CalendarMonth returns the months of a zone that begin on a day, from 1 to 31; in a month that is shorter, on its last. A nil
// zone is UTC.
func CalendarMonth(loc *time.Location, firstDay int) Calendar {
	return newCalendar(calendar.Month, firstDay, loc)
}

func newCalendar(unit calendar.Unit, first int, loc *time.Location) Calendar {
	zone, _ := calendar.Known(loc)
	return Calendar{calendar.Rule{Unit: unit, First: first, Zone: zone}}
}

// PerCalendar returns a quota of n for each period of a calendar. It has no Burst and no Period, and the [Algorithm] makes no
// difference to it. All of n may be taken at once, and all comes back when the next period begins.
func PerCalendar(n int, c Calendar) Limit { return Limit{Rate: n, Calendar: c} }

// String returns the calendar as [ParseLimit] reads it, or "none".
func (c Calendar) String() string { return c.rule.String() }
