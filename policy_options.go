package ginlimit

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
)

const (
	maxBan = 100 * 365 * day
)

// The options of a policy. Given to [NewLimiter] they are the defaults of its policies.

// WithKey sets the function that returns a request's key. The default is [ByClientIP].
//
// Policies with different keys need different names: two headers can have the same value. If an
// earlier policy of the name has a function of another source line, that is an error: two
// of [ByHeader] are not told apart.
func WithKey(f KeyFunc) Option {
	return setting(func(c *config) {
		c.use("WithKey")
		c.require(f != nil, "WithKey: the function is nil")
		c.key, c.keyed = f, true
	})
}

// policyOption adds the limit to a policy's.
func (l Limit) policyOption(c *config) { c.limits = append(c.limits, l) }

// WithLimits adds limits to a policy, as if each were an option.
func WithLimits(limits ...Limit) PolicyOption {
	limits = slices.Clone(limits)
	return policySetting(func(c *config) { c.limits = append(c.limits, limits...) })
}

// WithLimitFunc sets a function that returns the limits of a client, for example of its plan.
//
// f returns all limits of the client, at least one. The policy itself has none but [InFlight], which
// is for clients whose limits have none. If a client's InFlight becomes less, requests in flight go
// on. client is what the [KeyFunc] returned; ctx is the request's context for a request, else the
// method's. An error of f, no limit and an invalid limit go to the error handler. A changed Rate or
// Burst takes effect at once and keeps the buckets (see [Limiter.Policy]). [Plans.Limits] is such a
// function. A policy with a Limit of its own has no default of the limiter.
func WithLimitFunc(f func(ctx context.Context, client string) ([]Limit, error)) Option {
	return setting(func(c *config) {
		c.use("WithLimitFunc")
		c.require(f != nil, "WithLimitFunc: the function is nil")
		c.limitFunc = f
	})
}

// WithCost sets how many tokens a request takes. The default is 1.
//
// A cost of 0 takes nothing: headers are set and the request passes, blocked or not, unless the
// limit prohibits. A cost below 0 goes to the error handler. A cost above a limit's Burst is denied
// without Retry-After, and the body says that retrying will not help.
func WithCost(f func(*gin.Context) int) Option {
	return setting(func(c *config) {
		c.use("WithCost")
		c.require(f != nil, "WithCost: the function is nil")
		c.cost = f
	})
}

// WithRefund gives a request's tokens back if f returns true, so an application can count failed
// logins only.
//
// f is called after the handlers that follow, also if one of them panics; then the status is 500,
// unless the response has begun. What has flowed back meanwhile is not given back again, nothing is
// after a [Policy.Reset], and nothing that other requests took. An error of Redis
// goes to the context's Errors. It does not go together with [WithSettle].
func WithRefund(f func(*gin.Context) bool) Option {
	return setting(func(c *config) {
		c.use("WithRefund")
		if c.require(f != nil, "WithRefund: the function is nil") {
			c.settleFunc = func(c *gin.Context, n int) int {
				if f(c) {
					return 0
				}
				return n
			}
		}
	})
}

// WithSettle sets what a request really took, known only after it was served: tokens, at least 0.
//
// The request takes its cost first (see [WithCost]), as an estimate. f is called after the handlers
// that follow, also if one of them panics or the client is gone; then the status of a panic is 500,
// unless the response has begun. If the request took less, the rest is given back; if it took more,
// the difference is charged, into debt if it must: see [Reservation.Settle]. A negative number and
// an error of Redis go to the context's Errors and change nothing. [WithRefund] is the special case
// of all or nothing: a policy takes one of them, and both in one list of options are an error.
func WithSettle(f func(*gin.Context) int) Option {
	return setting(func(c *config) {
		c.use("WithSettle")
		if c.require(f != nil, "WithSettle: the function is nil") {
			c.settleFunc = func(c *gin.Context, _ int) int { return f(c) }
		}
	})
}

// WithFloor leaves tokens of each limit for other policies of the same name; the default is 0.
//
// So batch jobs stop while people still get through: give both policies one name, the same limits
// and key, and the batch jobs a floor. Remaining and RetryAfter are of the policy's own share, Limit
// and the quota in the fields of the whole. A [Reservation] may be settled with tokens
// of the floor. n is at least 0 and below each limit's Burst, less what [WithLease] keeps of that; for
// a client whose limit by [WithLimitFunc] holds no more, the policy prohibits.
func WithFloor(n int) Option {
	return setting(func(c *config) {
		c.use("WithFloor")
		if c.require(n >= 0, "WithFloor(%d): want at least 0", n) {
			c.floor = n
		}
	})
}

// WithQueue lets a request that is denied wait for what it lacks, tokens or a slot: at most length
// requests of a client in each process, each for at most wait. The default is none. The length is not
// divided by the processes, because a client may have all its connections to one of them: behind k
// processes up to k × length wait.
//
// They are served in order of arrival in this process, for each key that lacks something: a client
// whose account is busy holds up nobody of another account. A request that lacks something of two keys
// waits for one, then for the other, and keeps its place by arrival, but needs both at one moment. A
// request is denied at once if length others of its client wait, or 16,384 others for the same key, with
// [CauseQueueFull], or if its tokens would come later than wait or its own deadline; Retry-After says when
// they come. When a slot is free nobody knows: for that it waits. If Redis hangs, a request takes no longer than wait and
// one [WithTimeout].
//
// Processes that wait for slots of one key take turns. The one whose turn it is looks for a slot that
// another has released every 20 ms, and the others more seldom, as do processes with more than 10 keys
// that are waited for. So a slot that several processes want is idle for some 10 ms between two of them.
// For tokens processes take no turns, and a request that costs much may wait in vain beside cheap ones of
// another process.
//
// A request keeps the limits of [WithLimitFunc] that it came with while it waits.
// Requests and [Policy.Acquire] wait, other methods do not. A request that costs 0, one of a client
// that is banned, and one of a [WithDryRun] wait for nothing. A policy without any limit that counts
// is an error, and so is a length below 1, and a wait of zero or less or above a day.
func WithQueue(length int, wait time.Duration) Option {
	return setting(func(c *config) {
		c.use("WithQueue")
		if c.require(length >= 1, "WithQueue(%d, %s): want a length of at least 1", length, wait) &&
			c.require(0 < wait && wait <= maxTimeout,
				"WithQueue(%d, %s): want a wait of more than 0 and at most %s", length, wait, maxTimeout) {
			c.queue, c.queueWait = length, wait
		}
	})
}

// WithBan bans a client that is denied: for first, and if it is denied again soon after, for twice
// as long, up to longest.
//
// While it is banned, everything that takes its tokens is denied, and that prolongs nothing. After
// a ban it is on probation, for as long again: the next denial bans it for twice as long. A
// probation survived clears it, and so does [Policy.Reset]. RetryAfter is the end of the ban, or
// later if no token is there by then. With [WithRefund] or [WithSettle] only what is not given back
// leads to a ban: five failed logins, say. But more at once than the limit holds are denied, and the
// client is banned, also if the others succeed.
//
// These ban nobody: a limit that prohibits, a cost above the Burst, another policy of [AllOf], a try of
// [Policy.Wait] or [Policy.AllowUpTo], waiting for a slot, and what is charged afterwards. Without
// Redis, each process has bans of its own. Choose a first ban that is longer than the limit denies by itself.
//
// Policies of one name share bans, and a [WithDryRun] has its own. A first below a millisecond is an
// error, and so is a longest below first, or above a hundred years.
func WithBan(first, longest time.Duration) Option {
	return setting(func(c *config) {
		c.use("WithBan")
		ok := c.require(first >= time.Millisecond, "WithBan(%s, %s): want a first ban of at least 1ms", first, longest)
		const fault = "WithBan(%s, %s): want a longest ban of at "
		ok = c.require(longest >= first, fault+"least the first", first, longest) && ok
		if c.require(longest <= maxBan, fault+"most %s", first, longest, maxBan) && ok {
			c.banFirst, c.banLongest = first, longest
		}
	})
}

// WithSkip bypasses the policy if f returns true: the request is not counted and gets no headers.
//
// Given to a policy, it replaces the limiter's default. Given twice to one of them it is an error.
func WithSkip(f func(*gin.Context) bool) Option {
	return setting(func(c *config) {
		c.use("WithSkip")
		c.require(f != nil, "WithSkip: the function is nil")
		c.skip = f
	})
}

// WithAllowList bypasses the policy for addresses in these networks: their requests are not
// counted.
//
// The address is what [ByClientIP] uses, whatever the key is; an unreadable one is an error. An
// address in both lists is allowed. If Gin trusts X-Forwarded-For from any client, which is its
// default, any client could pass for a listed one: then the list has no effect, and the log says so
// as an error. An invalid prefix is an error. Given to a policy, it replaces
// the limiter's default. Given twice to one of them it is an error: give it all networks at once.
func WithAllowList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return setting(func(c *config) {
		c.use("WithAllowList")
		c.allow = p
	})
}

// WithDenyList answers requests from addresses in these networks with 403.
//
// The address is what [ByClientIP] uses, whatever the key is; an unreadable one is an error. For
// temporary bans, prefer [Policy.Block]. An invalid prefix is an error. Given to a policy, it
// replaces the limiter's default. Given twice to one of them it is an error: give it all networks
// at once.
func WithDenyList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return setting(func(c *config) {
		c.use("WithDenyList")
		c.deny = p
	})
}

// WithDryRun counts requests but denies none, to try a limit. [FromContext] returns what it would
// have decided, if called by the next handler.
//
// Put it before any limiter that denies, or it sees only what that one allows. It sets no headers,
// and its errors go to the context's Errors only.
//
// It counts under keys of its own: it shares no bucket, slot or ban with a policy in force of the
// same name, and buckets start full when it is taken away. It waits for nothing (see [WithQueue]).
// The methods of its [Policy] decide under the same keys, and the caller acts on their answers.
func WithDryRun() Option {
	return setting(func(c *config) {
		c.use("WithDryRun")
		c.dryRun = true
	})
}

// WithHeaders selects the header fields that report limits: [XRateLimit], [RateLimitDraft], both,
// or [NoHeaders].
//
// The default is XRateLimit. A 429 has Retry-After and Cache-Control in any case.
func WithHeaders(h Headers) Option {
	return setting(func(c *config) {
		c.use("WithHeaders")
		c.require(h&^(XRateLimit|RateLimitDraft) == 0,
			"WithHeaders(%d): want XRateLimit, RateLimitDraft, both, or NoHeaders", h)
		c.headers = h
	})
}

// WithHeaderFunc sets further headers, in addition to [WithHeaders].
//
// f gets a Result for each limit of the policy in the order given, as [Policy.Status] has them. It is
// called for every decision that headers report, an unlimited one too. If several policies allow a
// request, each one's f is called, the one closest to exhaustion last; of a denial that of the policy
// which answers.
func WithHeaderFunc(f func(http.Header, []Result)) Option {
	return setting(func(c *config) {
		c.use("WithHeaderFunc")
		c.require(f != nil, "WithHeaderFunc: the function is nil")
		c.headerFunc = f
	})
}

// WithDeniedHandler sets the function that answers a denied request. The default is 429 with a
// problem+json body.
//
// The status 429 and the headers are set before f is called, and the request is aborted, whatever f
// does.
func WithDeniedHandler(f func(*gin.Context, Result)) Option {
	return setting(func(c *config) {
		c.use("WithDeniedHandler")
		c.require(f != nil, "WithDeniedHandler: the function is nil")
		c.deniedHandler = f
	})
}

// WithErrorHandler sets the function that answers a request without a decision.
//
// The default adds the error to the context's Errors, and answers with the status of [ErrorStatus],
// which an f may keep: 503 for [ErrUnavailable] or if the request's context has ended, 400 for
// [ErrBadRequest], 403 for [ErrUnknownClient], and 500 otherwise. The request is aborted when f returns;
// f lets it pass, unlimited, by calling [gin.Context.Next]. The error's text is not for clients. A 500
// that the application causes is logged as a warning, at most once a minute for each policy.
func WithErrorHandler(f func(*gin.Context, error)) Option {
	return setting(func(c *config) {
		c.use("WithErrorHandler")
		c.require(f != nil, "WithErrorHandler: the function is nil")
		c.errorHandler = f
	})
}
