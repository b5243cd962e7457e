package operate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Span returns a duration for people: to the millisecond below a minute, else to the second.
func Span(d time.Duration) string {
	switch {
	case d == ginlimit.Never:
		return "never"
	case d < time.Minute:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// TimeText returns a time for people.
func TimeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// maxDays is how long a span is at most.
const maxDays = 36500

// ParseSpan reads a duration such as 90s, 15m or 7d.
func ParseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok && err != nil {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 64); n > maxDays { // also if it has no place in n
			n, err = maxDays+1, nil
		}
		d = time.Duration(n) * 24 * time.Hour
	}
	switch {
	case err != nil || d <= 0:
		return 0, fault("%.64q is no duration above 0, such as 90s, 15m, 2h or 7d", text)
	case d > maxDays*24*time.Hour:
		return 0, fault("%.64q is too long: at most %dd", text, maxDays)
	}
	return d, nil
}

// Plural returns a number and its noun.
func Plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// ParseUntil returns the end of an override, which is a time or a duration from now on.
func ParseUntil(at, span string) (time.Time, error) {
	if span != "" {
		d, err := ParseSpan(span)
		return time.Now().Add(d).Truncate(time.Second), err
	}
	end, err := time.Parse(time.RFC3339, at)
	switch {
	case err != nil:
		err = fault("%.64q is no time such as 2026-12-31T18:00:00+01:00", at)
	case !end.After(time.Now()):
		err = fault("%s is in the past", at)
	}
	return end, err
}

// ParseLimits reads limits, and returns all errors in them.
func ParseLimits(texts []string) (limits []ginlimit.Limit, err error) {
	for _, text := range texts {
		limit, fault := ginlimit.ParseLimit(text)
		limits, err = append(limits, limit), errors.Join(err, fault)
	}
	if err != nil {
		return nil, &Fault{Err: err}
	}
	return limits, nil
}

// LimitsText returns limits for people. Limits by a function are not known.
func LimitsText(limits []ginlimit.Limit, options []string) string {
	var texts []string
	for _, l := range limits {
		texts = append(texts, l.String())
	}
	if slices.Contains(options, "WithLimitFunc") {
		texts = append(texts, "of each client")
	}
	if texts == nil {
		return "of a time zone that is not known here"
	}
	return strings.Join(texts, ", ")
}

// OptionsText returns a policy's options for people, with what they keep.
func OptionsText(p ginlimit.PolicyInfo) string {
	options := slices.Clone(p.Options)
	for i, name := range options {
		switch name {
		case "WithFloor":
			options[i] = fmt.Sprintf("WithFloor(%d)", p.Floor)
		case "WithLease":
			options[i] = fmt.Sprintf("WithLease(%s)", p.Lease)
		}
	}
	return strings.Join(options, " ")
}

// KeyText returns what a policy counts by.
func KeyText(p ginlimit.PolicyInfo) string {
	if !p.Handler {
		return "(methods)"
	}
	return p.Key
}

// SharesBucket reports whether a bucket of some limits is one of others, too.
func SharesBucket(some, others []ginlimit.Limit) bool {
	bucket := func(l ginlimit.Limit) ginlimit.Limit {
		return ginlimit.Limit{Period: l.Period, Algorithm: l.Algorithm, Calendar: l.Calendar, InFlight: l.InFlight}
	}
	return slices.ContainsFunc(some, func(l ginlimit.Limit) bool {
		return l.InFlight == 0 &&
			slices.ContainsFunc(others, func(other ginlimit.Limit) bool { return bucket(other) == bucket(l) })
	})
}

// OverdrawnText says why a client is denied for longer than its limit's period without a block.
const OverdrawnText = "not blocked: more was used than the limit has, so it takes longer than its period"

// IsHeld reports that a client is denied for longer than the limit's period: it is blocked, or has used more than the
// limit has.
func IsHeld(r ginlimit.Result) bool {
	return !r.Allowed && r.Cause == ginlimit.CauseRate && r.Limit.Calendar == (ginlimit.Calendar{}) &&
		r.RetryAfter > r.Limit.Period && r.RetryAfter != ginlimit.Never
}

// OverrideText returns what an override says.
func OverrideText(o ginlimit.Override) string {
	text := LimitsText(o.Limits, nil) + " until " + o.Until.Format(time.RFC3339)
	if o.Note != "" {
		text += " (" + o.Note + ")"
	}
	return text
}
