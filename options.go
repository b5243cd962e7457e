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
	observer func(context.Context, Event)

	name       string
	key        KeyFunc
	keyed      bool // by WithKey
	limits     []Limit
	limit      func(*gin.Context, string) (Limit, error)
	identities []identityOption
	cost       func(*gin.Context) int
	refund     func(*gin.Context) bool
	skip       func(*gin.Context) bool
	allow      []netip.Prefix
	deny       []netip.Prefix
	dryRun     bool
	algorithm  Algorithm
	failure    Failure
	headers    Headers
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
		headers:  XRateLimit,
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
			return
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
			return
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

// WithAlgorithm sets how requests are counted. The default is [TokenBucket].
//
// For the limiter it holds for its methods too. What another algorithm has counted is left where it is. A window's
// limit has no Burst of its own.
func WithAlgorithm(a Algorithm) Option {
	return func(c *config) {
		if int(a) >= len(algorithmNames) {
			c.fault("WithAlgorithm(%d): want TokenBucket, FixedWindow or SlidingWindow", a)
			return
		}
		c.algorithm = a
	}
}

// WithKeySecret has Redis hold keys that tell nothing.
//
// Each is an HMAC-SHA256 (RFC 2104) of the client's key. All processes need the same secret; another one has
// other buckets. It is an option of a limiter. A secret of less than 16 bytes is an error.
func WithKeySecret(secret []byte) Option {
	secret = slices.Clone(secret)
	return func(c *config) {
		c.limiter = append(c.limiter, "WithKeySecret")
		if len(secret) < leastSecret {
			c.fault("WithKeySecret: %d bytes; want at least %d", len(secret), leastSecret)
		}
		c.secret = secret
	}
}

// WithObserver has f see every decision: one for each request that a handler sees, and one for each call of a method
// that takes tokens.
//
// Of [Limiter.Wait] each try is one. [Limiter.Peek], [Limiter.Refund], [Limiter.Block], [Limiter.Reset] and arguments that
// cannot be used are none. f is called in the caller's goroutine before the answer, so it must not wait, and a panic
// of it is one of the request. It is an option of a limiter.
func WithObserver(f func(context.Context, Event)) Option {
	return func(c *config) {
		c.limiter = append(c.limiter, "WithObserver")
		if f == nil {
			c.fault("WithObserver: the function is nil")
		}
		c.observer = f
	}
}
