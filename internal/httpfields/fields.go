// Package httpfields writes what HTTP clients see of limits, from plain numbers: header fields and problem bodies.
//
// It owns the names of fields and limits, the syntax of the draft, and the texts of bodies. A header is a map, to
// which an http.Header is assignable, with keys as net/http spells them. It must know no policy, bucket or request.
package httpfields

import (
	"math"
	"strconv"
	"time"
	"unsafe"
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
)

// Fields holds the values of the header fields of one response. The zero Fields is empty.
//
// It is memory for the values: as part of a request's state, it saves an allocation for each field.
// Times above maxNumber that were not written lately, further numbers above it but the first, and the fields
// after the seventh allocate.
type Fields struct {
	values [7]string
	next   uint8
	digits [20]byte // of one number above maxNumber; they do not change once they are written
}

// SetXRateLimit sets the X-RateLimit fields: the tokens of a limit, the tokens that are left, and
// the seconds until all are there again.
func (f *Fields) SetXRateLimit(h map[string][]string, limit string, remaining, reset int64) {
	f.Text(h, XRateLimitLimit, limit)
	f.Number(h, XRateLimitRemaining, remaining, false)
	f.Number(h, XRateLimitReset, reset, true) // the same for a second
}

// SetDenied sets the fields of a denial: the seconds after which to retry, unless they are 0, and
// that no cache may keep the response.
func (f *Fields) SetDenied(h map[string][]string, retryAfter int64) {
	if retryAfter > 0 {
		f.Number(h, RetryAfter, retryAfter, true)
	}
	f.Text(h, CacheControl, NoStore)
}

// Number sets a field to a number. If the number often comes again, its text is kept.
func (f *Fields) Number(h map[string][]string, name string, n int64, again bool) {
	text := ""
	switch {
	case n >= 0 && n <= maxNumber:
		text = numbers[n]
	case again:
		text = keptText(n)
	case f.digits[0] != 0:
		text = strconv.FormatInt(n, 10)
	default:
		digits := strconv.AppendInt(f.digits[:0], n, 10)
		text = unsafe.String(&digits[0], len(digits))
	}
	f.Text(h, name, text)
}

// Text sets a field. Its slice has no spare capacity, so appending to it cannot overwrite the next
// value.
func (f *Fields) Text(h map[string][]string, name, value string) {
	if int(f.next) == len(f.values) {
		h[name] = []string{value}
		return
	}
	f.values[f.next] = value
	h[name] = f.values[f.next : f.next+1 : f.next+1]
	f.next++
}

// Seconds returns a duration in whole seconds, rounded up, and 0 for the longest one: no waiting helps.
func Seconds(d time.Duration) int64 {
	if d == math.MaxInt64 {
		return 0
	}
	return int64(d/time.Second + min(1, max(0, d%time.Second)))
}
