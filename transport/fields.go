package transport

import (
	"cmp"
	"errors"
	"math"
	"net/http"
	"slices"
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
	now, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil { // by the partner's clock where it has one (RFC 9110, section 10.2.3)
		now = time.Now()
	}
	d, known := delay(text, now)
	if !known && r.StatusCode != http.StatusServiceUnavailable {
		d, known = untilReset(r.Header, now, t.cost != nil)
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
	at, err := http.ParseTime(text)
	if err != nil {
		at, err = time.Parse(time.RFC3339, text)
	}
	return max(0, at.Sub(now)), err == nil
}

// untilReset returns when more is there of what a response says is used up: of several, the last.
func untilReset(h http.Header, now time.Time, tokens bool) (d time.Duration, known bool) {
	for _, s := range statuses(h, tokens) {
		if at, ok := delay(s.reset, now); ok && s.remaining == 0 {
			d, known = max(d, at), true
		}
	}
	return d, known
}

// remaining returns the least of what a response says is left, of requests or tokens, under a limit of a period. If
// RateLimit has several items, RateLimit-Policy says which one is meant.
func remaining(h http.Header, tokens bool, period time.Duration) (n int, known bool) {
	all := statuses(h, tokens)
	if listed := draft(h); len(listed) > 1 && !tokens {
		all = slices.DeleteFunc(listed, func(s status) bool {
			w, err := strconv.Atoi(s.window)
			return err != nil || time.Duration(w) != period/time.Second || period%time.Second != 0
		})
	}
	for _, s := range all {
		if !known || s.remaining < n {
			n, known = s.remaining, true
		}
	}
	return n, known
}

// status is what a response says of one limit.
type status struct {
	remaining int
	reset     string
	window    string // in seconds, of RateLimit-Policy
}

// statuses returns what a response says of limits.
func statuses(h http.Header, tokens bool) (all []status) {
	fields := requestFields
	if tokens {
		fields = tokenFields
	} else {
		all = draft(h)
	}
	for _, f := range fields {
		if values := h[f.remaining]; len(values) == 1 {
			if n, err := strconv.Atoi(strings.TrimSpace(values[0])); err == nil && n >= 0 {
				all = append(all, status{remaining: n, reset: h.Get(f.reset)})
			}
		}
	}
	return all
}

// draft returns the statuses of RateLimit (draft-ietf-httpapi-ratelimit-headers-11, section 4), without those
// whose quota RateLimit-Policy says is not of requests.
func draft(h http.Header) (all []status) {
	policies := map[string]map[string]string{}
	for _, item := range items(h["Ratelimit-Policy"]) {
		policies[item[""]] = item
	}
	for _, item := range items(h["Ratelimit"]) {
		policy := policies[item[""]]
		n, err := strconv.Atoi(item["r"])
		if err == nil && n >= 0 && cmp.Or(policy["qu"], "requests") == "requests" {
			all = append(all, status{n, item["t"], policy["w"]})
		}
	}
	return all
}

// items reads a List of Items with Parameters (RFC 9651), each as a map; "" has the Item itself. It does not
// decode: of a String it takes off the quotes alone.
func items(lines []string) (all []map[string]string) {
	for _, line := range lines {
		for _, member := range split(line, ',') {
			item := map[string]string{}
			for i, part := range split(member, ';') {
				name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
				if i == 0 {
					name, value = "", strings.TrimSpace(part)
				}
				item[name] = strings.Trim(value, `"`)
			}
			all = append(all, item)
		}
	}
	return all
}

// split splits a text where a byte is outside quotes.
func split(text string, at byte) (parts []string) {
	quoted, from := false, 0
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quoted:
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == at && !quoted:
			parts, from = append(parts, text[from:i]), i+1
		}
	}
	return append(parts, text[from:])
}
