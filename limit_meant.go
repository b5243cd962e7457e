package ginlimit

import (
	"regexp"
	"strconv"
	"strings"
)

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

// limitWords are the words of a limit's text that are long enough to be recognized in spite of a
// typing error.
var limitWords = []string{
	"second", "minute", "hour", "hours", "seconds", "minutes", "month", "calendar-day",
	"burst", "fixed", "sliding", "token", "bucket", "window", "fixed-window", "sliding-window", "token-bucket",
	"flight", "inflight", "unlimited", "prohibited",
}

// corrected returns a text with what is often mistyped put right.
func corrected(s string) string {
	s = regexp.MustCompile(`[A-Za-z_-]{5,}`).ReplaceAllStringFunc(s, func(word string) string {
		for _, known := range limitWords {
			if distance(strings.ToLower(strings.ReplaceAll(word, "_", "-")), known) <= 1 {
				return known
			}
		}
		return word
	})
	for _, c := range []struct{ from, to string }{
		{`^\s*(-?\d+)(?:\s+(?:requests?|reqs?|tokens?))?\s*(?:/|\b(?:per|an?|each|every)\b)\s*`, "$1/"},
		{`^(-?\d+/\d+)\s+`, "$1"},
		{`\s+(fixed|sliding)(?:[ -]window)?\s*$`, " $1-window"},
		{`\s+token(?:[ -]bucket)?\s*$`, " token-bucket"},
		{`\s+in-?flight\s*$`, inFlightWords},
	} {
		s = regexp.MustCompile(c.from).ReplaceAllString(s, c.to)
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
