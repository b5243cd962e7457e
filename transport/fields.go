package transport

import (
	"cmp"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// field is how a partner says how much is left, and until when.
type field struct{ remaining, reset string }

// The known fields beside RateLimit (draft-ietf-httpapi-ratelimit-headers-11), as net/http spells them.
var (
	requestFields = []field{
		{"X-Ratelimit-Remaining", "X-Ratelimit-Reset"},                   // ginlimit, GitHub, and many others
		{"Ratelimit-Remaining", "Ratelimit-Reset"},                       // earlier drafts
		{"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"}, // OpenAI
		{"Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	}
	tokenFields = []field{
		{"X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"}, // OpenAI
		{"Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	}
)

// A partner may be anybody, such as the receiver of a webhook, and net/http lets it send megabytes. What is beyond
// these bounds is not read.
const (
	maxRead  = 4 << 10 // bytes of RateLimit and of RateLimit-Policy, in all their lines
	maxItems = 16      // of each of the two
	maxText  = 64      // bytes of a number or a time; a longer text is neither
)

// defaultStop is how long a 429 stops a key that does not say when to come again.
const defaultStop = time.Second

// stopOf returns for how long a response stops its key.
func (t *transport) stopOf(r *http.Response) (d time.Duration, stops bool) {
	text := r.Header.Get("Retry-After")
	switch r.StatusCode {
	case http.StatusTooManyRequests:
		stops = true
	case http.StatusServiceUnavailable:
		stops = text != ""
	case http.StatusForbidden: // GitHub's other answer to a request above its limits
		stops = text != "" || r.Header.Get("X-Ratelimit-Remaining") == "0"
	}
	if !stops {
		return 0, false
	}
	now, known := date(r.Header.Get("Date"))
	if !known { // by the partner's clock where it has one (RFC 9110, section 10.2.3)
		now = time.Now()
	}
	d, known = delay(text, now)
	if !known && r.StatusCode != http.StatusServiceUnavailable {
		d, known = reportOf(r.Header, t.cost != nil).untilReset(now)
	}
	if !known {
		d = defaultStop
	}
	return min(max(d, time.Millisecond), t.maxStop), true
}

// delay reads a time as a number of seconds, a duration such as 6m0s, seconds since 1970, an HTTP-date or a time
// of RFC 3339. It is false for anything else, and for a negative time.
func delay(text string, now time.Time) (d time.Duration, ok bool) {
	const epoch = 1e9 // a number above it is not seconds from now: that was 2001
	if len(text) > maxText {
		return 0, false
	}
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseFloat(text, 64); (err == nil || errors.Is(err, strconv.ErrRange)) && !math.IsNaN(n) {
		if n > epoch {
			n -= float64(now.Unix())
		}
		return time.Duration(min(n*float64(time.Second), math.MaxInt64/2)), n >= 0
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d, d >= 0
	}
	at, ok := date(text)
	if !ok {
		var err error
		at, err = time.Parse(time.RFC3339, text)
		ok = err == nil
	}
	return max(0, at.Sub(now)), ok
}

// date reads an HTTP-date.
func date(text string) (at time.Time, ok bool) {
	if len(text) > maxText { // an error of ParseTime has copies of it
		return at, false
	}
	at, err := http.ParseTime(text)
	return at, err == nil
}

// number reads a number that is not negative.
func number(text string) (n int, ok bool) {
	if len(text) > maxText { // an error of Atoi has a copy of it
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil && n >= 0
}

// report is what a response says of limits.
type report struct {
	listed []status // by RateLimit
	others []status // by other fields
}

// status is what a response says of one limit.
type status struct {
	remaining int
	reset     string
	window    int // in seconds, of RateLimit-Policy; 0 is not known
}

// reportOf reads what a response says of limits of requests, or of tokens.
func reportOf(h http.Header, tokens bool) (r report) {
	fields := requestFields
	if tokens {
		fields = tokenFields
	} else {
		r.listed = draft(h)
	}
	for _, f := range fields {
		if values := h[f.remaining]; len(values) == 1 {
			if n, ok := number(values[0]); ok {
				r.others = append(r.others, status{remaining: n, reset: h.Get(f.reset)})
			}
		}
	}
	return r
}

// isEmpty reports whether the response says nothing.
func (r report) isEmpty() bool { return len(r.listed)+len(r.others) == 0 }

// untilReset returns when more is there of what a response says is used up: of several, the last.
func (r report) untilReset(now time.Time) (d time.Duration, known bool) {
	for _, all := range [...][]status{r.listed, r.others} {
		for _, s := range all {
			if s.remaining > 0 {
				continue
			}
			if at, ok := delay(s.reset, now); ok {
				d, known = max(d, at), true
			}
		}
	}
	return d, known
}

// remaining returns the least of what a response says is left under a limit of a period. If RateLimit has several
// items, RateLimit-Policy says which one is meant.
func (r report) remaining(period time.Duration) (n int, known bool) {
	least := func(s status) {
		if !known || s.remaining < n {
			n, known = s.remaining, true
		}
	}
	for _, s := range r.listed {
		if len(r.listed) == 1 || s.window > 0 && time.Duration(s.window) == period/time.Second && period%time.Second == 0 {
			least(s)
		}
	}
	for _, s := range r.others {
		if len(r.listed) < 2 {
			least(s)
		}
	}
	return n, known
}

// least returns the least of what a response says is left under any limit, or more than there ever is.
func (r report) least() int {
	n := math.MaxInt
	for _, all := range [...][]status{r.listed, r.others} {
		for i := range all {
			n = min(n, all[i].remaining)
		}
	}
	return n
}

// draft returns the statuses of RateLimit (draft-ietf-httpapi-ratelimit-headers-11, section 4), without those
// whose quota RateLimit-Policy says is not of requests.
func draft(h http.Header) (all []status) {
	limits, policies := h["Ratelimit"], h["Ratelimit-Policy"]
	if len(limits) == 0 {
		return nil
	}
	var first, second [maxItems]item // on the stack
	known := items(second[:0], policies)
	for _, one := range items(first[:0], limits) {
		n, ok := number(one.remaining)
		var of item
		for _, policy := range known { // of one name the last counts
			if policy.name == one.name {
				of = policy
			}
		}
		if ok && cmp.Or(of.unit, "requests") == "requests" {
			window, _ := number(of.window)
			all = append(all, status{n, one.reset, window})
		}
	}
	return all
}

// item is an Item of RateLimit or RateLimit-Policy, with the parameters that are read.
type item struct{ name, remaining, reset, unit, window string }

// items appends the first Items of a List of Items with Parameters (RFC 9651), as far as there is memory for them.
func items(all []item, lines []string) []item {
	left := maxRead
	for _, line := range lines {
		rest, cut := line[:min(len(line), left)], len(line) > left
		for more := true; more && len(all) < cap(all); {
			var member string
			member, rest, more = split(rest, ',')
			if (more || !cut) && strings.TrimSpace(member) != "" { // else it may go on
				all = append(all, itemOf(member))
			}
		}
		if left -= len(line) + 1; left < 0 { // an empty line counts, too
			break
		}
	}
	return all
}

// itemOf reads an Item. It does not decode: of a String it takes off the quotes alone.
func itemOf(text string) (one item) {
	name, rest, more := split(text, ';')
	one.name = strings.Trim(strings.TrimSpace(name), `"`)
	for more {
		var part string
		part, rest, more = split(rest, ';')
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		value = strings.Trim(value, `"`)
		switch key {
		case "r":
			one.remaining = value
		case "t":
			one.reset = value
		case "qu":
			one.unit = value
		case "w":
			one.window = value
		}
	}
	return one
}

// split splits a text where a byte is outside quotes for the first time.
func split(text string, at byte) (before, after string, found bool) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quoted:
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == at && !quoted:
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}
