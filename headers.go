package ginlimit

import (
	"net/http"
	"strconv"
	"time"
	"unsafe"
)

// Headers tells which header fields tell of a limit.
type Headers uint8

const (
	// XRateLimit is X-RateLimit-Limit, -Remaining and -Reset, of the limit closest to exhaustion.
	XRateLimit Headers = 1 << iota
	// RateLimitDraft is RateLimit-Policy and RateLimit, of every limit.
	//
	// It emits the fields of draft-ietf-httpapi-ratelimit-headers-11, in which q tokens may be taken in w seconds, r are
	// left, and in t seconds there are more. Of a refusal, t is told of the limits that refuse. A limit's name is that
	// of its handler or identity, and of several limits also their period; without a name, the text of the limit.
	// What cannot be part of a name there is a hyphen.
	RateLimitDraft
	// NoHeaders is none of them.
	NoHeaders Headers = 0
)

// The fields of XRateLimit as net/http spells them.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerReset     = "X-Ratelimit-Reset"
	headerStatus    = "X-Ratelimit-Status" // degraded, where Redis did not decide
)

// fields are the memory of the header fields of one response.
//
// They are a part of what is kept for the request anyway, so that setting them allocates nothing.
type fields struct {
	digits [4 * 20]byte // all numbers, of 20 digits at most
	end    int
	values [7]string
	next   int
}

// set tells what is left. An unlimited request has no limit to tell of.
func (f *fields) set(h http.Header, r Result) {
	if r.Limit.Rate < 0 {
		return
	}
	f.number(h, headerLimit, int64(r.Limit.burst()))
	f.number(h, headerRemaining, int64(r.Remaining))
	f.number(h, headerReset, seconds(r.ResetAfter))
}

// refuse tells when to come back.
func (f *fields) refuse(h http.Header, r Result) {
	if r.RetryAfter > 0 { // below zero no waiting helps, so none is advised
		f.number(h, "Retry-After", seconds(r.RetryAfter))
	}
	f.text(h, "Cache-Control", "no-store")
}

func (f *fields) number(h http.Header, name string, n int64) {
	start := f.end
	f.end = len(strconv.AppendInt(f.digits[:start], n, 10))
	// As a strings.Builder does: a part of digits is written once, before it is a string.
	f.text(h, name, unsafe.String(&f.digits[start], f.end-start))
}

// text sets a field. Its value ends where the next one's begins, so that nobody who appends to one writes into
// another.
func (f *fields) text(h http.Header, name, value string) {
	f.values[f.next] = value
	h[name] = f.values[f.next : f.next+1 : f.next+1]
	f.next++
}

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
