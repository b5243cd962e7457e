package ginlimit

import (
	"errors"
	"fmt"

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
