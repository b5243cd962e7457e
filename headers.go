package ginlimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
)

// The fields as net/http spells them.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerReset     = "X-Ratelimit-Reset"
)

// The bodies of the default answers (RFC 9457). quota-exceeded is a problem type of
// draft-ietf-httpapi-ratelimit-headers-11; the others mean no more than their status.
var (
	problemQuota = []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429}`)
	problemUnavailable = []byte(`{"type":"about:blank","title":"Service Unavailable","status":503}`)
	problemInternal    = []byte(`{"type":"about:blank","title":"Internal Server Error","status":500}`)
)

const problemType = "application/problem+json"

// setHeaders tells what is left. An unlimited request has no limit to tell of.
//
// All numbers are one text and all values one array: two allocations. Each field's value ends where
// the next one's begins, so that nobody who appends to one writes into another.
func setHeaders(h http.Header, r Result) {
	if r.Limit.Rate < 0 {
		return
	}
	var digits [80]byte
	text := strconv.AppendInt(digits[:0], int64(r.Limit.burst()), 10)
	limit := len(text)
	text = strconv.AppendInt(text, int64(r.Remaining), 10)
	remaining := len(text)
	text = strconv.AppendInt(text, seconds(r.ResetAfter), 10)
	reset := len(text)
	text = strconv.AppendInt(text, seconds(r.RetryAfter), 10)

	all := string(text)
	values := [...]string{all[:limit], all[limit:remaining], all[remaining:reset], all[reset:], "no-store"}
	fields := values[:]
	h[headerLimit], h[headerRemaining], h[headerReset] = fields[0:1:1], fields[1:2:2], fields[2:3:3]
	if r.Allowed {
		return
	}
	h["Cache-Control"] = fields[4:5:5]
	if r.RetryAfter > 0 { // below zero no waiting helps, so none is advised
		h["Retry-After"] = fields[3:4:4]
	}
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
func answerDenied(c *gin.Context, _ Result) {
	c.Data(http.StatusTooManyRequests, problemType, problemQuota)
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Header("Cache-Control", "no-store")
	c.Abort()
	if errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		c.Data(http.StatusServiceUnavailable, problemType, problemUnavailable)
		return
	}
	c.Data(http.StatusInternalServerError, problemType, problemInternal)
}
