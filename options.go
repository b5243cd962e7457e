package ginlimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/engine"
)

const (
	DefaultPrefix  = "ginlimit"            // begins every key in Redis
	DefaultTimeout = 50 * time.Millisecond // how long a decision waits for Redis

	defaultDenials = 1 << 16 // in the deny cache
	maxTimeout     = 24 * time.Hour
	maxProcess     = 13 // letters, of 5 bits each, that name a process
	minSecret      = 16
)

// LimiterOption configures a [Limiter]. Of an option given twice the last counts, but observers add
// up, and a second list or [WithSkip] is an error.
type LimiterOption interface{ limiterOption(*config) }

// PolicyOption configures a [Policy]: a [Limit], [WithLimits], or an [Option].
type PolicyOption interface{ policyOption(*config) }

// Option configures a [Policy], or is a default of the policies of a [Limiter].
type Option interface {
	LimiterOption
	PolicyOption
}

// setting is an [Option] with its name, by which options exclude and replace each other.
type setting struct {
	name string
	fill func(*config)
}

func (s setting) policyOption(c *config) { c.apply(s) }

func (s setting) limiterOption(c *config) {
	c.apply(s)
	c.defaults = append(c.defaults, s)
}

// onceSetting is an [Option] that reads as if it added to what was given before.
type onceSetting setting

func (s onceSetting) policyOption(c *config) {
	c.requireOnce(s.name)
	setting(s).policyOption(c)
}

func (s onceSetting) limiterOption(c *config) {
	c.requireOnce(s.name)
	setting(s).limiterOption(c)
}

// limiterSetting is a [LimiterOption].
type limiterSetting setting

func (s limiterSetting) limiterOption(c *config) { c.apply(setting(s)) }

// policySetting is a [PolicyOption].
type policySetting setting

func (s policySetting) policyOption(c *config) { c.apply(setting(s)) }

// config is what the options of one list fill.
type config struct {
	limiterConfig
	policyConfig
	defaults []setting // of a limiter: the options of its policies
	errs     []error   // each an [OptionError]

	index    int            // of the option that is applied
	option   string         // its name
	at       map[string]int // where the options of the list stand, of the same ones the last
	limitsAt []OptionError  // where the limits stand
}

// limiterConfig is what options of a limiter fill.
type limiterConfig struct {
	prefix    string
	logger    *slog.Logger
	timeout   time.Duration
	replicas  int // if 0, they are counted in Redis
	secret    []byte
	denials   int // in the deny cache
	observers []observer

	ignoresOverrides bool
}

// policyConfig is what options of a policy fill.
type policyConfig struct {
	key     KeyFunc // nil is [ByClientIP]
	exempts exemptConfig
	asks    askConfig
	counts  countConfig
	answers answerConfig
	dryRun  bool
	used    []string // the options of the list, once each
}

// exemptConfig is which requests a policy does not count.
type exemptConfig struct {
	skip    func(*gin.Context) bool
	allowed clientkey.Networks
	denied  clientkey.Networks
}

// any reports whether there are such requests.
func (e *exemptConfig) any() bool {
	return e.skip != nil || !e.allowed.IsEmpty() || !e.denied.IsEmpty()
}

// askConfig is what a request asks of a policy's buckets. A nil function is the default.
type askConfig struct {
	cost    func(*gin.Context) int
	settle  func(c *gin.Context, n int) int // what a request of n tokens really took
	queue   engine.Queue
	failure FailureMode
}

// countConfig is what a policy counts of a client.
type countConfig struct {
	limits     []Limit // in flight among them
	limitFunc  func(context.Context, string) ([]Limit, error)
	shares     func(*gin.Context) (tenant string, weight int) // nil if the limits are not shared
	floor      int
	ban        *bucket.Bucket // nil bans nobody
	lease      time.Duration
	fewerSlots bool // than a client has otherwise, by With
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

// FailureMode chooses who decides when Redis does not, or not in time.
type FailureMode uint8

const (
	FailLocal  FailureMode = iota // this process, by buckets of its own for its share of each limit (see [WithReplicas])
	FailOpen                      // nobody: everything is allowed, also what is blocked
	FailClosed                    // nobody: the error is ErrUnavailable, and the response 503
)

// String returns the mode in one word, or "unknown".
func (f FailureMode) String() string {
	names := [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}
	if int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}

// redisOptions have no effect without Redis.
var redisOptions = []string{"WithPrefix", "WithTimeout", "WithDenyCache", "WithReplicas", "WithKeySecret",
	"WithFailureMode", "WithLease"}

// apply applies an option, and notes all errors in it. The same option in the list of the limiter is a
// default, which this one replaces.
func (c *config) apply(s setting) {
	c.place(s.name)
	if !slices.Contains(c.used, s.name) {
		c.used = append(c.used, s.name)
	}
	s.fill(c)
}

// place notes that the option that is applied has a name.
func (c *config) place(option string) {
	if c.at == nil {
		c.at = map[string]int{}
	}
	c.option, c.at[option] = option, c.index
}

// require adds an error of the option that is applied unless ok, which it returns.
func (c *config) require(ok bool, format string, args ...any) bool {
	return c.requireOf(c.option, ok, format, args...)
}

// requireOnce adds an error if the list has the option already.
func (c *config) requireOnce(option string) {
	c.place(option)
	c.require(!slices.Contains(c.used, option),
		"%s is given twice, and the second would replace the first; give it once, with all", option)
}

// requireOf is require of an option by its name, or of another parameter.
func (c *config) requireOf(option string, ok bool, format string, args ...any) bool {
	if !ok {
		c.addFault(option, invalid(format, args...))
	}
	return ok
}

// requireOption is require of an option that is not nil.
func (c *config) requireOption(index int, ok bool) bool {
	if c.index = index; !ok {
		c.errs = append(c.errs, &OptionError{Index: index, Err: invalid("option %d is nil", index+1)})
	}
	return ok
}

// addFault adds an error of an option, or of another parameter.
func (c *config) addFault(option string, err error) {
	index, ok := c.at[option]
	if !ok {
		index = -1
	}
	c.errs = append(c.errs, &OptionError{index, option, err})
}

// addLimits adds limits that an option of the list has.
func (c *config) addLimits(option string, limits ...Limit) {
	for range limits {
		c.limitsAt = append(c.limitsAt, OptionError{Index: c.index, Option: option})
	}
	c.counts.limits = append(c.counts.limits, limits...)
}

// addLimitFaults adds what newLimitSet reports of the list's limits.
func (c *config) addLimitFaults(err error) {
	for _, err := range faultsIn(err) {
		fault := OptionError{Index: -1, Option: "Limit", Err: err}
		if of := (*limitError)(nil); errors.As(err, &of) {
			fault.Index, fault.Option = c.limitsAt[of.index].Index, c.limitsAt[of.index].Option
		}
		c.errs = append(c.errs, &fault)
	}
}

// WithPrefix sets the prefix of every key in Redis, by default [DefaultPrefix].
func WithPrefix(s string) LimiterOption {
	return limiterSetting{"WithPrefix", func(c *config) {
		c.require(!strings.ContainsAny(s, "{}"), "WithPrefix(%q): braces are reserved for the hash tag", s)
		c.prefix = s
	}}
}

// WithLogger sets where warnings go, by default [slog.Default].
func WithLogger(l *slog.Logger) LimiterOption {
	return limiterSetting{"WithLogger", func(c *config) {
		c.require(l != nil, "WithLogger: the logger is nil")
		c.logger = l
	}}
}

// WithTimeout sets how long a decision waits for Redis, and up to a tenth longer, before
// [WithFailureMode] decides: above 0, at most a day.
func WithTimeout(d time.Duration) LimiterOption {
	return limiterSetting{"WithTimeout", func(c *config) {
		if c.require(0 < d && d <= maxTimeout, "WithTimeout(%s): want more than 0 and at most %s", d, maxTimeout) {
			c.timeout = d
		}
	}}
}

// WithDenyCache sets how many denials are remembered, 0 to 4,194,304, by default 65,536: Redis'
// denials are repeated without it for at most a second. A reset, a refund or a larger limit may
// reach other limiters as late. It is experimental: its numbers and details may change in a minor
// version.
func WithDenyCache(entries int) LimiterOption {
	return limiterSetting{"WithDenyCache", func(c *config) {
		c.require(entries >= 0, "WithDenyCache(%d): want 0 or more", entries)
		c.require(entries <= denycache.MaxEntries, "WithDenyCache(%d): want at most %d", entries, denycache.MaxEntries)
		c.denials = entries
	}}
}

// WithReplicas fixes how many limiters, at least 1, share the limits without Redis (see
// [FailLocal]). By default Redis counts the processes that use the prefix, but not those with a
// fixed number. It is experimental: its numbers and details may change in a minor version.
func WithReplicas(n int) LimiterOption {
	return limiterSetting{"WithReplicas", func(c *config) {
		if c.require(n >= 1, "WithReplicas(%d): want at least 1", n) {
			c.replicas = n
		}
	}}
}

// WithoutOverrides ignores overrides, whoever may write them to Redis.
func WithoutOverrides() LimiterOption {
	return limiterSetting{"WithoutOverrides", func(c *config) { c.ignoresOverrides = true }}
}

// WithFailureMode sets who decides without Redis, by default [FailLocal].
func WithFailureMode(f FailureMode) Option {
	return setting{"WithFailureMode", func(c *config) {
		c.require(f <= FailClosed, "WithFailureMode(%d): want FailLocal, FailOpen or FailClosed", f)
		c.asks.failure = f
	}}
}

// WithLease lets this process take tokens of a busy key ahead, and admit from them for up to d, by
// default 0, without asking Redis; more than a second is unwise. A token bucket then admits less at
// once, and a client without tokens is denied for about d/2: see docs/guide.md. It is experimental:
// its numbers and details may change in a minor version.
func WithLease(d time.Duration) Option {
	return setting{"WithLease", func(c *config) {
		if c.require(0 <= d && d <= maxTimeout, "WithLease(%s): want 0 to %s", d, maxTimeout) {
			c.counts.lease = d
		}
	}}
}

// WithShares lets tenants share the limit of a policy fairly, such as what an upstream allows. The
// policy's [KeyFunc] returns what is shared; f returns the request's tenant and its weight, 1
// normally and at most 1,000; others go to the error handler.
//
// A tenant alone may use the whole rate. If tenants ask for more, each gets a share of the rate in
// proportion to its weight. A tenant below its share is not denied because of others, if Burst is
// eight times the usual cost for each busy tenant. The policy has one token bucket and nothing
// else: see [AllOf], and docs/fair.md.
func WithShares(f func(c *gin.Context) (tenant string, weight int)) PolicyOption {
	return policySetting{"WithShares", func(c *config) {
		c.require(f != nil, "WithShares: the function is nil")
		c.counts.shares = f
	}}
}

// WithKeySecret stores clients' keys in Redis as HMAC-SHA256 (RFC 2104), with a secret of at least
// 16 bytes that all processes share.
func WithKeySecret(secret []byte) LimiterOption {
	secret = slices.Clone(secret)
	return limiterSetting{"WithKeySecret", func(c *config) {
		c.require(len(secret) >= minSecret, "WithKeySecret: %d bytes; want at least %d", len(secret), minSecret)
		c.secret = secret
	}}
}

// WithObserver calls f with an [Event] for each request, and for each call of a method that takes
// tokens; [AllOf] makes one for each policy that decided or, if they deny, for each that denies. A
// settlement makes one of [OutcomeSettled], which no metric should count as a decision. f must not
// wait: it runs in the caller's goroutine, if that has not left. Observers add up.
func WithObserver(f func(context.Context, Event)) LimiterOption {
	return limiterSetting{"WithObserver", func(c *config) {
		c.require(f != nil, "WithObserver: the function is nil")
		c.observers = append(slices.Clone(c.observers), func(ctx context.Context, e Event, _ string) { f(ctx, e) })
	}}
}

// WithClientObserver is [WithObserver] and also gets the client's key, as the [KeyFunc] returned
// it. It may be personal data; no Event has it.
func WithClientObserver(f func(ctx context.Context, e Event, client string)) LimiterOption {
	return limiterSetting{"WithClientObserver", func(c *config) {
		c.require(f != nil, "WithClientObserver: the function is nil")
		c.observers = append(slices.Clone(c.observers), f)
	}}
}
