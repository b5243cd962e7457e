package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unsafe"

	"github.com/gin-gonic/gin"
)

// The fields as net/http spells them.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerReset     = "X-Ratelimit-Reset"
	headerStatus    = "X-Ratelimit-Status" // degraded, where Redis did not decide
)

// The bodies of the default answers (RFC 9457). quota-exceeded and temporary-reduced-capacity are problem types of
// draft-ietf-httpapi-ratelimit-headers-11, section 5; the others mean no more than their status.
var (
	problemQuota = []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429}`)
	problemCapacity = []byte(`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503}`)
	problemUnavailable = []byte(`{"type":"about:blank","title":"Service Unavailable","status":503}`)
	problemForbidden   = []byte(`{"type":"about:blank","title":"Forbidden","status":403}`)
	problemInternal    = []byte(`{"type":"about:blank","title":"Internal Server Error","status":500}`)
)

// problemHeader is the body for a request without a header; the name is a token (see [ByHeader]).
const problemHeader = `{"type":"about:blank","title":"Bad Request","status":400,"detail":"The header %s is missing."}`

const problemType = "application/problem+json"

var problemQuotaLength = strconv.Itoa(len(problemQuota))

// fields are the memory of the header fields of one response.
//
// They are a part of what is kept for the request anyway, so that setting them allocates nothing.
type fields struct {
	digits [4 * 20]byte // all numbers, of 20 digits at most
	values [7]string
}

// set tells what is left. An unlimited request has no limit to tell of.
//
// Each field's value ends where the next one's begins, so that nobody who appends to one writes into another.
func (f *fields) set(h http.Header, r Result) {
	if r.Limit.Rate < 0 {
		return
	}
	end, next := 0, 0
	number := func(name string, n int64) {
		start := end
		end = len(strconv.AppendInt(f.digits[:start], n, 10))
		// As a strings.Builder does: a part of digits is written once, before it is a string.
		f.values[next] = unsafe.String(&f.digits[start], end-start)
		h[name] = f.values[next : next+1 : next+1]
		next++
	}
	number(headerLimit, int64(r.Limit.burst()))
	number(headerRemaining, int64(r.Remaining))
	number(headerReset, seconds(r.ResetAfter))
	if r.Allowed {
		return
	}
	if r.RetryAfter > 0 { // below zero no waiting helps, so none is advised
		number("Retry-After", seconds(r.RetryAfter))
	}
	f.values[4], f.values[5], f.values[6] = "no-store", problemType, problemQuotaLength
	h["Cache-Control"] = f.values[4:5:5]
}

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// answerDenied is the default of [WithDeniedHandler].
//
// It does what [gin.Context.Data] does, with the memory of the fields.
func answerDenied(c *gin.Context, _ Result) {
	h, f := c.Writer.Header(), &decidedOn(c).fields
	h["Content-Type"], h["Content-Length"] = f.values[5:6:6], f.values[6:7:7]
	if _, err := c.Writer.Write(problemQuota); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// answerForbidden answers a request of an address that is not let in.
func answerForbidden(c *gin.Context) {
	c.Header("Cache-Control", "no-store")
	c.Data(http.StatusForbidden, problemType, problemForbidden)
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	switch {
	case errors.As(err, &missing):
		c.Header("Cache-Control", "no-store")
		c.Data(http.StatusBadRequest, problemType, fmt.Appendf(nil, problemHeader, missing.name))
	case errors.Is(err, ErrUnknownClient):
		answerForbidden(c)
	case errors.Is(err, ErrUnavailable):
		c.Header("Cache-Control", "no-store")
		c.Header("Retry-After", "1") // Redis is found within a second of its return
		c.Data(http.StatusServiceUnavailable, problemType, problemCapacity)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		c.Header("Cache-Control", "no-store")
		c.Data(http.StatusServiceUnavailable, problemType, problemUnavailable)
	default:
		c.Header("Cache-Control", "no-store")
		c.Data(http.StatusInternalServerError, problemType, problemInternal)
	}
}
