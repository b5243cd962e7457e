package ginlimit

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// The options of a handler. Given to [NewLimiter] they are the defaults of its handlers.

// WithName names a handler. Handlers of one limiter that have the same name and a limit of the same
// period share buckets; those with different names never do.
//
// The default is the text of the handler's limits, so that equal limits share and different ones do
// not; after [WithKey] it ends in " by key", as no key may be taken for an address. A name also keeps the buckets when
// the limit is changed.
func WithName(s string) Option {
	return func(c *config) {
		if s == "" {
			c.fault("WithName: the name is empty")
		}
		c.name = s
	}
}

// WithKey sets whom a handler counts for. The default is [ByClientIP].
//
// Handlers with keys of different kinds need names of their own: a header can say what another one says, too.
func WithKey(f KeyFunc) Option {
	return func(c *config) {
		if f == nil {
			c.fault("WithKey: the function is nil")
		}
		c.key, c.keyed = f, true
	}
}

// WithLimits adds limits, each of another period than the handler's first. All must allow a request. Given again, it
// replaces them.
func WithLimits(more ...Limit) Option {
	more = slices.Clone(more)
	return func(c *config) { c.limits = more }
}

// WithLimitFunc sets the limit of a client, now: of its plan, say. It takes the place of the handler's first limit.
//
// f is given the client's key. Its error goes to the error handler, and so does a limit that cannot be used. The
// buckets of a client are told apart by the handler's name, by period and algorithm, so a changed Rate or Burst
// takes effect at once (see [Limiter]). [Plans.Limit] is such a function.
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
// identity in the order in which they are given, and what was taken is given back if a later one refuses, of which
// alone Retry-After tells. The headers tell of the one closest to exhaustion. The name is that of [Key].
func WithIdentity(name string, f KeyFunc, limits ...Limit) Option {
	limits = slices.Clone(limits)
	return func(c *config) {
		if name == "" {
			c.fault("WithIdentity: the name is empty")
		}
		if f == nil {
			c.fault("WithIdentity(%q): the function is nil", name)
		}
		c.identities = append(slices.Clone(c.identities), identityOption{name, f, limits})
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
// them panics; then the status is 500, unless the answer has begun. No bucket is filled above full; but what a slow
// request gives back may have flowed back meanwhile (see [Limiter.Refund]). An error of Redis goes to the context's
// Errors.
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
// The address is that of [ByClientIP], whatever the key is, and one that cannot be read is an error. An address in both
// lists is allowed. A prefix that is not valid is an error.
func WithAllowList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return func(c *config) { c.allow = p }
}

// WithDenyList answers requests from addresses in these networks with 403.
//
// The address is that of [ByClientIP], whatever the key is, and one that cannot be read is an error. For bans that come
// and go, prefer [Limiter.Block]. A prefix that is not valid is an error.
func WithDenyList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return func(c *config) { c.deny = p }
}

// WithDryRun counts, and refuses nobody: to try a limit. [FromContext] tells what it would have done.
//
// Behind a limiter that refuses it sees only what that lets pass, so it goes before. Its buckets are those that the
// handler has without it.
//
// It sets no headers, and its errors go to the context's Errors only.
func WithDryRun() Option {
	return func(c *config) { c.dryRun = true }
}

// WithHeaders sets which fields tell of a limit: [XRateLimit], [RateLimitDraft], both, or [NoHeaders].
//
// The default is XRateLimit. A 429 has Retry-After and Cache-Control in any case.
func WithHeaders(h Headers) Option {
	return func(c *config) {
		if h&^(XRateLimit|RateLimitDraft) != 0 {
			c.fault("WithHeaders(%d): want XRateLimit, RateLimitDraft, both, or NoHeaders", h)
		}
		c.headers = h
	}
}

// WithHeaderFunc sets other headers from a Result, beside those of [WithHeaders].
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
// A request whose Accept prefers text/plain gets text. The status 429 and the headers are set before, and the
// request is aborted, whatever f does.
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
