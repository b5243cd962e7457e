package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// Match these with [errors.Is].
var (
	ErrInvalidArgument = errors.New("ginlimit: invalid argument") // a limit, an option or an argument cannot be used
	ErrUnavailable     = engine.ErrUnavailable                    // no decision by Redis or a plan, or a closed limiter
	ErrClosed          = engine.ErrClosed                         // the limiter is closed; it is ErrUnavailable too
	ErrNoKey           = errors.New("ginlimit: no key")           // there is no key to count under
	ErrBadRequest      = errors.New("ginlimit: bad request")      // the client is at fault; answered 400
	ErrUnknownClient   = errors.New("ginlimit: unknown client")   // the client has no plan; answered 403
)

// invalidArgument is an [ErrInvalidArgument] whose text says by itself what is invalid.
type invalidArgument struct{ text string }

func (e *invalidArgument) Error() string        { return "ginlimit: " + e.text }
func (e *invalidArgument) Is(target error) bool { return target == ErrInvalidArgument }

// invalid returns an [ErrInvalidArgument].
func invalid(format string, args ...any) error {
	return &invalidArgument{fmt.Sprintf(format, args...)}
}

// OptionError is one fault in the arguments of a constructor, an [ErrInvalidArgument]: [errors.As]
// finds the first, Unwrap() []error all.
type OptionError struct {
	Index  int    // of the option in its list, from 0; -1 if none there is at fault
	Option string // "WithFloor", "Limit", or the name of another parameter, such as "name"; "" if nil
	Err    error  // what is wrong
}

func (e *OptionError) Error() string { return e.Err.Error() }
func (e *OptionError) Unwrap() error { return e.Err }

// OverrideError is one fault in the arguments of [Limiter.OverrideAll], like [OptionError]. Its
// [ErrorStatus] is 400.
type OverrideError struct {
	Index int    // of the override in the call, from 0; -1 if there are too many or none
	Field string // of [Override], such as "Limits"; "" without an override
	Err   error  // what is wrong

	several bool // overrides in the call
}

func (e *OverrideError) Error() string {
	if e.several {
		return fmt.Sprintf("%v (override %d)", e.Err, e.Index+1)
	}
	return e.Err.Error()
}

func (e *OverrideError) Unwrap() error { return e.Err }

// wrongNumber is the error of a call with too many overrides, or with none.
func wrongNumber(format string, args ...any) error {
	return &OverrideError{Index: -1, Err: invalid(format, args...)}
}

// faultsIn returns the errors that [errors.Join] has joined.
func faultsIn(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// unusable is the error of limits that the application returned for a client. The log may name them.
type unusable struct {
	error
	limits []Limit
}

func (u *unusable) Unwrap() error { return u.error }

// text returns the limits, or the first of many.
func (u *unusable) text() string { return fmt.Sprintf("%.200s", joinLimits(u.limits)) }

// ErrorStatus returns the status of the default response to an error: 400 for [ErrBadRequest] and an
// [OverrideError], 403 for [ErrUnknownClient], 503 for [ErrUnavailable] or a context's error, else 500. Of nil it is 200.
func ErrorStatus(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBadRequest), errors.As(err, new(*OverrideError)):
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
		answerProblem(c, status, httpfields.HeaderProblem(missing.name))
	case status == http.StatusServiceUnavailable && errors.Is(err, ErrUnavailable):
		c.Header(httpfields.RetryAfter, "1") // Redis decides again within a second of its return
		answerProblem(c, status, httpfields.CapacityProblem)
	default:
		answerStatus(c, status)
	}
}

// answerStatus answers with a problem that only repeats its status.
func answerStatus(c *gin.Context, status int) {
	answerProblem(c, status, httpfields.StatusProblem(http.StatusText(status), status))
}

// answerProblem answers with a problem.
func answerProblem(c *gin.Context, status int, problem string) {
	c.Header(httpfields.CacheControl, httpfields.NoStore)
	c.Data(status, httpfields.TypeProblem, []byte(problem))
}

// fail answers a request on which a policy has no decision, and logs why if the application is at fault.
func (t *part) fail(c *gin.Context, s *requestState, why failure) {
	p := t.policy
	free := t.n == 0 && t.asked && errors.Is(why.err, ErrUnavailable)
	s.record(c.Request.Context(), t, OutcomeFailed, free, why)
	switch {
	case free:
		return // whatever is left
	case p.dryRun:
		_ = c.Error(why.err) // for the application's log; it returns what it was given
		p.logFault(c, why)
		return
	}
	if s := stateOf(c); s != nil {
		s.listLimits(c.Writer.Header(), true)
	}
	if p.answers.errorHandler != nil {
		p.answers.errorHandler(c, why.err)
	} else {
		answerError(c, why.err)
	}
	c.Abort()
	if c.Writer.Status() == http.StatusInternalServerError {
		p.logFault(c, why)
	}
}

// logFault logs, once in a while, why there is no decision if the application is at fault. The line
// omits the error's text, which may name a client, but for limits that cannot be used.
func (p *Policy) logFault(c *gin.Context, why failure) {
	if ErrorStatus(why.err) != http.StatusInternalServerError || !p.logged.faults.Allow() {
		return
	}
	ctx := c.Request.Context()
	args := []any{"name", p.name, "route", c.FullPath(), "reason", why.reason(ctx, Result{})}
	if bad := (*unusable)(nil); errors.As(why.err, &bad) && len(bad.limits) > 0 {
		args = append(args, "limits", bad.text())
	}
	p.limiter.logger.WarnContext(ctx, "ginlimit: the application gives a request no usable key, limits or cost", args...)
}
