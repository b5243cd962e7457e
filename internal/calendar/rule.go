// Package calendar computes the days, weeks and months of a time zone.
//
// It owns where a period begins and ends, the text of a rule, and the names of zones, which stay comparable. It
// must know no limit, bucket or key.
package calendar

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Unit is the length of a period.
type Unit uint8

const (
	None Unit = iota
	Day
	Week
	Month
)

// Rule divides time into periods that begin at midnight. The zero Rule has no periods. Rules are
// comparable.
type Rule struct {
	Unit  Unit
	First int            // week: a time.Weekday; month: a day, or the month's last day if shorter
	Zone  *time.Location // nil only in the zero Rule
}

// date is a calendar day. Its month and day may be out of range, as in [time.Date].
type date struct {
	year  int
	month time.Month
	day   int
}

// Period returns the period that contains now: from start up to, but not including, end.
func (r Rule) Period(now time.Time) (start, end time.Time) {
	first := r.first(now)
	start, end = r.midnight(first), r.midnight(r.next(first))
	for !now.Before(end) { // the zone skips a day, or begins it twice
		first = r.next(first)
		start, end = end, r.midnight(r.next(first))
	}
	return start, end
}

// first returns the first day of the period that contains now.
func (r Rule) first(now time.Time) date {
	now = now.In(r.Zone)
	d := date{}
	d.year, d.month, d.day = now.Date()
	switch r.Unit {
	case Week:
		d.day -= (int(now.Weekday()) - r.First + 7) % 7
	case Month:
		if d.day < r.begin(d.year, d.month).day {
			d.month--
		}
		d = r.begin(d.year, d.month)
	}
	return d
}

// next returns the first day of the next period.
func (r Rule) next(first date) date {
	switch r.Unit {
	case Month:
		return r.begin(first.year, first.month+1)
	case Week:
		return date{first.year, first.month, first.day + 7}
	}
	return date{first.year, first.month, first.day + 1}
}

// begin returns the first day of the period that begins in a month.
func (r Rule) begin(year int, month time.Month) date {
	last := date{year, month + 1, 0}.utc()
	return date{last.Year(), last.Month(), min(r.First, last.Day())}
}

// unitIDs are the units' names in IDs.
var unitIDs = [...]string{Day: "day", Week: "week", Month: "month"}

// ID returns an ID for the period that begins at start. Other rules' periods have other IDs.
func (r Rule) ID(start time.Time) string {
	id, layout := unitIDs[r.Unit], time.DateOnly
	switch {
	case r.Unit == Week:
		id += strings.ToLower(time.Weekday(r.First).String()[:3])
	case r.Unit == Month && r.First == 1:
		layout = "2006-01"
	case r.Unit == Month:
		id += strconv.Itoa(r.First)
	}
	if r.Zone != time.UTC {
		id += "@" + r.Zone.String()
	}
	if !Named(r.Zone) { // another zone may have the same name
		_, offset := start.In(r.Zone).Zone()
		id += strconv.Itoa(offset)
	}
	return id + ":" + start.In(r.Zone).Format(layout)
}

// midnight returns the first moment of a day. If clocks are set forward over midnight, the day
// begins at the change; if they are set back over it, at the first of the two midnights.
func (r Rule) midnight(d date) time.Time {
	const around = 36 * time.Hour // more than any zone's offset
	utc := d.utc()
	before := utc.Add(-around).In(r.Zone)
	early, late := utc.Add(-offset(before)), utc.Add(-offset(utc.Add(around).In(r.Zone)))
	if early.Equal(late) {
		return early
	}
	_, change := before.ZoneBounds()
	switch {
	case early.Before(change):
		return early
	case late.Before(change):
		return change.In(time.UTC)
	}
	return late
}

// utc returns a day's midnight in UTC.
func (d date) utc() time.Time { return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC) }

// offset returns how far a zone's clocks are ahead of UTC.
func offset(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// zones caches the zones that [Zone] has found, so that equal names are equal pointers and Rules
// stay comparable. It holds at most every zone there is.
var zones sync.Map

// Zone returns the zone of a name, as [time.LoadLocation] does. It rejects Local, which differs
// between machines.
func Zone(name string) (*time.Location, error) {
	if name == "Local" || name != path.Clean(name) {
		return nil, fmt.Errorf("unknown time zone %s", name)
	}
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	known, _ := zones.LoadOrStore(name, zone)
	return known.(*time.Location), nil
}

// Named reports whether a zone is UTC or came from [Zone].
func Named(zone *time.Location) bool {
	known, ok := zones.Load(zone.String())
	return zone == time.UTC || ok && known == zone
}

// Known returns the named zone of zone's name if both have the same offsets in our time, and zone
// otherwise. A nil zone means UTC.
func Known(zone *time.Location) (known *time.Location, named bool) {
	if zone == nil || zone == time.UTC {
		return time.UTC, true
	}
	if Named(zone) {
		return zone, true
	}
	known, err := Zone(zone.String())
	if err != nil {
		return zone, false
	}
	for unix := int64(950e6); unix < 2530e6; unix += 17e5 { // 2000 to 2050, in steps of 20 days
		t := time.Unix(unix, 0)
		if offset(t.In(zone)) != offset(t.In(known)) {
			return zone, false
		}
	}
	return known, true
}
