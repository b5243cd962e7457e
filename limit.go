package ginlimit

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
)

// Limit allows Rate requests per Period, at most Burst at once, or InFlight requests at a time. It
// is a [PolicyOption].
//
// By default it is a token bucket: it holds Burst tokens, starts full, and regains Rate tokens per
// Period, evenly. A Rate of -1 is unlimited, a Rate of 0 with a Period or Calendar denies every
// request. The zero Limit is an error; in a [Result] it says that no limit was checked.
type Limit struct {
	Rate      int           // tokens regained per Period
	Period    time.Duration // whole milliseconds, at least one; 0 with a Calendar or InFlight
	Burst     int           // tokens the bucket holds; 0 means Rate; leave it 0 with a window or a Calendar
	Algorithm Algorithm     // how requests per Period are counted
	Calendar  Calendar      // instead of a Period
	InFlight  int           // instead of all others: requests in flight at once (see [InFlight])
}

const (
	day      = 24 * time.Hour
	maxSlots = 1 << 20
	// unlimitedRate is how tables of quotas have it.
	unlimitedRate = -1
)

// Per returns a limit of rate per period: a token bucket, which admits up to 2 × rate in the first
// period, as it starts full. WithAlgorithm([SlidingWindow]) admits rate in any period.
func Per(rate int, period time.Duration) Limit { return Limit{Rate: rate, Period: period} }

// PerSecond returns a limit of rate per second, up to 2 × rate in the first.
func PerSecond(rate int) Limit { return Limit{Rate: rate, Period: time.Second} }

// PerMinute returns a limit of rate per minute, up to 2 × rate in the first.
func PerMinute(rate int) Limit { return Limit{Rate: rate, Period: time.Minute} }

// PerHour returns a limit of rate per hour. PerHour(5) admits up to 10 in the first hour, and
// WithAlgorithm([SlidingWindow]) 5: see [Per].
func PerHour(rate int) Limit { return Limit{Rate: rate, Period: time.Hour} }

// PerDay returns a limit of rate per 24 hours, up to 2 × rate in the first.
func PerDay(rate int) Limit { return Limit{Rate: rate, Period: day} }

// Unlimited returns a limit that allows everything and counts nothing.
func Unlimited() Limit { return Limit{Rate: unlimitedRate} }

// Prohibited returns a limit that denies everything: zero per second.
func Prohibited() Limit { return PerSecond(0) }

// InFlight returns a limit of n requests of a client in flight at once, 1 to 1,048,576, in all
// processes. A request holds a slot until its handler returns or panics, none at a cost of 0.
// Retry-After is one second, as nobody knows when a slot is free. Outside HTTP use [Policy.Reserve]
// or [ReserveAll]; Allow, AllowUpTo and Wait return an error. A process that dies frees its slots
// within 10 s. While Redis is late, and after a process was frozen for 7 s, more than n may be in
// flight in all, but not in one process: see docs/guide.md. Without Redis each has its share of n.
func InFlight(n int) Limit { return Limit{InFlight: n} }

// WithBurst returns the limit with a bucket of n tokens. Zero means its Rate.
func (l Limit) WithBurst(n int) Limit {
	l.Burst = n
	return l
}

// WithAlgorithm returns the limit counted by an algorithm, in its own buckets.
func (l Limit) WithAlgorithm(a Algorithm) Limit {
	l.Algorithm = a
	return l
}

// isSlots reports whether it limits requests in flight.
func (l Limit) isSlots() bool { return l.InFlight > 0 }

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
		reason = "the zero Limit; a Rate of 0 prohibits only with a Period or a Calendar, and InFlight is at least 1"
	case l.InFlight != 0 && l != InFlight(l.InFlight):
		reason = "requests in flight have no rate, period, burst, algorithm or calendar"
	case l.InFlight < 0 || l.InFlight > maxSlots:
		reason = fmt.Sprintf("in flight: want 1 to %d", maxSlots)
	case l.InFlight > 0:
		return nil
	case l.Rate < unlimitedRate:
		reason = "the rate is negative; -1 is unlimited"
	case int(l.Algorithm) >= len(allAlgorithms):
		reason = "no such algorithm; want TokenBucket, FixedWindow or SlidingWindow"
	case l.Calendar != Calendar{}:
		switch reason = l.Calendar.rule.Fault(); {
		case reason != "":
		case l.Period != 0:
			reason = "a calendar quota has no period of its own"
		case l.Burst != 0:
			reason = "a calendar quota has no burst"
		case l.Algorithm != TokenBucket:
			reason = "a calendar quota has no algorithm"
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
	return fmt.Errorf("%w: %s: %s", ErrInvalidArgument, l, reason)
}

// check returns the first error of a limit, also if it is too large to be counted.
func (l Limit) check() error {
	if err := l.validate(); err != nil || l.Rate <= 0 {
		return err
	}
	_, err := l.bucket()
	return err
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

// bucketID returns what the key of a limit's bucket ends with, of a calendar quota that of now.
func (l Limit) bucketID() string {
	if l.Calendar != (Calendar{}) {
		start, _ := l.Calendar.rule.Period(time.Now())
		return l.Calendar.rule.ID(start)
	}
	return periodText(l.Period) + allAlgorithms[l.Algorithm].suffix
}

// bucket returns the bucket of a valid limit, if it can be counted. A calendar quota has one for
// each period; this one only says that there can be one.
func (l Limit) bucket() (b bucket.Bucket, err error) {
	var ok bool
	switch {
	case l.Algorithm != TokenBucket && l.burst() != l.Rate:
		return b, fmt.Errorf("%w: %s: a window has no burst of its own", ErrInvalidArgument, l)
	case l.Calendar != Calendar{}:
		b, ok = bucket.NewCalendar("", int64(l.Rate), 1, 1)
	default:
		b, ok = bucket.New(allAlgorithms[l.Algorithm].kind, l.bucketID(), int64(l.Rate), int64(l.burst()), l.Period.Milliseconds())
	}
	if !ok {
		err = fmt.Errorf("%w: %s is too large to be counted exactly", ErrInvalidArgument, l)
	}
	return b, err
}

// Algorithm is how requests are counted.
type Algorithm uint8

const (
	TokenBucket   Algorithm = iota // tokens come back evenly: at most Burst + Rate × t in any time t
	FixedWindow                    // Rate requests a Period, from a client's first; twice the Rate around its end
	SlidingWindow                  // Rate requests in any Period, exactly, by a log
)

// allAlgorithms are all there is to say of each but its arithmetic.
var allAlgorithms = [...]struct {
	text   string
	kind   bucket.Kind // of its buckets
	suffix string      // of its keys: no algorithm finds what another has counted
}{
	TokenBucket:   {"token-bucket", bucket.Token, ""},
	FixedWindow:   {"fixed-window", bucket.FixedWindow, ":fixed"},
	SlidingWindow: {"sliding-window", bucket.SlidingWindow, ":sliding"},
}

// String returns the algorithm as [ParseLimit] reads it, or "unknown".
func (a Algorithm) String() string {
	if int(a) < len(allAlgorithms) {
		return allAlgorithms[a].text
	}
	return "unknown"
}

// Calendar is the days, weeks or months of a time zone; the zero Calendar has none. Periods begin
// at midnight by the application host's clock. Calendars of the same text are equal. Zones by name
// need the time zone database; import _ "time/tzdata" embeds it.
type Calendar struct{ rule calendar.Rule }

// CalendarDay returns the days of a zone; nil is UTC.
func CalendarDay(loc *time.Location) Calendar { return newCalendar(calendar.Day, 0, loc) }

// CalendarWeek returns the weeks of a zone from a weekday on; nil is UTC.
func CalendarWeek(loc *time.Location, first time.Weekday) Calendar {
	return newCalendar(calendar.Week, int(first), loc)
}

// CalendarMonth returns the months of a zone from firstDay on, 1 to 31, or from the last day of a
// shorter month; nil is UTC.
func CalendarMonth(loc *time.Location, firstDay int) Calendar {
	return newCalendar(calendar.Month, firstDay, loc)
}

func newCalendar(unit calendar.Unit, first int, loc *time.Location) Calendar {
	zone, _ := calendar.Known(loc)
	return Calendar{calendar.Rule{Unit: unit, First: first, Zone: zone}}
}

// PerCalendar returns a quota of n for each period of a calendar, all of which may be taken at
// once.
func PerCalendar(n int, c Calendar) Limit { return Limit{Rate: n, Calendar: c} }

// String returns the calendar as [ParseLimit] reads it, or "none".
func (c Calendar) String() string { return c.rule.String() }

// millis returns ms milliseconds, at most the longest Duration there is.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// wholeMillis returns a duration in whole milliseconds, rounded up.
func wholeMillis(d time.Duration) int64 { return bucket.CeilDiv(int64(d), int64(time.Millisecond)) }
