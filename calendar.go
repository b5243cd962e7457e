package ginlimit

import (
	"fmt"
	"strconv"
	"strings"
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

// valid returns what is wrong with a calendar, or "".
func (c Calendar) valid() string {
	switch r := c.rule; {
	case r.Unit == calendar.Week && (r.First < 0 || r.First > 6):
		return fmt.Sprintf("a week's first day is %d; want 0 for Sunday to 6", r.First)
	case r.Unit == calendar.Month && (r.First < 1 || r.First > 31):
		return fmt.Sprintf("a month's first day is %d; want 1 to 31", r.First)
	}
	if _, offset := time.Now().In(c.rule.Zone).Zone(); offset <= -86400 || offset >= 86400 {
		return fmt.Sprintf("the zone is %d s ahead of UTC; want less than a day", offset)
	}
	return ""
}

// The words of calendars in texts.
var (
	calendarUnits = [...]string{calendar.Day: "calendar-day", calendar.Week: "week", calendar.Month: "month"}
	keyUnits      = [...]string{calendar.Day: "day", calendar.Week: "week", calendar.Month: "month"}
)

// parseCalendar returns the calendar of a word, with its default first day in UTC.
func parseCalendar(word string) (Calendar, bool) {
	switch word {
	case calendarUnits[calendar.Day]:
		return CalendarDay(nil), true
	case calendarUnits[calendar.Week]:
		return CalendarWeek(nil, time.Monday), true
	case calendarUnits[calendar.Month]:
		return CalendarMonth(nil, 1), true
	}
	return Calendar{}, false
}

// parseFirst reads what follows "from".
func (c *Calendar) parseFirst(word string) error {
	switch c.rule.Unit {
	case calendar.Week:
		for day := time.Sunday; day <= time.Saturday; day++ {
			if word == weekdayText(day) {
				c.rule.First = int(day)
				return nil
			}
		}
		return fmt.Errorf("from: want a weekday, such as monday")
	case calendar.Month:
		day, err := strconv.Atoi(word)
		if err != nil || day < 1 || day > 31 {
			return fmt.Errorf("from: want a day of the month, 1 to 31")
		}
		c.rule.First = day
		return nil
	}
	return fmt.Errorf("from: only weeks and months have a first day")
}

// parseZone reads what follows "in".
func (c *Calendar) parseZone(word string) error {
	zone, err := calendar.Zone(word)
	if err != nil {
		return fmt.Errorf("in: unknown time zone %.64q; want a name such as Europe/Berlin", word)
	}
	c.rule.Zone = zone
	return nil
}

// weekdayText returns a weekday as texts have it, or the number of one that there is not.
func weekdayText(day time.Weekday) string {
	if day < time.Sunday || day > time.Saturday {
		return strconv.Itoa(int(day))
	}
	return strings.ToLower(day.String())
}

// String returns the calendar as [ParseLimit] reads it, or "none".
func (c Calendar) String() string {
	r := c.rule
	if r.Unit == calendar.None {
		return "none"
	}
	text := calendarUnits[r.Unit]
	switch {
	case r.Unit == calendar.Week && r.First != int(time.Monday):
		text += " from " + weekdayText(time.Weekday(r.First))
	case r.Unit == calendar.Month && r.First != 1:
		text += " from " + strconv.Itoa(r.First)
	}
	if r.Zone != time.UTC {
		text += " in " + r.Zone.String()
	}
	return text
}

// bucketID returns what ends the keys of the period that begins at start.
func (c Calendar) bucketID(start time.Time) string {
	r := c.rule
	id, layout := keyUnits[r.Unit], time.DateOnly
	switch {
	case r.Unit == calendar.Week:
		id += weekdayText(time.Weekday(r.First))[:3]
	case r.Unit == calendar.Month && r.First == 1:
		layout = "2006-01"
	case r.Unit == calendar.Month:
		id += strconv.Itoa(r.First)
	}
	if r.Zone != time.UTC {
		id += "@" + r.Zone.String()
	}
	if !calendar.Named(r.Zone) { // another one may have the name
		_, offset := start.In(r.Zone).Zone()
		id += strconv.Itoa(offset)
	}
	return id + ":" + start.In(r.Zone).Format(layout)
}
