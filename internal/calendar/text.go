package calendar

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// unitWords are the units' words in texts.
var unitWords = [...]string{Day: "calendar-day", Week: "week", Month: "month"}

// Parse returns the rule for a unit's word, with its default first day in UTC.
func Parse(word string) (r Rule, ok bool) {
	switch word {
	case unitWords[Day]:
		return Rule{Unit: Day, Zone: time.UTC}, true
	case unitWords[Week]:
		return Rule{Unit: Week, First: int(time.Monday), Zone: time.UTC}, true
	case unitWords[Month]:
		return Rule{Unit: Month, First: 1, Zone: time.UTC}, true
	}
	return Rule{}, false
}

// ParseFirst parses the first day, the word after "from".
func (r *Rule) ParseFirst(word string) error {
	switch r.Unit {
	case Week:
		for day := time.Sunday; day <= time.Saturday; day++ {
			if word == weekday(int(day)) {
				r.First = int(day)
				return nil
			}
		}
		return errors.New("from: want a weekday, such as monday")
	case Month:
		day, err := strconv.Atoi(word)
		if err != nil || day < 1 || day > 31 {
			return errors.New("from: want a day of the month, 1 to 31")
		}
		r.First = day
		return nil
	}
	return errors.New("from: only weeks and months have a first day")
}

// ParseZone parses the time zone, the word after "in".
func (r *Rule) ParseZone(word string) error {
	zone, err := Zone(word)
	if err != nil {
		return fmt.Errorf("in: unknown time zone %.64q; want a name such as Europe/Berlin", word)
	}
	r.Zone = zone
	return nil
}

// weekday returns a weekday's word, or the number if there is no such weekday.
func weekday(day int) string {
	if day < int(time.Sunday) || day > int(time.Saturday) {
		return strconv.Itoa(day)
	}
	return strings.ToLower(time.Weekday(day).String())
}

// String returns the rule as Parse, ParseFirst and ParseZone read it, or "none".
func (r Rule) String() string {
	if r.Unit == None {
		return "none"
	}
	text := unitWords[r.Unit]
	switch {
	case r.Unit == Week && r.First != int(time.Monday):
		text += " from " + weekday(r.First)
	case r.Unit == Month && r.First != 1:
		text += " from " + strconv.Itoa(r.First)
	}
	if r.Zone != time.UTC {
		text += " in " + r.Zone.String()
	}
	return text
}

// Fault returns what is wrong with the rule, or "".
func (r Rule) Fault() string {
	switch {
	case r.Unit == Week && (r.First < 0 || r.First > 6):
		return fmt.Sprintf("a week's first day is %d; want 0 for Sunday to 6", r.First)
	case r.Unit == Month && (r.First < 1 || r.First > 31):
		return fmt.Sprintf("a month's first day is %d; want 1 to 31", r.First)
	}
	if _, offset := time.Now().In(r.Zone).Zone(); offset <= -86400 || offset >= 86400 {
		return fmt.Sprintf("the zone is %d s ahead of UTC; want less than a day", offset)
	}
	return ""
}
