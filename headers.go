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
func setHeaders(h http.Header, r Result) {
	if r.Limit.Rate < 0 {
		return
	}
	h.Set(headerLimit, strconv.Itoa(r.Limit.burst()))
	h.Set(headerRemaining, strconv.Itoa(r.Remaining))
	h.Set(headerReset, strconv.FormatInt(seconds(r.ResetAfter), 10))
	if r.Allowed {
		return
	}
	h.Set("Cache-Control", "no-store")
	if r.RetryAfter > 0 { // below zero no waiting helps, so none is advised
		h.Set("Retry-After", strconv.FormatInt(seconds(r.RetryAfter), 10))
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
