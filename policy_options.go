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
	maxSlots = 1 << 20
	maxBan   = 100 * 365 * day
)

// The options of a policy. Given to [NewLimiter] they are the defaults of its policies.

// WithName names a policy. Policies of one limiter that have the same name, the same algorithm and
// a limit of the same period share buckets; policies with different names never do. With different
// algorithms they share none, which is logged once as a warning.
//
// The default is the text of the policy's limits, so equal limits share buckets and different ones
// do not. After [WithKey] it ends in " by key", so that no key is taken for an address. With a
// name, a changed limit keeps its buckets.
func WithName(s string) Option {
	return func(c *config) {
		c.use("WithName")
		c.require(s != "", "WithName: the name is empty")
		c.name = s
	}
}

// WithKey sets the function that returns a request's key. The default is [ByClientIP].
//
// Policies with different kinds of keys need different names: two headers can have the same value.
func WithKey(f KeyFunc) Option {
	return func(c *config) {
		c.use("WithKey")
		c.require(f != nil, "WithKey: the function is nil")
		c.key, c.keyed = f, true
	}
}

// WithLimits adds limits to the policy's first, each of another period. All must allow a request.
// Given to a policy, it replaces the limiter's default. Given twice to one of them it is an error:
// give it all limits at once.
func WithLimits(more ...Limit) Option {
	more = slices.Clone(more)
	return func(c *config) {
		c.use("WithLimits")
		c.limits = more
	}
}

// WithLimitFunc sets a function that returns the limits of a client, for example of its plan.
//
// f returns all limits of the client, at least one. They take the place of the policy's limits,
// those of [WithLimits] among them. client is what the [KeyFunc] returned; ctx is the request's
// context for a request, else the method's. An error of f, no limit and an invalid limit go to the
// error handler. A changed Rate or Burst takes effect at once and keeps the buckets (see
// [Limiter]). [Plans.Limits] is such a function.
func WithLimitFunc(f func(ctx context.Context, client string) ([]Limit, error)) Option {
	return func(c *config) {
		c.use("WithLimitFunc")
		c.require(f != nil, "WithLimitFunc: the function is nil")
		c.limitFunc = f
	}
}

// WithIdentity adds a key to count a request under, with limits of its own.
//
// A request may count under its address and its API key, for example, or under one key for all
// clients. It may be given several times, each with another name. It is the name in [Key].
//
// All identities must allow a request, and a denied one takes nothing of any. On a single Redis
// server, one script decides. On a cluster, in the process, and with [WithConcurrency] or
// [WithBan], the policy's own key is checked first, then each identity in the order given; if one
// denies, what was taken before is given back, and Retry-After is for this one alone. The
// headers report the one closest to exhaustion.
func WithIdentity(name string, f KeyFunc, limits ...Limit) Option {
	limits = slices.Clone(limits)
	return func(c *config) {
		c.use("WithIdentity")
		c.require(name != "", "WithIdentity: the name is empty")
		c.require(f != nil, "WithIdentity(%q): the function is nil", name)
		c.identities = append(slices.Clone(c.identities), identityOption{name, f, limits})
	}
}

// WithCost sets how many tokens a request takes. The default is 1.
//
// A cost of 0 takes nothing: headers are set and the request passes, blocked or not, unless the
// limit prohibits. A cost below 0 goes to the error handler. A cost above a limit's Burst is denied
// without Retry-After, and the body says that retrying will not help.
func WithCost(f func(*gin.Context) int) Option {
	return func(c *config) {
		c.use("WithCost")
		c.require(f != nil, "WithCost: the function is nil")
		c.cost = f
	}
}

// WithRefund gives a request's tokens back if f returns true.
//
// So an application can count failed logins only. f is called after the handlers that follow, also
// if one of them panics; then the status is 500, unless the response has begun. What has flowed
// back into a token bucket meanwhile, or was given back by a [Limiter.Reset], is not given back
// again. A window gets back what this request took, if that still counts, and nothing that other
// requests took, unless a [Limiter.Refund] has emptied the window in between. An error of Redis
// goes to the context's Errors. It does not go together with [WithSettle].
func WithRefund(f func(*gin.Context) bool) Option {
	return func(c *config) {
		c.use("WithRefund")
		if c.require(f != nil, "WithRefund: the function is nil") {
			c.settleFunc = func(c *gin.Context, n int) int {
				if f(c) {
					return 0
				}
				return n
			}
		}
	}
}

// WithSettle sets what a request really took, known only after it was served: tokens, at least 0.
//
// The request takes its cost first (see [WithCost]), as an estimate. f is called after the handlers
// that follow, also if one of them panics or the client is gone; then the status of a panic is 500,
// unless the response has begun. If the request took less, the rest is given back; if it took more,
// the difference is charged, into debt if it must: see [Reservation.Settle]. If the request costs
// 0, all is charged afterwards. A negative number and an error of Redis go to the context's Errors
// and change nothing. [WithRefund] is the special case of all or nothing: a policy takes one of
// them, which replaces the limiter's default of either, and both in one list of options are an
// error.
func WithSettle(f func(*gin.Context) int) Option {
	return func(c *config) {
		c.use("WithSettle")
		if c.require(f != nil, "WithSettle: the function is nil") {
			c.settleFunc = func(c *gin.Context, _ int) int { return f(c) }
		}
	}
}

// WithFloor leaves tokens of each limit for other policies of the same name; the default is 0.
//
// So batch jobs stop while people still get through: give both policies one [WithName], the same
// limits and key, and the batch jobs a floor. Remaining and RetryAfter tell of the policy's own
// share, Limit and the quota in the fields of the whole. A [Reservation] may be settled with tokens
// of the floor. n is at least 0 and below each limit's Burst; for a client whose limit by
// [WithLimitFunc] holds no more than n, the policy prohibits.
func WithFloor(n int) Option {
	return func(c *config) {
		c.use("WithFloor")
		if c.require(n >= 0, "WithFloor(%d): want at least 0", n) {
			c.floor = n
		}
	}
}

// WithConcurrency limits how many requests of one client are in flight at once, in all processes.
// The default is any number.
//
// A request holds one of n slots until its handler returns, also if that panics, or streams. A slot
// and the tokens of the limits are taken in one call, all or none. Without a slot the request is
// denied with Retry-After of a second, as nobody knows when another ends; Result.Name is the
// policy's with "-c", and so it stands in the fields, with the unit concurrent-requests. A Rate
// below 0 has slots alone. [Policy.Acquire] takes a slot outside HTTP; the other methods leave
// slots alone. A cost of 0 takes none.
//
// Each process reports to Redis every second which slots it holds, and Redis counts them until 10 s
// after its last report. So the slots of a process that dies are free within 10 s, and a process
// that is frozen, or cannot reach Redis, for up to 7 s loses none. After a longer time it may find
// its slots taken: then more than n are in flight until some of them end, and none is admitted
// meanwhile. If Redis loses its memory, its count is complete again after 2 s. Without Redis, each
// process has its share of n, at least 1 (see [WithReplicas]).
//
// Policies of one [WithName] share slots. Dry runs (see [WithDryRun]) share others. A
// policy with slots takes no tokens ahead (see [WithLease]). An n below 1 is an error.
func WithConcurrency(n int) Option {
	return func(c *config) {
		c.use("WithConcurrency")
		if c.require(n >= 1 && n <= maxSlots, "WithConcurrency(%d): want 1 to %d", n, maxSlots) {
			c.slots = n
		}
	}
}

// WithQueue has a request that finds no slot wait for one: at most for so long, and at most so many
// requests of a client in this process. The default is none.
//
// They are served in order of arrival; those in other processes are not before or behind them. A
// release in this process is seen at once, one in another within 100 ms; if more than 50 clients
// wait in this process, within 2 ms for each of them, as a limiter looks for slots 500 times a
// second at most. Further requests are denied at once. A request that costs 0 and one of a
// [WithDryRun] wait for nothing. It needs [WithConcurrency], and goes with no [WithIdentity]. A
// length below 1, and a wait of zero or less or above a day, are errors.
func WithQueue(length int, wait time.Duration) Option {
	return func(c *config) {
		c.use("WithQueue")
		if c.require(length >= 1, "WithQueue(%d, %s): want a length of at least 1", length, wait) &&
			c.require(0 < wait && wait <= maxTimeout,
				"WithQueue(%d, %s): want a wait of more than 0 and at most %s", length, wait, maxTimeout) {
			c.queue, c.queueWait = length, wait
		}
	}
}

// WithBan bans a client that is denied: for first, and if it is denied again soon after, for twice
// as long, up to longest.
//
// While it is banned, everything that takes its tokens is denied, and that prolongs nothing. After
// a ban it is on probation, for as long again: the next denial bans it for twice as long. A
// probation survived clears it, and so does [Policy.Reset]. RetryAfter is the end of the ban, or
// later if no token is there by then. With [WithRefund] or [WithSettle] only what is not given back
// leads to a ban: five failed logins, say. A request takes its tokens before it is served, so more
// at once than the limit holds are denied, and the client is banned, also if the others succeed.
// What is charged afterwards bans nobody.
//
// A ban is decided in the same call as the limits. A denial by a limit that prohibits, of a cost
// above the Burst, of another identity ([WithIdentity]), and a try of [Policy.Wait] or
// [Policy.AllowUpTo] bans nobody; nor does waiting for a slot ([WithQueue]). While a slot of a
// cluster migrates, a denial may ban nobody. Without Redis, each process has bans of its own.
//
// Choose a first ban that is longer than the limit denies by itself: a shorter one ends unnoticed.
//
// Policies of one [WithName] share bans; one with [WithDryRun] bans nobody. A policy with a ban
// takes no tokens ahead (see [WithLease]). A first below a millisecond is an error, and so is a
// longest below first, or above a hundred years.
func WithBan(first, longest time.Duration) Option {
	return func(c *config) {
		c.use("WithBan")
		ok := c.require(first >= time.Millisecond, "WithBan(%s, %s): want a first ban of at least 1ms", first, longest)
		ok = c.require(longest >= first, "WithBan(%s, %s): want a longest ban of at least the first", first, longest) && ok
		if c.require(longest <= maxBan, "WithBan(%s, %s): want a longest ban of at most %s", first, longest, maxBan) && ok {
			c.banFirst, c.banLongest = first, longest
		}
	}
}

// WithSkip bypasses the policy if f returns true: the request is not counted and gets no headers.
//
// Given to a policy, it replaces the limiter's default. Given twice to one of them it is an error.
func WithSkip(f func(*gin.Context) bool) Option {
	return func(c *config) {
		c.use("WithSkip")
		c.require(f != nil, "WithSkip: the function is nil")
		c.skip = f
	}
}

// WithAllowList bypasses the policy for addresses in these networks: their requests are not
// counted.
//
// The address is what [ByClientIP] uses, whatever the key is; an unreadable one is an error. An
// address in both lists is allowed. An invalid prefix is an error. Given to a policy, it replaces
// the limiter's default. Given twice to one of them it is an error: give it all networks at once.
func WithAllowList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return func(c *config) {
		c.use("WithAllowList")
		c.allow = p
	}
}

// WithDenyList answers requests from addresses in these networks with 403.
//
// The address is what [ByClientIP] uses, whatever the key is; an unreadable one is an error. For
// temporary bans, prefer [Policy.Block]. An invalid prefix is an error. Given to a policy, it
// replaces the limiter's default. Given twice to one of them it is an error: give it all networks
// at once.
func WithDenyList(p ...netip.Prefix) Option {
	p = slices.Clone(p)
	return func(c *config) {
		c.use("WithDenyList")
		c.deny = p
	}
}

// WithDryRun counts requests but denies none, to try a limit. [FromContext] returns what it would
// have decided, if called by the next handler: later it may return what another policy has decided.
//
// Put it before any limiter that denies, or it sees only what that one allows. It sets no headers,
// and its errors go to the context's Errors only.
//
// The buckets are the same as without it, so no client starts over when it is taken away. A policy
// in force that has the same name loses the tokens that a dry run takes: give the dry run another
// name to try a limit beside that policy. A dry run bans nobody (see [WithBan]), so it does not see
// the denials that its own bans would add; a ban by a policy in force counts. Its slots (see
// [WithConcurrency]) are its own, in all processes: a policy in force does not see them. They cost
// it a second call to Redis. A dry run does not wait for a slot (see [WithQueue]).
//
// The methods of its [Policy] decide as without it, and the caller acts on their answers. They ban
// nobody either, and [Policy.Acquire] and [Policy.Peek] use the dry run's own slots.
func WithDryRun() Option {
	return func(c *config) {
		c.use("WithDryRun")
		c.dryRun = true
	}
}

// WithHeaders selects the header fields that report limits: [XRateLimit], [RateLimitDraft], both,
// or [NoHeaders].
//
// The default is XRateLimit. A 429 has Retry-After and Cache-Control in any case.
func WithHeaders(h Headers) Option {
	return func(c *config) {
		c.use("WithHeaders")
		c.require(h&^(XRateLimit|RateLimitDraft) == 0,
			"WithHeaders(%d): want XRateLimit, RateLimitDraft, both, or NoHeaders", h)
		c.headers = h
	}
}

// WithHeaderFunc sets further headers from a Result, in addition to [WithHeaders].
//
// f is called for every decision that headers report, an unlimited one too.
func WithHeaderFunc(f func(http.Header, Result)) Option {
	return func(c *config) {
		c.use("WithHeaderFunc")
		c.require(f != nil, "WithHeaderFunc: the function is nil")
		c.headerFunc = f
	}
}

// WithDeniedHandler sets the function that answers a denied request. The default is 429 with a
// problem+json body.
//
// If the request's Accept prefers text/plain, the default body is text. The status 429 and the
// headers are set before f is called, and the request is aborted, whatever f does.
func WithDeniedHandler(f func(*gin.Context, Result)) Option {
	return func(c *config) {
		c.use("WithDeniedHandler")
		c.require(f != nil, "WithDeniedHandler: the function is nil")
		c.deniedHandler = f
	}
}

// WithErrorHandler sets the function that answers a request without a decision.
//
// The default adds the error to the context's Errors, and answers with the status of [ErrorStatus],
// which an f may keep: 503 for [ErrUnavailable] or if the request's context has ended, 400 for
// [ErrBadRequest], 403 for [ErrUnknownClient], and 500 otherwise. If f neither aborts nor writes
// nor sets a status, the request goes on, unlimited. The error's text is not for clients. A 500
// that the application causes is logged as a warning, at most once a minute for each policy.
func WithErrorHandler(f func(*gin.Context, error)) Option {
	return func(c *config) {
		c.use("WithErrorHandler")
		c.require(f != nil, "WithErrorHandler: the function is nil")
		c.errorHandler = f
	}
}
