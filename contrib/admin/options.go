package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/ginlimit/ginlimit"
)

// Option configures the page; nil is an error of [New].
type Option func(*config)

// config is what options fill.
type config struct {
	prefix string
	secret []byte
	logger *slog.Logger
	who    func(*http.Request) (string, bool) // may change something; nil if nobody may
	index  int                                // of the option that is applied
	errs   []error                            // each a [ginlimit.OptionError]
}

// require adds a fault of an option, or of the parameter before all, unless ok.
func (c *config) require(option string, ok bool, format string, args ...any) {
	if !ok {
		err := fmt.Errorf("%w: admin: %s", ginlimit.ErrInvalidArgument, fmt.Sprintf(format, args...))
		c.errs = append(c.errs, &ginlimit.OptionError{Index: c.index, Option: option, Err: err})
	}
}

// WithChanges lets people block, unblock and override. The function says who sends a request, for the log, and whether
// that person may change limits. Without this option the page is read-only.
func WithChanges(who func(*http.Request) (name string, ok bool)) Option {
	return func(c *config) {
		c.require("WithChanges", who != nil, "WithChanges: the function is nil")
		c.who = who
	}
}

// WithPrefix sets the prefix of keys in Redis. It has to be the limiter's, by default [ginlimit.DefaultPrefix].
func WithPrefix(s string) Option {
	return func(c *config) {
		c.require("WithPrefix", !strings.ContainsAny(s, "{}"), "WithPrefix(%q): braces are reserved for the hash tag", s)
		c.prefix = s
	}
}

// WithKeySecret finds clients of policies with [ginlimit.WithKeySecret]. It takes the same secret, at least 16 bytes.
// Without it such clients are found by their hashes alone.
func WithKeySecret(secret []byte) Option {
	secret = slices.Clone(secret)
	return func(c *config) {
		c.require("WithKeySecret", len(secret) >= 16, "WithKeySecret: %d bytes; want at least 16", len(secret))
		c.secret = secret
	}
}

// WithLogger sets where changes are logged, by default [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		c.require("WithLogger", l != nil, "WithLogger: the logger is nil")
		c.logger = l
	}
}
