// Package httpfields writes what HTTP clients see of limits, from plain numbers: header fields and
// problem bodies.
//
// A header is a map, to which an http.Header is assignable. Its keys are spelt as net/http spells
// them.
package httpfields

import (
	"strconv"
	"time"
)

// The names of the header fields.
const (
	XRateLimitLimit     = "X-Ratelimit-Limit"
	XRateLimitRemaining = "X-Ratelimit-Remaining"
	XRateLimitReset     = "X-Ratelimit-Reset"
	XRateLimitStatus    = "X-Ratelimit-Status" // Degraded, if Redis did not decide
	RetryAfter          = "Retry-After"
	CacheControl        = "Cache-Control"
	ContentType         = "Content-Type"
	ContentLength       = "Content-Length"
)

// Values of the header fields.
const (
	Degraded    = "degraded"
	NoStore     = "no-store"
	TypeProblem = "application/problem+json"
	TypeText    = "text/plain; charset=utf-8"
)

// Fields holds the values of the header fields of one response. The zero Fields is empty.
//
// It is memory for the values: as part of a request's state, it saves an allocation for each field.
// Only a number above maxNumber and the fields after the seventh allocate.
type Fields struct {
	values [7]string
	next   int
}

// maxNumber is the largest number whose text is kept.
const maxNumber = 1<<11 - 1

var numbers = func() (texts [maxNumber + 1]string) {
	for i := range texts {
		texts[i] = strconv.Itoa(i)
	}
	return texts
}()

// SetXRateLimit sets the X-RateLimit fields: the tokens of a limit, the tokens that are left, and
// the seconds until all are there again.
func (f *Fields) SetXRateLimit(h map[string][]string, limit, remaining, reset int64) {
	f.Number(h, XRateLimitLimit, limit)
	f.Number(h, XRateLimitRemaining, remaining)
	f.Number(h, XRateLimitReset, reset)
}

// SetDenied sets the fields of a denial: the seconds after which to retry, unless they are 0, and
// that no cache may keep the response.
func (f *Fields) SetDenied(h map[string][]string, retryAfter int64) {
	if retryAfter > 0 {
		f.Number(h, RetryAfter, retryAfter)
	}
	f.Text(h, CacheControl, NoStore)
}

// Number sets a field to a number.
func (f *Fields) Number(h map[string][]string, name string, n int64) {
	if n >= 0 && n <= maxNumber {
		f.Text(h, name, numbers[n])
	} else {
		f.Text(h, name, strconv.FormatInt(n, 10))
	}
}

// Text sets a field. Its slice has no spare capacity, so appending to it cannot overwrite the next
// value.
func (f *Fields) Text(h map[string][]string, name, value string) {
	if f.next == len(f.values) {
		h[name] = []string{value}
		return
	}
	f.values[f.next] = value
	h[name] = f.values[f.next : f.next+1 : f.next+1]
	f.next++
}

// Seconds returns a duration in whole seconds, rounded up, and 0 for a negative one.
func Seconds(d time.Duration) int64 {
	d = max(d, 0)
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
