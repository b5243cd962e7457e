package ginlimit

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// DefaultPrefix begins every key in Redis.
const DefaultPrefix = "ginlimit"

// Option sets up a [Limiter] or one of its handlers. A nil Option is a fault.
type Option func(*config)

// config is what options fill.
type config struct {
	prefix string
	logger *slog.Logger

	name    string
	key     KeyFunc
	limits  []Limit
	denied  func(*gin.Context, Result)
	failed  func(*gin.Context, error)
	faults  []error
	limiter []string // the options used that only a limiter has
}

// newConfig returns the defaults with opts on top, and every fault in them.
func newConfig(opts []Option) (config, []error) {
	return config{
		prefix: DefaultPrefix,
		logger: slog.Default(),
		key:    ByClientIP,
		denied: answerDenied,
		failed: answerError,
	}.with(opts)
}

// with returns the configuration with opts on top, and every fault in them.
func (c config) with(opts []Option) (config, []error) {
	c.faults, c.limiter = nil, nil
	for i, opt := range opts {
		if opt == nil {
			c.fault("option %d is nil", i+1)
			continue
		}
		opt(&c)
	}
	return c, c.faults
}

func (c *config) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("ginlimit: "+format, args...))
}

// WithPrefix sets what every key in Redis begins with; "" for nothing. The default is [DefaultPrefix].
//
// It is an option of a limiter. Braces are an error: they would put all keys into one slot of a cluster.
func WithPrefix(s string) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithPrefix")
		if strings.ContainsAny(s, "{}") {
			c.fault("WithPrefix(%q): braces are kept for the slot tag", s)
		}
		c.prefix = s
	}
}

// WithLogger sets where warnings go. The default is what [slog.Default] is when the limiter is made. It
// is an option of a limiter.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithLogger")
		if l == nil {
			c.fault("WithLogger: the logger is nil")
		}
		c.logger = l
	}
}

// WithName names a handler. Handlers of one limiter that have the same name and a limit of the same
// period share buckets; those with different names never do.
//
// The default is the text of the handler's limits, so that equal limits share and different ones do
// not. A name also keeps the buckets when the limit is changed.
func WithName(s string) Option {
	return func(c *config) {
		if s == "" {
			c.fault("WithName: the name is empty")
		}
		c.name = s
	}
}

// WithKey sets whom a handler counts for. The default is [ByClientIP].
func WithKey(f KeyFunc) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithKey: the function is nil")
		}
		c.key = f
	}
}

// WithLimits adds limits, each of another period than the handler's first. All must allow a request.
func WithLimits(more ...Limit) Option {
	return func(c *config) { c.limits = slices.Clone(more) }
}

// WithDeniedHandler sets who answers a refused request. The default is 429 with a problem+json body.
//
// The status 429 and the headers are set before, and the request is aborted, whatever f does.
func WithDeniedHandler(f func(*gin.Context, Result)) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithDeniedHandler: the function is nil")
		}
		c.denied = f
	}
}

// WithErrorHandler sets who answers when no decision was made.
//
// The default adds the error to the context's Errors and answers 503 if it is [ErrUnavailable] or the
// end of the request's context, else 500. A request that f neither aborts, nor answers, nor gives
// another status, goes on, unlimited. The error's text is not for clients.
func WithErrorHandler(f func(*gin.Context, error)) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithErrorHandler: the function is nil")
		}
		c.failed = f
	}
}

// validate reports every fault of a handler's configuration, and returns its rules and its name.
func (c *config) validate(limit Limit) (rules, string, error) {
	faults := c.faults
	for _, option := range c.limiter {
		faults = append(faults, fmt.Errorf("ginlimit: %s is an option of the limiter, not of one handler", option))
	}
	limits := append([]Limit{limit}, c.limits...)
	r, err := newRules(limits...)
	name := c.name
	if name == "" {
		name = rulesName(limits)
	}
	return r, name, errors.Join(append(faults, err)...)
}

// rulesName returns the text that equal sets of limits share.
func rulesName(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		if l.Burst == l.Rate {
			l.Burst = 0
		}
		texts[i] = l.String()
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}
