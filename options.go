package ginlimit

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

const (
	// DefaultPrefix begins every key in Redis.
	DefaultPrefix = "ginlimit"
	// DefaultTimeout is how long a decision may take.
	DefaultTimeout = 50 * time.Millisecond
	longestTimeout = 24 * time.Hour
	leastSecret    = 16
)

// Option sets up a [Limiter] or one of its handlers. A nil Option is a fault.
type Option func(*config)

// config is what options fill.
type config struct {
	prefix   string
	logger   *slog.Logger
	timeout  time.Duration
	denials  int  // to remember
	eager    bool // to believe the first of them
	replicas int
	secret   []byte

	name       string
	key        KeyFunc
	limits     []Limit
	limit      func(*gin.Context, string) (Limit, error)
	identities []identityOption
	cost       func(*gin.Context) int
	refund     func(*gin.Context) bool
	skip       func(*gin.Context) bool
	allow      []netip.Prefix
	deny       []netip.Prefix
	dryRun     bool
	failure    Failure
	header     func(http.Header, Result)
	denied     func(*gin.Context, Result)
	failed     func(*gin.Context, error)
	faults     []error
	limiter    []string // the options used that only a limiter has
}

// newConfig returns the defaults with opts on top, and every fault in them.
func newConfig(opts []Option) (config, []error) {
	return config{
		prefix:   DefaultPrefix,
		logger:   slog.Default(),
		timeout:  DefaultTimeout,
		denials:  DefaultDenyMemory,
		replicas: 1,
		key:      ByClientIP,
		denied:   answerDenied,
		failed:   answerError,
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

// WithTimeout sets how long Redis may take for a decision. The default is [DefaultTimeout].
//
// After that [WithFailure] says what becomes of it. Up to a tenth of it may come on top. It is
// an option of a limiter. A d of zero or less is an error, and so is one above a day.
func WithTimeout(d time.Duration) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithTimeout")
		if d <= 0 || d > longestTimeout {
			c.fault("WithTimeout(%s): want more than 0 and at most %s", d, longestTimeout)
			d = DefaultTimeout
		}
		c.timeout = d
	}
}

// WithDenyMemory sets how many refusals are remembered; 0 remembers none. The default is [DefaultDenyMemory].
//
// A client that Redis has refused is refused in this process, without a round trip, for as long as its bucket,
// draining since, has no room for what is asked, and for at most a second. So a [Limiter.Reset],
// [Limiter.Refund] or larger limit elsewhere shows within that time, one of this limiter at once. The number is
// rounded up to a power of two, at least four. A full memory forgets the oldest refusal of a few.
//
// Time is that of this process. By default the memory therefore refuses nobody until it has seen a bucket
// drain at that pace, so that a Redis whose clock a test sets is asked every time. With WithDenyMemory it
// believes the first refusal.
//
// It is an option of a limiter. Below 0 is an error, and so is more than 4,194,304.
func WithDenyMemory(entries int) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithDenyMemory")
		if entries < 0 {
			c.fault("WithDenyMemory(%d): want 0 or more", entries)
		}
		if entries > maxDenials {
			c.fault("WithDenyMemory(%d): want at most %d", entries, maxDenials)
		}
		c.denials, c.eager = entries, true
	}
}

// WithReplicas sets how many processes share the limits without Redis. The default is 1.
//
// With [FailLocal], each has its part of every Rate and Burst, rounded down, but at least 1, for decisions that
// Redis does not make. It is an option of a limiter. An n below 1 is an error.
func WithReplicas(n int) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithReplicas")
		if n < 1 {
			c.fault("WithReplicas(%d): want at least 1", n)
			n = 1
		}
		c.replicas = n
	}
}

// WithFailure sets what becomes of decisions that Redis does not make. The default is [FailLocal].
//
// For the limiter it holds for its methods too. A limiter of [NewLocal] has no Redis to lose.
func WithFailure(f Failure) Option {
	return func(c *config) {
		if f > FailClosed {
			c.fault("WithFailure(%d): want FailLocal, FailOpen or FailClosed", f)
		}
		c.failure = f
	}
}

// WithKeySecret has Redis hold keys that tell nothing.
//
// Each is an HMAC-SHA256 (RFC 2104) of the client's key. All processes need the same secret; another one has
// other buckets. It is an option of a limiter. A secret of less than 16 bytes is an error.
func WithKeySecret(secret []byte) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithKeySecret")
		if len(secret) < leastSecret {
			c.fault("WithKeySecret: %d bytes; want at least %d", len(secret), leastSecret)
		}
		c.secret = slices.Clone(secret)
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

// WithLimits adds limits, each of another period than the handler's first. All must allow a request. Given again, it
// replaces them.
func WithLimits(more ...Limit) Option {
	return func(c *config) { c.limits = slices.Clone(more) }
}

// WithLimitFunc sets the limit of a client, now: of its plan, say. It takes the place of the handler's first limit.
//
// f is given the client's key. Its error goes to the error handler, and so does a limit that cannot be used. The
// buckets of a client are told apart by the handler's name and by period, so a changed Rate or Burst takes
// effect at once, and what is missing from the bucket takes as long to come back as before. [Plans.Limit] is
// such a function.
func WithLimitFunc(f func(c *gin.Context, key string) (Limit, error)) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithLimitFunc: the function is nil")
		}
		c.limit = f
	}
}

// WithIdentity has a request counted for somebody else besides.
//
// That is for an API key as well as for its address, say, or for all clients together. It may be given several
// times, each with another name.
//
// All identities must allow a request, and one that is refused costs none of them anything. Where all of Redis is
// one server, one script decides. On a cluster and in the process the handler's own key is asked first, then each
// identity in the order in which they are given, and what was taken is given back if a later one refuses. The headers
// tell of the one closest to exhaustion. The name is that of [Key].
func WithIdentity(name string, f KeyFunc, limits ...Limit) Option {
	return func(c *config) {
		if name == "" {
			c.fault("WithIdentity: the name is empty")
		}
		if f == nil {
			c.fault("WithIdentity(%q): the function is nil", name)
		}
		c.identities = append(slices.Clone(c.identities), identityOption{name, f, slices.Clone(limits)})
	}
}

// WithCost sets how many tokens a request takes. The default is 1.
//
// Of 0, a request is free: it is told what is left, and passes unless the limit prohibits, blocked or not. Below
// 0 it is an error, for the error handler. More than a limit's Burst is refused, without Retry-After.
func WithCost(f func(*gin.Context) int) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithCost: the function is nil")
		}
		c.cost = f
	}
}

// WithRefund gives a request's tokens back if f says so.
//
// So an application counts only failed logins, say. f is asked after the handlers that follow, also when one of
// them panics; then the status is 500, unless the answer has begun. No bucket is filled above full. An error of
// Redis goes to the context's Errors.
func WithRefund(f func(*gin.Context) bool) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithRefund: the function is nil")
		}
		c.refund = f
	}
}

// WithSkip lets requests pass that f picks. They are not counted, and have no headers.
func WithSkip(f func(*gin.Context) bool) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithSkip: the function is nil")
		}
		c.skip = f
	}
}

// WithAllowList lets requests pass from addresses in these networks. They are not counted.
//
// The address is that of [ByClientIP], whatever the key is. An address in both lists is allowed. A prefix that is not
// valid is an error.
func WithAllowList(p ...netip.Prefix) Option {
	return func(c *config) { c.allow = slices.Clone(p) }
}

// WithDenyList answers requests from addresses in these networks with 403.
//
// The address is that of [ByClientIP], whatever the key is. For bans that come and go, prefer [Limiter.Block]. A
// prefix that is not valid is an error.
func WithDenyList(p ...netip.Prefix) Option {
	return func(c *config) { c.deny = slices.Clone(p) }
}

// WithDryRun counts, and refuses nobody: to try a limit. [FromContext] tells what it would have done.
//
// It sets no headers, and its errors go to the context's Errors only.
func WithDryRun() Option {
	return func(c *config) { c.dryRun = true }
}

// WithHeaderFunc sets further headers from a Result.
//
// f is called for a decision that the headers tell of, an unlimited one too.
func WithHeaderFunc(f func(http.Header, Result)) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithHeaderFunc: the function is nil")
		}
		c.header = f
	}
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
// The default adds the error to the context's Errors and answers 503 if it is [ErrUnavailable] or the end of the
// request's context, 400 if a header of [ByHeader] is missing, 403 if it is [ErrUnknownClient], else 500. A
// request that f neither aborts, nor answers, nor gives another status, goes on, unlimited. The error's text is
// not for clients.
func WithErrorHandler(f func(*gin.Context, error)) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithErrorHandler: the function is nil")
		}
		c.failed = f
	}
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
