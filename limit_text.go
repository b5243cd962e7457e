package ginlimit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/calendar"
)

// Texts of limits.
const (
	inFlightWords  = " in flight" // end a limit of requests in flight
	unlimitedWord  = "unlimited"
	prohibitedWord = "prohibited"
)

// ParseLimit reads a limit from text: "100/m", "10/s burst 20", "5/15m fixed-window",
// "500/calendar-day", "2000/week from sunday", "10000/month from 15 in Europe/Berlin", "4 in
// flight", "unlimited", "prohibited". A period is ms, s, m, h, d, a word such as sec or hour, days
// such as 7d, or a duration for [time.ParseDuration]. The word day is an error: 10/d is any 24
// hours, 10/calendar-day a day, in UTC. An error is [ErrInvalidArgument].
func ParseLimit(s string) (Limit, error) {
	l, err := parseLimit(s)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %.64q: %w%s", ErrInvalidArgument, s, err, meant(s))
	}
	if err := l.check(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

func parseLimit(s string) (Limit, error) {
	words := strings.Fields(s)
	if len(words) == 3 && words[1] == "in" && words[2] == "flight" && !strings.Contains(words[0], "/") {
		n, err := strconv.Atoi(words[0])
		if err != nil || n < 1 {
			return Limit{}, fmt.Errorf("in flight: want a whole number above zero")
		}
		return InFlight(n), nil
	}
	var l Limit
	switch last := len(words) - 1; {
	case last == 0 && words[0] == unlimitedWord:
		return Unlimited(), nil
	case last == 0 && words[0] == prohibitedWord:
		return Prohibited(), nil
	case last > 0:
		for a := range allAlgorithms {
			if allAlgorithms[a].text == words[last] {
				l.Algorithm, words = Algorithm(a), words[:last]
				break
			}
		}
	}
	return parseRate(words, l)
}

// parseRate reads a rate and what follows it into a limit that has its algorithm.
func parseRate(words []string, l Limit) (Limit, error) {
	if len(words)%2 == 0 {
		return Limit{}, fmt.Errorf(
			`want "rate/period", "rate/period burst n", "rate/period algorithm", ` +
				`"rate/calendar from first in zone" or "n in flight"`)
	}
	rate, period, found := strings.Cut(words[0], "/")
	if !found {
		return Limit{}, fmt.Errorf(`want a "/" between rate and period`)
	}
	var err error
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
			return Limit{}, fmt.Errorf("%s: a calendar quota has no burst, and nothing else a first day or a zone",
				words[1])
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
		return 0, errors.New("period: want one of ms, s, m, h, d, a duration such as 15m, " +
			"or calendar-day, week or month")
	}
	return d, nil
}

// per returns what follows the rate in the limit's text, without a burst.
func (l Limit) per() string {
	if (l.Calendar != Calendar{}) {
		return l.Calendar.String()
	}
	return periodText(l.Period)
}

// String returns the limit as [ParseLimit] reads it; the zero Limit is "none".
func (l Limit) String() string {
	switch {
	case l == Limit{}:
		return "none"
	case l == Unlimited():
		return unlimitedWord
	case l.InFlight != 0:
		return strconv.Itoa(l.InFlight) + inFlightWords
	}
	s := strconv.Itoa(l.Rate) + "/" + l.per()
	if l.Burst != 0 {
		s += " burst " + strconv.Itoa(l.Burst)
	}
	if l.Algorithm != TokenBucket {
		s += " " + l.Algorithm.String()
	}
	return s
}

// MarshalText returns [Limit.String], but no text for the zero Limit. A Calendar in a zone that
// [time.LoadLocation] does not find cannot be read again.
func (l Limit) MarshalText() ([]byte, error) {
	if (l == Limit{}) {
		return []byte{}, nil
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

// UnmarshalText reads text by [ParseLimit]; no text is the zero Limit.
func (l *Limit) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*l = Limit{}
		return nil
	}
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

const limitSeparator = ", "

// joinLimits returns the text of a plan in Redis.
func joinLimits(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = l.String()
	}
	return strings.Join(texts, limitSeparator)
}

// splitLimits reads what joinLimits has written.
func splitLimits(text string) (limits []Limit, err error) {
	for one := range strings.SplitSeq(text, limitSeparator) {
		l, err := ParseLimit(one)
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// maxMeant is how long a text may be for which limits are offered.
const maxMeant = 128

// meant returns which limits a text that is none may mean, as the end of an error; or "".
func meant(s string) string {
	if len(s) > maxMeant {
		return ""
	}
	var texts []string
	for _, one := range regexp.MustCompile(`[,;+&]|\band\b`).Split(s, -1) {
		l, err := parseLimit(corrected(one))
		if err != nil || l.check() != nil {
			return ""
		}
		texts = append(texts, strconv.Quote(l.String()))
	}
	if len(texts) == 1 {
		return "; did you mean " + texts[0] + "?"
	}
	return "; several limits; give each by itself: " + strings.Join(texts, " and ")
}

// limitWords returns the words of a limit's text that are long enough to be recognized in spite of a
// typing error.
func limitWords() []string {
	words := []string{
		"second", "minute", "hour", "hours", "seconds", "minutes", "month", "calendar-day", "burst",
		"flight", "inflight", "unlimited", "prohibited",
	}
	for _, a := range allAlgorithms {
		words = append(append(words, a.text), strings.Split(a.text, "-")...)
	}
	return words
}

// corrected returns a text with what is often mistyped put right.
func corrected(s string) string {
	words := limitWords()
	s = regexp.MustCompile(`[A-Za-z_-]{5,}`).ReplaceAllStringFunc(s, func(word string) string {
		for _, known := range words {
			if distance(strings.ToLower(strings.ReplaceAll(word, "_", "-")), known) <= 1 {
				return known
			}
		}
		return word
	})
	for _, c := range []struct{ from, to string }{
		{`^\s*(-?\d+)(?:\s+(?:requests?|reqs?|tokens?))?\s*(?:/|\b(?:per|an?|each|every)\b)\s*`, "$1/"},
		{`^(-?\d+/\d+)\s+`, "$1"},
		{`\s+in-?flight\s*$`, inFlightWords},
	} {
		s = regexp.MustCompile(c.from).ReplaceAllString(s, c.to)
	}
	for _, a := range allAlgorithms {
		first, second, _ := strings.Cut(a.text, "-")
		s = regexp.MustCompile(`\s+`+first+`(?:[ -]`+second+`)?\s*$`).ReplaceAllString(s, " "+a.text)
	}
	return s
}

// distance returns how many letters must be added, removed or replaced, or two neighbours swapped, to
// make one word of another: 0, 1, or more.
func distance(a, b string) int {
	if len(a) < len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(b) && a[i] == b[i] {
		i++
	}
	switch x, y := a[i:], b[i:]; {
	case x == y:
		return 0
	case len(x) == len(y) && (x[1:] == y[1:] || len(x) > 1 && x[0] == y[1] && x[1] == y[0] && x[2:] == y[2:]),
		len(x) == len(y)+1 && x[1:] == y:
		return 1
	}
	return 2
}
