package ginlimit

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// answerDenied is the default of [WithDeniedHandler].
//
// It is [gin.Context.Data] with the memory for the header fields in the request's state.
func answerDenied(c *gin.Context, r Result) {
	s := stateOf(c)
	contentType, body, detail := httpfields.TypeProblem, []byte(nil), neverDetail(r, s.cost, s.by.floorOf(r))
	if prefersText(c.Request.Header) {
		contentType, body = httpfields.TypeText, httpfields.QuotaText(detail, httpfields.Seconds(r.RetryAfter))
	} else {
		body = s.problem(detail)
	}
	h := c.Writer.Header()
	s.fields.Text(h, httpfields.ContentType, contentType)
	s.fields.Number(h, httpfields.ContentLength, int64(len(body)))
	if _, err := c.Writer.Write(body); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// neverDetail explains a refusal that no retry avoids. It is "" for any other refusal.
func neverDetail(r Result, cost, floor int) string {
	switch {
	case r.RetryAfter >= 0:
		return ""
	case r.Limit.Rate == 0 && r.Limit.InFlight == 0:
		return httpfields.ProhibitedDetail
	default:
		return httpfields.CostDetail(cost, max(0, r.Limit.burst()-floor))
	}
}

// floorOf returns how many tokens of a limit the policy leaves to others.
func (p *Policy) floorOf(r Result) int {
	if r.Name == p.name {
		return p.floor
	}
	return 0
}

// answerStatus answers with a problem that only repeats its status.
func answerStatus(c *gin.Context, status int) {
	title := http.StatusText(status)
	answer(c, status, httpfields.StatusProblem(title, status), title)
}

// answer answers with a problem, or with text if the request prefers that.
func answer(c *gin.Context, status int, problem, text string) {
	c.Header(httpfields.CacheControl, httpfields.NoStore)
	if prefersText(c.Request.Header) {
		c.Data(status, httpfields.TypeText, []byte(text+"\n"))
	} else {
		c.Data(status, httpfields.TypeProblem, []byte(problem))
	}
}

// ErrorStatus returns the status with which the default of [WithErrorHandler] answers an error.
//
// It is 400 for [ErrBadRequest], 403 for [ErrUnknownClient], 503 for [ErrUnavailable] or if a context has ended, and 500
// otherwise. Of nil it is 200.
func ErrorStatus(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBadRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknownClient):
		return http.StatusForbidden
	case errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	status := ErrorStatus(err)
	switch {
	case errors.As(err, &missing):
		detail := httpfields.MissingHeader(missing.name)
		answer(c, status, httpfields.HeaderProblem(detail), detail)
	case status == http.StatusServiceUnavailable && errors.Is(err, ErrUnavailable):
		c.Header(httpfields.RetryAfter, "1") // Redis decides again within a second of its return
		answer(c, status, httpfields.CapacityProblem, http.StatusText(status))
	default:
		answerStatus(c, status)
	}
}

// prefersText reports whether a request prefers plain text to JSON.
func prefersText(h http.Header) bool { return httpfields.PrefersText(strings.Join(h["Accept"], ",")) }
