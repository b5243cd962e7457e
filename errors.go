package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ginlimit/ginlimit/internal/engine"
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
	Index  int    // of the option in the call, from 0; -1 if no single one is at fault
	Option string // "WithFloor", "Limit", or the name of another parameter; "" if the option is nil
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

// faultsIn returns the errors that [errors.Join] has joined, also within joined errors.
func faultsIn(err error) (faults []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	for _, one := range joined.Unwrap() {
		faults = append(faults, faultsIn(one)...)
	}
	return faults
}

// missingHeader is the error of a request without a required header.
type missingHeader struct{ name string }

func (e *missingHeader) Error() string {
	return ErrNoKey.Error() + ": the request has no header " + e.name
}

func (e *missingHeader) Unwrap() []error { return []error{ErrNoKey, ErrBadRequest} }

// limitError is what is wrong with one of several limits.
type limitError struct {
	error
	index int
}

func (e *limitError) Unwrap() error { return e.error }

// ErrorStatus returns the status of the default response to an error: 400 for [ErrBadRequest] and an
// [OverrideError], 403 for [ErrUnknownClient], 503 for [ErrUnavailable] or a context's error, else 500. Of
// nil it is 200.
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
