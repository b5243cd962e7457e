package ginlimit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
)

// ErrInvalidLimit says that a limit or another argument cannot be used. Match it with [errors.Is].
var ErrInvalidLimit = errors.New("ginlimit: invalid limit")

// Limit allows Rate requests per Period, and at most Burst at once.
//
// By default it is a token bucket, which holds Burst tokens, starts full, and regains Rate tokens
// per Period, evenly spread. [WithAlgorithm] has windows, which have no Burst of their own. With a
// Calendar it is a quota of Rate for each of its periods (see [PerCalendar]). A Rate below zero is
// unlimited and never counted. A Rate of zero, with a Period or a Calendar, prohibits: every
// request is denied. The zero Limit is an error; only a [Result] or an [Event] of a request for
// which no limit was checked has it.
type Limit struct {
	Rate     int           // tokens regained per Period
	Period   time.Duration // whole milliseconds, at least one; 0 with a Calendar
	Burst    int           // tokens the bucket holds; 0 means Rate, as it must with a Calendar
	Calendar Calendar      // instead of a Period
	InFlight int           // of a Result alone: requests in flight at once (see [WithConcurrency])
}

// PerSecond returns a limit of rate per second.
func PerSecond(rate int) Limit { return Limit{Rate: rate, Period: time.Second} }

// PerMinute returns a limit of rate per minute.
func PerMinute(rate int) Limit { return Limit{Rate: rate, Period: time.Minute} }

// PerHour returns a limit of rate per hour.
func PerHour(rate int) Limit { return Limit{Rate: rate, Period: time.Hour} }

// PerDay returns a limit of rate per 24 hours.
func PerDay(rate int) Limit { return Limit{Rate: rate, Period: day} }

// WithBurst returns the limit with a bucket of n tokens. Zero means its Rate.
func (l Limit) WithBurst(n int) Limit {
	l.Burst = n
	return l
}

// burst returns the tokens that a full bucket holds, or the slots; of a limit that is not counted,
// its Rate.
func (l Limit) burst() int {
	if l.InFlight > 0 {
		return l.InFlight
	}
	if l.Burst == 0 || l.Rate <= 0 {
		return l.Rate
	}
	return l.Burst
}

// validate returns the first error in the limit.
func (l Limit) validate() error {
	var reason string
	switch {
	case l == Limit{}:
		reason = "the zero Limit; a Rate of 0 prohibits only with a Period or a Calendar"
	case l.InFlight != 0:
		reason = fmt.Sprintf("requests in flight are not limited by a Limit yet: use WithConcurrency(%d)", max(1, l.InFlight))
	case l.Calendar != Calendar{}:
		switch reason = l.Calendar.rule.Fault(); {
		case reason != "":
		case l.Period != 0:
			reason = "a calendar quota has no period of its own"
		case l.Burst != 0:
			reason = "a calendar quota has no burst"
		default:
			return nil
		}
	case l.Burst < 0:
		reason = "the burst is negative"
	case l.Period < 0:
		reason = "the period is negative"
	case l.Rate < 0:
		return nil
	case l.Period == 0:
		reason = "the period is missing"
	case l.Period%time.Millisecond != 0:
		reason = "the period is no whole number of milliseconds"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrInvalidLimit, l, reason)
}

const day = 24 * time.Hour

// ParseLimit reads a limit from text: rate/period, rate/period burst n, or rate/calendar from first
// in zone.
//
// The period is one of the units ms, s, m, h and d, a duration as [time.ParseDuration] reads it, or
// a number of whole days: "100/m", "5/15m", "1000/1h30m", "10000/7d", "10/s burst 20". For s, m and
// h there are words: sec, second, seconds, min, minute, minutes, hour and hours, as in "10/sec" and
// "5/15min". A period is any span of that length, so d is any 24 hours and 7d any seven days. The
// calendar is calendar-day, week or month. As people mean either by a day, the words day and days
// are errors. The first day, by default monday or 1, and the zone, by default UTC, may be left out:
// "500/calendar-day", "2000/week from sunday", "10000/month from 15 in Europe/Berlin". A rate below
// zero is unlimited and a rate of zero prohibits, as in [Limit]. An error wraps [ErrInvalidLimit].
func ParseLimit(s string) (Limit, error) {
	l, err := parseLimit(s)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %.64q: %w", ErrInvalidLimit, s, err)
	}
	if err := l.check(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// check returns the first error of a limit that no [Algorithm] can count.
func (l Limit) check() error {
	if err := l.validate(); err != nil || l.Rate <= 0 {
		return err
	}
	_, err := l.bucket(TokenBucket)
	if _, other := l.bucket(FixedWindow); other == nil {
		return nil
	}
	return err
}

// The kinds of buckets of the algorithms, and the ends of their keys, by which no algorithm finds
// what another has counted.
var (
	kinds = [...]bucket.Kind{
		TokenBucket: bucket.Token, FixedWindow: bucket.FixedWindow, SlidingWindow: bucket.SlidingWindow,
	}
	idSuffixes = [...]string{TokenBucket: "", FixedWindow: ":fixed", SlidingWindow: ":sliding"}
)

// bucket returns the bucket of a valid limit, if the algorithm can count it. A calendar quota has
// one for each period; this one only says that there can be one.
func (l Limit) bucket(a Algorithm) (b bucket.Bucket, err error) {
	var ok bool
	switch {
	case a != TokenBucket && l.burst() != l.Rate:
		return b, fmt.Errorf("%w: %s: a %s has no burst of its own", ErrInvalidLimit, l, a)
	case l.Calendar != Calendar{}:
		b, ok = bucket.NewCalendar("", int64(l.Rate), 1, 1)
	default:
		id := periodText(l.Period) + idSuffixes[a]
		b, ok = bucket.New(kinds[a], id, int64(l.Rate), int64(l.burst()), l.Period.Milliseconds())
	}
	if !ok {
		err = fmt.Errorf("%w: %s is too large to be counted exactly", ErrInvalidLimit, l)
	}
	return b, err
}

// inFlightWords end the text of a limit of requests in flight.
const inFlightWords = " in flight"

func parseLimit(s string) (Limit, error) {
	words := strings.Fields(s)
	if len(words) == 3 && strings.HasSuffix(strings.Join(words, " "), inFlightWords) && !strings.Contains(words[0], "/") {
		n, err := strconv.Atoi(words[0])
		if err != nil || n < 1 {
			return Limit{}, fmt.Errorf("in flight: want a whole number above zero")
		}
		return Limit{InFlight: n}, nil
	}
	if len(words)%2 == 0 {
		return Limit{}, fmt.Errorf(`want "rate/period", "rate/period burst n" or "rate/calendar from first in zone"`)
	}
	rate, period, found := strings.Cut(words[0], "/")
	if !found {
		return Limit{}, fmt.Errorf(`want a "/" between rate and period`)
	}
	var (
		l   Limit
		err error
	)
	if l.Rate, err = strconv.Atoi(rate); err != nil {
		return Limit{}, fmt.Errorf("rate: want a whole number")
	}
	var named bool
	if l.Calendar.rule, named = calendar.Parse(period); !named {
		if l.Period, err = parsePeriod(period); err != nil {
			return Limit{}, err
		}
	}
	for allowed := []string{"burst", "from", "in"}; len(words) > 1; words = words[2:] {
		i := slices.Index(allowed, words[1])
		switch {
		case i < 0:
			return Limit{}, fmt.Errorf(`%.64q: want "burst", "from" or "in", each once and in this order`, words[1])
		case named != (words[1] != "burst"):
			return Limit{}, fmt.Errorf("%s: a calendar quota has no burst, and nothing else a first day or a zone", words[1])
		case words[1] == "from":
			err = l.Calendar.rule.ParseFirst(words[2])
		case words[1] == "in":
			err = l.Calendar.rule.ParseZone(words[2])
		default:
			if l.Burst, err = strconv.Atoi(words[2]); err != nil || l.Burst < 1 {
				err = fmt.Errorf("burst: want a whole number above zero")
			}
		}
		if err != nil {
			return Limit{}, err
		}
		allowed = allowed[i+1:]
	}
	return l, nil
}

// unitWords are what people write for a unit.
var unitWords = map[string]string{
	"sec": "s", "second": "s", "seconds": "s", "min": "m", "minute": "m", "minutes": "m", "hour": "h", "hours": "h",
}

func parsePeriod(s string) (time.Duration, error) {
	word := strings.TrimLeft(s, "0123456789")
	if word == "day" || word == "days" { // beside week and month, which are the calendar's
		return 0, errors.New("period: a day may be either: write 10/d or 10/24h for any 24 hours, " +
			"and 10/calendar-day for the days of a calendar")
	}
	if unit, ok := unitWords[word]; ok {
		s = strings.TrimSuffix(s, word) + unit
	}
	switch s {
	case "ms", "s", "m", "h", "d":
		s = "1" + s
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("period: want a whole number of days, at most 65535")
		}
		return time.Duration(n) * day, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("period: want one of ms, s, m, h, d, a duration such as 15m, or calendar-day, week or month")
	}
	return d, nil
}

// periodText returns a period in the largest unit that needs no fraction, without a count of one.
// Different periods have different texts.
func periodText(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		switch n := d / unit.size; {
		case d == unit.size:
			return unit.name
		case d%unit.size == 0 && n > 0 && (unit.size < day || n <= 65535):
			return strconv.FormatInt(int64(n), 10) + unit.name
		}
	}
	return d.String()
}

// per returns what follows the rate in the limit's text, without a burst.
func (l Limit) per() string {
	if (l.Calendar != Calendar{}) {
		return l.Calendar.String()
	}
	return periodText(l.Period)
}

// String returns the limit as [ParseLimit] reads it, without a burst of zero. The zero Limit is
// "none", and a limit of requests in flight is "4 in flight".
func (l Limit) String() string {
	switch {
	case l == Limit{}:
		return "none"
	case l.InFlight != 0:
		return strconv.Itoa(l.InFlight) + inFlightWords
	}
	s := strconv.Itoa(l.Rate) + "/" + l.per()
	if l.Burst != 0 {
		s += " burst " + strconv.Itoa(l.Burst)
	}
	return s
}

// MarshalText returns the text of [Limit.String], or none of the zero Limit. So every limit of a
// [Result] has a text, and UnmarshalText reads it, with one exception: a zone of a Calendar without
// a name by which [time.LoadLocation] finds it is in quotes, and such a text is an error to
// UnmarshalText. An error wraps [ErrInvalidLimit].
func (l Limit) MarshalText() ([]byte, error) {
	switch {
	case l == Limit{}:
		return []byte{}, nil
	case l.InFlight > 0 && l == Limit{InFlight: l.InFlight}:
		return []byte(l.String()), nil
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	text := l.String()
	if !l.named() { // another zone may have the name
		name := l.Calendar.rule.Zone.String()
		text = strings.TrimSuffix(text, name) + strconv.Quote(name)
	}
	return []byte(text), nil
}

// named reports whether the limit can be read from its text: the zone of a calendar has a name by
// which it is found.
func (l Limit) named() bool {
	if l.Calendar.rule.Zone == nil {
		return true
	}
	_, named := calendar.Known(l.Calendar.rule.Zone)
	return named
}

// UnmarshalText reads the text as [ParseLimit] does, and also what [Limit.MarshalText] returns of
// limits that only a [Result] has: no text is the zero Limit, and "4 in flight" has InFlight. An
// error wraps [ErrInvalidLimit] and leaves l unchanged.
func (l *Limit) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*l = Limit{}
		return nil
	}
	parsed, err := parseLimit(string(text))
	if err != nil || parsed.InFlight == 0 {
		parsed, err = ParseLimit(string(text))
	}
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// Algorithm is how requests are counted.
type Algorithm uint8

const (
	// TokenBucket regains Rate tokens per Period, evenly spread, up to Burst. It takes the same
	// memory in Redis whatever the limit is, and over any time t admits at most Burst + Rate × t.
	TokenBucket Algorithm = iota
	// FixedWindow allows Rate requests in a window, which begins with a client's first request and
	// ends a Period later. Around that end twice the Rate may pass at once.
	FixedWindow
	// SlidingWindow allows Rate requests in any Period, exactly. It keeps a log of them, in Redis 6
	// to 16 bytes for each entry, of at most Rate entries and at most one for each millisecond of
	// the Period.
	SlidingWindow
)

// String returns the algorithm in two words, or "unknown".
func (a Algorithm) String() string {
	names := [...]string{"token bucket", "fixed window", "sliding window"}
	if int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}

// Calendar is the days, weeks or months of a time zone, each of which has a quota of its own.
//
// A period begins at midnight, by the application host's clock. If that clock is off by seconds, so
// is the boundary, and no quota is passed. Usage is known for an hour after the end of a period, so
// a clock may be set back by an hour. The zero Calendar has no periods. Calendars of the same text
// are equal. Zones by name need the time zone database: import _ "time/tzdata" embeds it.
type Calendar struct{ rule calendar.Rule }

// CalendarDay returns the days of a zone; nil is UTC.
func CalendarDay(loc *time.Location) Calendar { return newCalendar(calendar.Day, 0, loc) }

// CalendarWeek returns the weeks of a zone that begin with a weekday; nil is UTC.
func CalendarWeek(loc *time.Location, first time.Weekday) Calendar {
	return newCalendar(calendar.Week, int(first), loc)
}

// CalendarMonth returns the months of a zone that begin on a day, from 1 to 31; in a month that is
// shorter, on its last. A nil zone is UTC.
func CalendarMonth(loc *time.Location, firstDay int) Calendar {
	return newCalendar(calendar.Month, firstDay, loc)
}

func newCalendar(unit calendar.Unit, first int, loc *time.Location) Calendar {
	zone, _ := calendar.Known(loc)
	return Calendar{calendar.Rule{Unit: unit, First: first, Zone: zone}}
}

// PerCalendar returns a quota of n for each period of a calendar, whatever the [Algorithm]. All of n
// may be taken at once, and all comes back when the next period begins.
func PerCalendar(n int, c Calendar) Limit { return Limit{Rate: n, Calendar: c} }

// String returns the calendar as [ParseLimit] reads it, or "none".
func (c Calendar) String() string { return c.rule.String() }
