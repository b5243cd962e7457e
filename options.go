package ginlimit

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/denycache"
)

const (
	DefaultPrefix  = "ginlimit"            // begins every key in Redis
	DefaultTimeout = 50 * time.Millisecond // how long a decision waits for Redis

	defaultDenials = 1 << 16 // in the deny cache
	maxTimeout     = 24 * time.Hour
	maxProcess     = 13 // letters, of 5 bits each, that name a process
	minSecret      = 16
)

// LimiterOption configures a [Limiter]; nil is an error. If an option is given twice, the last one counts;
// but [WithObserver] adds, and a second [WithAllowList], [WithDenyList] or [WithSkip] is an error.
type LimiterOption interface{ limiterOption(*config) }

// PolicyOption configures a [Policy]: a [Limit], [WithLimits], or an [Option].
type PolicyOption interface{ policyOption(*config) }

// Option configures a [Policy], or is a default of the policies of a [Limiter].
type Option interface {
	LimiterOption
	PolicyOption
}

// limiterSetting is a [LimiterOption].
type limiterSetting func(*config)

func (s limiterSetting) limiterOption(c *config) { s(c) }

// policySetting is a [PolicyOption].
type policySetting func(*config)

func (s policySetting) policyOption(c *config) { s(c) }

// setting is an [Option].
type setting func(*config)

func (s setting) limiterOption(c *config) { s(c) }
func (s setting) policyOption(c *config)  { s(c) }

// config is what options fill.
type config struct {
	limiterConfig
	countingConfig
	requestConfig
	answerConfig

	errs []error
	used []string // the options of the list, once each
}

// limiterConfig is what options of a limiter fill.
type limiterConfig struct {
	prefix    string
	logger    *slog.Logger
	timeout   time.Duration
	replicas  int // if 0, they are counted in Redis
	secret    []byte
	denials   int // in the deny cache
	observers []func(context.Context, Event)
}

// countingConfig is how a policy counts a client.
type countingConfig struct {
	limits     []Limit // of a policy, in flight among them
	limitFunc  func(context.Context, string) ([]Limit, error)
	floor      int
	queue      int           // requests of a client that wait
	queueWait  time.Duration // for how long
	banFirst   time.Duration // 0 bans nobody
	banLongest time.Duration
	failure    FailureMode
	lease      time.Duration
	shares     func(*gin.Context) (tenant string, weight int) // nil if the limits are not shared
}

// requestConfig is which requests a policy counts, and what they cost.
type requestConfig struct {
	key        KeyFunc
	keyed      bool // by WithKey
	cost       func(*gin.Context) int
	settle     func(c *gin.Context, n int) int // what a request of n tokens really took, by WithSettle
	refund     func(c *gin.Context, n int) int // the same, by WithRefund
	settleFunc func(c *gin.Context, n int) int // the one of both that the policy has
	skip       func(*gin.Context) bool
	allow      []netip.Prefix
	deny       []netip.Prefix
	dryRun     bool
}

// answerConfig is what a policy says to clients. A nil handler is the default.
type answerConfig struct {
	headers       Headers
	headerFunc    func(http.Header, []Result)
	deniedHandler func(*gin.Context, Result)
	errorHandler  func(*gin.Context, error)
}

// Headers selects the header fields that report limits.
type Headers uint8

const (
	XRateLimit     Headers = 1 << iota // X-RateLimit-Limit, -Remaining and -Reset, for the limit closest to exhaustion
	RateLimitDraft                     // RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11
	NoHeaders      Headers = 0         // none of these fields
)

// defaultTimeout is [DefaultTimeout]. Examples raise it: on a busy machine Redis would be late.
var defaultTimeout = DefaultTimeout

// newConfig returns the defaults with a limiter's options on top, and all errors in them.
func newConfig(opts []LimiterOption) (config, []error) {
	c := config{
		limiterConfig: limiterConfig{
			prefix: DefaultPrefix, logger: slog.Default(), timeout: defaultTimeout,
			denials: defaultDenials,
		},
		requestConfig: requestConfig{key: ByClientIP},
		answerConfig:  answerConfig{headers: XRateLimit},
	}
	for i, opt := range opts {
		if c.require(opt != nil, "option %d is nil", i+1) {
			opt.limiterOption(&c)
		}
	}
	if c.settle != nil && c.refund != nil {
		c.errs = append(c.errs, excluded("WithSettle", "WithRefund").err())
	}
	return c, c.errs
}

// fill applies a policy's options, and notes all errors in them.
func (c *config) fill(opts []PolicyOption) {
	c.errs, c.used = nil, nil
	for i, opt := range opts {
		limit, isPointer := opt.(*Limit)
		if c.require(opt != nil && !(isPointer && limit == nil), "option %d is nil", i+1) {
			opt.policyOption(c)
		}
	}
}

var (
	// redisOptions have no effect without Redis.
	redisOptions = []string{"WithPrefix", "WithTimeout", "WithDenyCache", "WithReplicas", "WithKeySecret",
		"WithFailureMode", "WithLease"}
	// onceOptions read as if they added to what was given before.
	onceOptions = []string{"WithAllowList", "WithDenyList", "WithSkip"}
)

// use notes that the list has an option. The same option in the list of the limiter is a default,
// which this one replaces.
func (c *config) use(option string) {
	if !slices.Contains(c.used, option) {
		c.used = append(c.used, option)
		return
	}
	c.require(!slices.Contains(onceOptions, option),
		"%s is given twice, and the second would replace the first; give it once, with all", option)
}

// require adds an error unless ok, which it returns.
func (c *config) require(ok bool, format string, args ...any) bool {
	if !ok {
		c.errs = append(c.errs, invalid(format, args...))
	}
	return ok
}

// WithPrefix sets the prefix of every key in Redis, by default [DefaultPrefix]; "" is none. Braces are an
// error: they would put all keys into one hash slot.
func WithPrefix(s string) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithPrefix")
		c.require(!strings.ContainsAny(s, "{}"), "WithPrefix(%q): braces are reserved for the hash tag", s)
		c.prefix = s
	})
}

// WithLogger sets where warnings go, by default [slog.Default].
func WithLogger(l *slog.Logger) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithLogger")
		c.require(l != nil, "WithLogger: the logger is nil")
		c.logger = l
	})
}

// WithTimeout sets how long a decision waits for Redis, and up to a tenth longer, before [WithFailureMode]
// decides: above 0, at most a day. The default is [DefaultTimeout]. A shorter timeout of the client prevails.
func WithTimeout(d time.Duration) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithTimeout")
		if c.require(0 < d && d <= maxTimeout, "WithTimeout(%s): want more than 0 and at most %s", d, maxTimeout) {
			c.timeout = d
		}
	})
}

// WithDenyCache sets how many denials are remembered, 0 to 4,194,304; the default is 65,536. After Redis has
// denied a client, this process denies it without a round trip until enough tokens are back, for at most a
// second. So a [Policy.Reset], [Policy.Refund] or larger limit takes effect within a second in other
// limiters. A test that sets Redis' clock needs WithDenyCache(0).
func WithDenyCache(entries int) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithDenyCache")
		c.require(entries >= 0, "WithDenyCache(%d): want 0 or more", entries)
		c.require(entries <= denycache.MaxEntries, "WithDenyCache(%d): want at most %d", entries, denycache.MaxEntries)
		c.denials = entries
	})
}

// WithReplicas fixes how many limiters share the limits without Redis, at least 1. By default Redis counts
// the processes that use the prefix: a new process within 2.5 s of its first decision, a dead process for up
// to 20 s more. With [FailLocal], each enforces its share of every Rate and Burst, rounded down, but at least
// 1. Limiters of one process with the same server and prefix use one share. A process that has never reached
// Redis enforces the whole limit. A limiter with a fixed n is not counted by others.
func WithReplicas(n int) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithReplicas")
		if c.require(n >= 1, "WithReplicas(%d): want at least 1", n) {
			c.replicas = n
		}
	})
}

// WithFailureMode sets who decides without Redis, by default [FailLocal].
func WithFailureMode(f FailureMode) Option {
	return setting(func(c *config) {
		c.use("WithFailureMode")
		c.require(f <= FailClosed, "WithFailureMode(%d): want FailLocal, FailOpen or FailClosed", f)
		c.failure = f
	})
}

// WithLease lets this process take tokens of a busy key ahead, and admit from them for up to d without asking
// Redis. The default is 0, none; the most is a day, but more than a second is unwise. A token bucket then
// admits less at once: it keeps what it regains in 2d, at most half of its burst, for the tokens that
// processes hold. A client that finds no tokens left is denied for about d/2. Source is [FromLease], and
// Remaining is what this process holds. docs/guide.md lists the requests without leases.
func WithLease(d time.Duration) Option {
	return setting(func(c *config) {
		c.use("WithLease")
		if c.require(0 <= d && d <= maxTimeout, "WithLease(%s): want 0 to %s", d, maxTimeout) {
			c.lease = d
		}
	})
}

// WithKeySecret stores clients' keys in Redis as HMAC-SHA256 (RFC 2104). All processes need the same secret,
// of at least 16 bytes.
func WithKeySecret(secret []byte) LimiterOption {
	secret = slices.Clone(secret)
	return limiterSetting(func(c *config) {
		c.use("WithKeySecret")
		c.require(len(secret) >= minSecret, "WithKeySecret: %d bytes; want at least %d", len(secret), minSecret)
		c.secret = secret
	})
}

// WithObserver calls f with an [Event] for each request, and for each call of a method that takes tokens.
// Several observers may be given. [AllOf] makes an Event for each policy that decided; if they deny the
// request, for each policy that denies. A [Policy.Wait] makes one Event, at its end; an invalid argument
// makes none. f runs in the caller's goroutine before the answer, so it must not wait. If f panics, so does
// the request.
func WithObserver(f func(context.Context, Event)) LimiterOption {
	return limiterSetting(func(c *config) {
		c.use("WithObserver")
		c.require(f != nil, "WithObserver: the function is nil")
		c.observers = append(slices.Clone(c.observers), f)
	})
}
