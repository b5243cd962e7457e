package ginlimit

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/memory"
)

const (
	// DefaultPrefix begins every key in Redis.
	DefaultPrefix = "ginlimit"
	// DefaultTimeout is how long a decision may take.
	DefaultTimeout = 50 * time.Millisecond
	// LocalBuckets is how many buckets and windows this process remembers at most, of all
	// algorithms together. What was given back of a bucket lately takes the place of another one.
	LocalBuckets = memory.MaxBuckets
	// DefaultDenyMemory is how many denials a limiter remembers at most.
	DefaultDenyMemory = 1 << 16
	maxTimeout        = 24 * time.Hour
	maxProcess        = 13 // letters, of 5 bits each, that name a process
	minSecret         = 16
)

// Option configures a [Limiter] or a [Policy]. A nil Option is an error.
//
// If an option is given twice in a list, the last one counts, so that a helper may append to what
// it is given. [WithIdentity] and [WithObserver] add. WithLimits, WithAllowList, WithDenyList and
// WithSkip read as if they added, and are errors the second time.
type Option func(*config)

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
	prefix      string
	logger      *slog.Logger
	timeout     time.Duration
	replicas    int
	secret      []byte
	denyEntries int  // denials to remember
	trustClock  bool // Redis' clock, from the start
	observers   []func(context.Context, Event)
}

// countingConfig is how a policy counts a client.
type countingConfig struct {
	name       string
	limits     []Limit
	limitFunc  func(context.Context, string) ([]Limit, error)
	floor      int
	slots      int           // for requests in flight; 0 is any number
	queue      int           // requests that wait for a slot
	queueWait  time.Duration // for how long
	banFirst   time.Duration // 0 bans nobody
	banLongest time.Duration
	algorithm  Algorithm
	failure    Failure
	lease      time.Duration
}

// requestConfig is which requests a policy counts, and what they cost.
type requestConfig struct {
	key        KeyFunc
	keyed      bool // by WithKey
	identities []identityOption
	cost       func(*gin.Context) int
	settleFunc func(c *gin.Context, n int) int // what a request of n tokens really took
	skip       func(*gin.Context) bool
	allow      []netip.Prefix
	deny       []netip.Prefix
	dryRun     bool
}

// answerConfig is what a policy says to clients. A nil handler is the default.
type answerConfig struct {
	headers       Headers
	headerFunc    func(http.Header, Result)
	deniedHandler func(*gin.Context, Result)
	errorHandler  func(*gin.Context, error)
}

// Headers selects the header fields that report limits.
type Headers uint8

const (
	// XRateLimit sets X-RateLimit-Limit, -Remaining and -Reset, for the limit closest to
	// exhaustion.
	XRateLimit Headers = 1 << iota
	// RateLimitDraft sets RateLimit-Policy and RateLimit, for every limit.
	//
	// They are the fields of draft-ietf-httpapi-ratelimit-headers-11: q tokens may be taken in w
	// seconds, r are left, and there are more in t seconds. In a denial only the limits that deny
	// have t. A limit is named after its policy or identity, followed by the period if there are
	// several limits; without a name, its text is the name. A hyphen replaces what a name cannot
	// contain. If two limits of a response have the same name, the later one ends in -2, -3 and so
	// on.
	RateLimitDraft
	// NoHeaders sets none of these fields.
	NoHeaders Headers = 0
)

// identityOption is what [WithIdentity] was given.
type identityOption struct {
	name   string
	key    KeyFunc
	limits []Limit
}

// defaultTimeout is [DefaultTimeout]. Examples raise it: on a busy machine Redis would be late.
var defaultTimeout = DefaultTimeout

// newConfig returns the defaults with opts on top, and all errors in them.
func newConfig(opts []Option) (config, []error) {
	return config{
		limiterConfig: limiterConfig{
			prefix: DefaultPrefix, logger: slog.Default(), timeout: defaultTimeout, denyEntries: DefaultDenyMemory, replicas: 1,
		},
		requestConfig: requestConfig{key: ByClientIP},
		answerConfig:  answerConfig{headers: XRateLimit},
	}.with(opts)
}

// with returns the configuration with opts on top, and all errors in them.
func (c config) with(opts []Option) (config, []error) {
	c.errs, c.used = nil, nil
	for i, opt := range opts {
		if c.require(opt != nil, "option %d is nil", i+1) {
			opt(&c)
		}
	}
	c.require(!slices.Contains(c.used, "WithRefund") || !slices.Contains(c.used, "WithSettle"),
		"WithRefund and WithSettle do not go together: only one of them can settle a request")
	return c, c.errs
}

// The options that count in some places only, and those that read as if they added to what was
// given before.
var (
	limiterOptions = []string{"WithPrefix", "WithLogger", "WithTimeout", "WithDenyMemory", "WithReplicas",
		"WithKeySecret", "WithObserver"}
	redisOptions = []string{"WithPrefix", "WithTimeout", "WithDenyMemory", "WithReplicas", "WithKeySecret",
		"WithFailure", "WithLease"}
	plansOptions = []string{"WithPrefix", "WithName", "WithTimeout", "WithKeySecret", "WithLogger"}
	onceOptions  = []string{"WithLimits", "WithAllowList", "WithDenyList", "WithSkip"}
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

// misused returns an error for each option of the list that is, or is not, among some.
func (c *config) misused(some []string, among bool, format string) (errs []error) {
	for _, option := range c.used {
		if slices.Contains(some, option) == among {
			errs = append(errs, fmt.Errorf("ginlimit: "+format, option))
		}
	}
	return errs
}

// require adds an error unless ok, which it returns.
func (c *config) require(ok bool, format string, args ...any) bool {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("ginlimit: "+format, args...))
	}
	return ok
}

// WithPrefix sets the prefix of every key in Redis; "" is none. The default is [DefaultPrefix].
//
// It is an option of a limiter. Braces are an error: they would put all keys into one slot of a
// cluster.
func WithPrefix(s string) Option {
	return func(c *config) {
		c.use("WithPrefix")
		c.require(!strings.ContainsAny(s, "{}"), "WithPrefix(%q): braces are reserved for the slot tag", s)
		c.prefix = s
	}
}

// WithLogger sets where warnings go. The default is [slog.Default] when the limiter is made.
// It is an option of a limiter.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		c.use("WithLogger")
		c.require(l != nil, "WithLogger: the logger is nil")
		c.logger = l
	}
}

// WithTimeout sets how long a decision waits for Redis. The default is [DefaultTimeout].
//
// It may wait up to a tenth longer. After that, [WithFailure] decides. A shorter ReadTimeout or
// WriteTimeout of the client ends the wait earlier. It is an option of a limiter. A d of zero or
// less is an error, and so is one above a day.
func WithTimeout(d time.Duration) Option {
	return func(c *config) {
		c.use("WithTimeout")
		if c.require(0 < d && d <= maxTimeout, "WithTimeout(%s): want more than 0 and at most %s", d, maxTimeout) {
			c.timeout = d
		}
	}
}

// WithDenyMemory sets how many denials are remembered; 0 remembers none. The default is
// [DefaultDenyMemory].
//
// After Redis refused a client, this process refuses it without a round trip until its bucket has
// refilled enough, for at most a second. So a [Limiter.Reset], [Limiter.Refund] or larger limit
// takes effect at once in the limiter that makes it, and within a second in others. The number is
// rounded up to a power of two, at least four. When the memory is full, a new denial replaces the
// oldest of a few.
//
// The time is this process' clock. By default the memory denies no client until some buckets were
// seen to drain by themselves, so it does not disturb tests that set Redis' clock. With
// WithDenyMemory it uses the first denial.
//
// It is an option of a limiter. Below 0 is an error, and so is more than 4,194,304.
func WithDenyMemory(entries int) Option {
	return func(c *config) {
		c.use("WithDenyMemory")
		c.require(entries >= 0, "WithDenyMemory(%d): want 0 or more", entries)
		c.require(entries <= denycache.MaxEntries, "WithDenyMemory(%d): want at most %d", entries, denycache.MaxEntries)
		c.denyEntries, c.trustClock = entries, true
	}
}

// WithReplicas sets how many processes share the limits without Redis. The default is 1.
//
// With [FailLocal], each process uses its share of every Rate and Burst, rounded down but at least
// 1, for decisions that Redis does not make. It is an option of a limiter. An n below 1 is an
// error.
func WithReplicas(n int) Option {
	return func(c *config) {
		c.use("WithReplicas")
		if c.require(n >= 1, "WithReplicas(%d): want at least 1", n) {
			c.replicas = n
		}
	}
}

// WithFailure sets how requests are decided without Redis. The default is [FailLocal].
//
// Given to a limiter, it applies to the limiter's methods too. [NewLocal] does not take it.
func WithFailure(f Failure) Option {
	return func(c *config) {
		c.use("WithFailure")
		c.require(f <= FailClosed, "WithFailure(%d): want FailLocal, FailOpen or FailClosed", f)
		c.failure = f
	}
}

// WithAlgorithm sets how requests are counted. The default is [TokenBucket].
//
// Given to a limiter, it applies to the limiter's methods too. Each algorithm has its own buckets
// and does not see what another has counted. For windows, a Burst other than the Rate is an error.
func WithAlgorithm(a Algorithm) Option {
	return func(c *config) {
		c.use("WithAlgorithm")
		if c.require(a <= SlidingWindow, "WithAlgorithm(%d): want TokenBucket, FixedWindow or SlidingWindow", a) {
			c.algorithm = a
		}
	}
}

// WithLease lets this process take tokens ahead of their use, and admit from them without asking
// Redis. The default is 0, which takes none.
//
// A decision that goes to Redis also takes ahead what this process used of the key
// within the last d: at most what comes back within d, and at most half of what was left when
// it last asked. So a key that is asked about often needs few calls to Redis. No more is admitted
// than without leases: tokens that have flowed back into the bucket meanwhile are not used. Leases
// save most where a key is used at a good part of its rate; in a bucket that is nearly full they do
// not last. They are not for limits above some ten thousand per second: ages are rounded up to a
// millisecond, in which such a bucket regains what was leased, so that it is charged for nothing.
//
// A lease ends d after the last decision by Redis. A [Limiter.Block], Reset or Refund takes effect
// at once in the limiter that makes it, and within d in others: for that long, others may admit as
// many more as were given back. What a process has leased and does not use is missing to others: at
// most what comes back within d. [Limiter.Close] gives it back.
//
// Result.Source is [FromLease], and Remaining is what is left of the lease. A decision by Redis
// counts what it leases as left. A call for more tokens than the lease holds takes all of them from
// Redis, and is denied if Redis has fewer, whatever the lease holds.
//
// The time is this process' clock. By default there is no lease until a bucket was seen to drain
// for 3 ms at the pace of that clock, or eight times for a part of it, as others take from it or it
// is full again: so tests may set Redis' clock. With [WithDenyMemory] there are leases from the
// start. If Redis is lost, so are the leased tokens.
//
// Given to a limiter, it applies to the limiter's methods too. Limits that are calendar quotas
// beside others have no leases: what flows back into a bucket would be lost to the quota. Nor have
// what may be given back, a [Reservation] and a policy with [WithRefund] or [WithSettle], a policy
// with [WithConcurrency] or [WithBan], requests with a [WithIdentity], and policies of a limiter of
// [NewLocal]. A Reservation leaves the lease of its key as it is. With a [SlidingWindow] it is an
// error, and so is a d below 0 or above a day.
func WithLease(d time.Duration) Option {
	return func(c *config) {
		c.use("WithLease")
		if c.require(0 <= d && d <= maxTimeout, "WithLease(%s): want 0 to %s", d, maxTimeout) {
			c.lease = d
		}
	}
}

// WithKeySecret hides the clients' keys from whoever reads Redis: each is stored as its HMAC-SHA256
// (RFC 2104).
//
// All processes need the same secret; another secret means other buckets. It is an option of a
// limiter. A secret of less than 16 bytes is an error.
func WithKeySecret(secret []byte) Option {
	secret = slices.Clone(secret)
	return func(c *config) {
		c.use("WithKeySecret")
		c.require(len(secret) >= minSecret, "WithKeySecret: %d bytes; want at least %d", len(secret), minSecret)
		c.secret = secret
	}
}

// WithObserver calls f with an [Event] for each request and for each call of a method that takes
// tokens.
//
// A [Limiter.Wait] is one Event, when it ends: Duration is the whole wait and Outcome describes the
// last try, or [OutcomeError] if the context ends, or its deadline is too near, before there is a
// token. [Limiter.Peek], [Limiter.Refund], [Limiter.Block], [Limiter.Reset] and invalid arguments
// are no Event. f is called in the caller's goroutine before the answer, so f must not wait, and if
// f panics, the request does. Given again, it adds an observer. It is an option of a limiter.
func WithObserver(f func(context.Context, Event)) Option {
	return func(c *config) {
		c.use("WithObserver")
		c.require(f != nil, "WithObserver: the function is nil")
		c.observers = append(slices.Clone(c.observers), f)
	}
}
