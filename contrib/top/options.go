package top

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Option configures a [Reporter]; nil is an error of [New].
type Option func(*config)

// config is what options fill.
type config struct {
	prefix   string
	secret   []byte
	interval time.Duration
	logger   *slog.Logger
	outcomes bool
	usage    bool
	index    int     // of the option that is applied
	errs     []error // each a [ginlimit.OptionError]
}

// require adds a fault of an option, or of the parameter before all, unless ok.
func (c *config) require(option string, ok bool, format string, args ...any) {
	if !ok {
		err := fmt.Errorf("%w: top: %s", ginlimit.ErrInvalidArgument, fmt.Sprintf(format, args...))
		c.errs = append(c.errs, &ginlimit.OptionError{Index: c.index, Option: option, Err: err})
	}
}

// WithPrefix sets the prefix of keys in Redis. It has to be the limiter's, by default [ginlimit.DefaultPrefix].
func WithPrefix(s string) Option {
	return func(c *config) {
		c.require("WithPrefix", !strings.ContainsAny(s, "{}"), "WithPrefix(%q): braces are reserved for the hash tag", s)
		c.prefix = s
	}
}

// WithKeySecret reports clients' keys as HMACs. It takes the secret of [ginlimit.WithKeySecret], at least 16
// bytes: then a client is known by the same text as in the limiter's keys.
func WithKeySecret(secret []byte) Option {
	secret = slices.Clone(secret)
	return func(c *config) {
		c.require("WithKeySecret", len(secret) >= 16, "WithKeySecret: %d bytes; want at least 16", len(secret))
		c.secret = secret
	}
}

// WithInterval sets the time between two reports of a process, a second to a minute. The default is
// [DefaultInterval]. A process that is killed loses what it counted since its last report.
func WithInterval(d time.Duration) Option {
	return func(c *config) {
		c.require("WithInterval", time.Second <= d && d <= time.Minute, "WithInterval(%s): want 1s to 1m", d)
		c.interval = d
	}
}

// WithLogger sets where warnings go, by default [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		c.require("WithLogger", l != nil, "WithLogger: the logger is nil")
		c.logger = l
	}
}

// WithOutcomes counts decisions that are no denials too, for [Minutes]. Without it they cost one comparison.
func WithOutcomes() Option { return func(c *config) { c.outcomes = true } }

// WithUsage counts the tokens that clients take, for [Used], whatever their requests cost.
func WithUsage() Option { return func(c *config) { c.usage = true } }
