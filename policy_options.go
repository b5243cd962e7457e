package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
)

const maxBan = 100 * 365 * day

// The options of a policy. Given to [NewLimiter] they are the defaults of its policies.

// WithKey sets the function that returns a request's key, by default [ByClientIP]. Policies with
// different keys need different names, or user 7 and tenant 7 would share a bucket.
func WithKey(f KeyFunc) Option {
	return setting{"WithKey", func(c *config) {
		c.require(f != nil, "WithKey: the function is nil")
		c.key = f
	}}
}

// policyOption adds the limit to a policy's.
func (l Limit) policyOption(c *config) { c.addLimits("Limit", l) }

// WithLimits adds limits to a policy, as if each were an option.
func WithLimits(limits ...Limit) PolicyOption {
	return limitList(slices.Clone(limits))
}

// limitList is the option of [WithLimits]. It has no name: limits add to each other.
type limitList []Limit

func (l limitList) policyOption(c *config) { c.addLimits("WithLimits", l...) }

// WithLimitFunc sets a function that returns all limits of a client, at least one, such as
// [Plans.Limits]. client is what the [KeyFunc] returned; ctx is the request's, or the method's. An
// error and an invalid limit go to the error handler. Of limits of its own the policy may only have
// [InFlight], for clients whose limits have none. [AllOf] and [ReserveAll] call slow functions at
// the same time, in goroutines, unless ctx is derived from a [gin.Context].
func WithLimitFunc(f func(ctx context.Context, client string) ([]Limit, error)) PolicyOption {
	return policySetting{"WithLimitFunc", func(c *config) {
		c.require(f != nil, "WithLimitFunc: the function is nil")
		c.counts.limitFunc = f
	}}
}

// WithCost sets how many tokens a request takes, by default 1. A cost of 0 takes nothing, and
// passes unless the limit prohibits. A cost below 0 goes to the error handler; a cost above a Burst
// is denied without Retry-After.
func WithCost(f func(*gin.Context) int) Option {
	return setting{"WithCost", func(c *config) {
		c.require(f != nil, "WithCost: the function is nil")
		c.asks.cost = f
	}}
}

// WithRefund gives a request's tokens back if f returns true, so that only failed logins count,
// say. f is called after the handlers that follow, even if one panics. Redis' errors go to the
// context's Errors.
func WithRefund(f func(*gin.Context) bool) Option {
	return setting{"WithRefund", func(c *config) {
		if c.require(f != nil, "WithRefund: the function is nil") {
			c.asks.settle = func(c *gin.Context, n int) int {
				if f(c) {
					return 0
				}
				return n
			}
		}
	}}
}

// WithSettle sets the function that returns how many tokens a request really took, or a negative
// number if that is not known: then its cost stands (see [WithCost]). f is called as the
// function of [WithRefund]. The difference is given back or charged: see [Reservation.Settle].
func WithSettle(f func(*gin.Context) int) Option {
	return setting{"WithSettle", func(c *config) {
		if c.require(f != nil, "WithSettle: the function is nil") {
			c.asks.settle = func(c *gin.Context, _ int) int { return f(c) }
		}
	}}
}

// WithFloor reserves n tokens of each limit, by default 0, for policies with a lower floor on the
// same buckets (see [Policy.With]), so that batch jobs stop while people still get through.
// Remaining and RetryAfter describe what this policy may use. n must be below each Burst, minus
// what [WithLease] keeps. A client whose limit is n tokens or less is denied.
func WithFloor(n int) Option {
	return setting{"WithFloor", func(c *config) {
		if c.require(n >= 0, "WithFloor(%d): want at least 0", n) {
			c.counts.floor = n
		}
	}}
}

// WithQueue lets a request wait for tokens or a slot instead of being denied: in each process up to
// length requests of a client, in order of arrival, each for up to wait, at most a day.
// [Policy.Reserve] and [ReserveAll] wait too. A request that costs 0, a banned client and a policy
// [WithDryRun] never wait.
//
// A request is denied at once, with [CauseQueueFull], if length others of its client or 16,384
// others of the limiter wait, and if its tokens would come later than wait or its own deadline. It
// keeps the limits that it arrived with. A client that leaves gives its place back (see
// docs/guide.md).
func WithQueue(length int, wait time.Duration) Option {
	return setting{"WithQueue", func(c *config) {
		if c.require(length >= 1, "WithQueue(%d, %s): want a length of at least 1", length, wait) &&
			c.require(0 < wait && wait <= maxTimeout,
				"WithQueue(%d, %s): want a wait of more than 0 and at most %s", length, wait, maxTimeout) {
			c.asks.queue = engine.Queue{Length: length, Wait: wait}
		}
	}}
}

// WithBan bans a denied client for first, at least 1 ms. For as long again it is on probation: a
// denial in that time bans it for twice as long, up to longest. During a ban everything that takes
// the client's tokens is denied. [Policy.Reset] ends both. Choose a first ban longer than the limit
// denies by itself. With [WithRefund] or [WithSettle] only tokens not given back lead to a ban, but
// more simultaneous requests than the limit holds do, too. Without Redis each process has its own
// bans.
func WithBan(first, longest time.Duration) Option {
	return setting{"WithBan", func(c *config) {
		ok := c.require(first >= time.Millisecond, "WithBan(%s, %s): want a first ban of at least 1ms", first, longest)
		const fault = "WithBan(%s, %s): want a longest ban of at "
		ok = c.require(longest >= first, fault+"least the first", first, longest) && ok
		if c.require(longest <= maxBan, fault+"most %s", first, longest, maxBan) && ok {
			ban := bucket.NewBan(wholeMillis(first), wholeMillis(longest))
			c.counts.ban = &ban
		}
	}}
}

// WithSkip bypasses the policy if f returns true: the request is not counted.
func WithSkip(f func(*gin.Context) bool) Option {
	return onceSetting{"WithSkip", func(c *config) {
		c.require(f != nil, "WithSkip: the function is nil")
		c.exempts.skip = f
	}}
}

// WithAllowList bypasses the policy for addresses in these networks, found as by [ByClientIP]. It
// goes before [WithDenyList]. An unreadable address goes to the error handler. While Gin trusts
// X-Forwarded-For from any client, as by default, the list has no effect, and the log says so as an
// error.
func WithAllowList(p ...netip.Prefix) Option {
	networks, err := clientkey.NewNetworks(p)
	return onceSetting{"WithAllowList", func(c *config) {
		c.require(err == nil, "WithAllowList: %v", err)
		c.exempts.allowed = networks
	}}
}

// WithDenyList answers requests from addresses in these networks, found as for [WithAllowList],
// with 403. For temporary bans, prefer [Policy.Block].
func WithDenyList(p ...netip.Prefix) Option {
	networks, err := clientkey.NewNetworks(p)
	return onceSetting{"WithDenyList", func(c *config) {
		c.require(err == nil, "WithDenyList: %v", err)
		c.exempts.denied = networks
	}}
}

// WithDryRun counts requests but denies none, to try a limit; [Results] has what it would have
// decided. Put it before handlers that deny, or it sees only what they allow. It counts under keys
// of its own, waits for nothing, sets no headers, and adds errors to the context's Errors only.
func WithDryRun() Option {
	return setting{"WithDryRun", func(c *config) { c.dryRun = true }}
}

// WithHeaders selects the header fields of limits, by default [XRateLimit].
func WithHeaders(h Headers) Option {
	return setting{"WithHeaders", func(c *config) {
		c.require(h&^(XRateLimit|RateLimitDraft) == 0,
			"WithHeaders(%d): want XRateLimit, RateLimitDraft, both, or NoHeaders", h)
		c.answers.headers = h
	}}
}

// WithHeaderFunc sets further headers. f gets a Result for each limit of the policy, in the order
// given. If several policies allow a request, every f is called, the closest to exhaustion last; on
// a denial the answering policy's.
func WithHeaderFunc(f func(http.Header, []Result)) Option {
	return setting{"WithHeaderFunc", func(c *config) {
		c.require(f != nil, "WithHeaderFunc: the function is nil")
		c.answers.headerFunc = f
	}}
}

// WithDeniedHandler sets the function that answers a denied request, by default with a problem (RFC
// 9457). Before it, the status and header fields are set.
func WithDeniedHandler(f func(*gin.Context, Result)) Option {
	return setting{"WithDeniedHandler", func(c *config) {
		c.require(f != nil, "WithDeniedHandler: the function is nil")
		c.answers.deniedHandler = f
	}}
}

// WithErrorHandler sets the function that answers a request without a decision, by default with
// [ErrorStatus]. The request is aborted when f returns; it passes if f calls [gin.Context.Next]. Do
// not send the error's text to clients.
func WithErrorHandler(f func(*gin.Context, error)) Option {
	return setting{"WithErrorHandler", func(c *config) {
		c.require(f != nil, "WithErrorHandler: the function is nil")
		c.answers.errorHandler = f
	}}
}

// exclusion is two options, or an option and a kind of limit, that do not go together in one policy.
type exclusion struct {
	option, other string
	why           string
	instead       string
}

// exclusions are all of them. Constructors return them as errors, and docs/reference.md has them as a table.
var exclusions = []exclusion{
	{"WithLimitFunc", limitBeside, "the function returns all of a client's limits",
		"return the limit, or put it" + alone},
	{"WithSettle", "WithRefund", "only one of them can settle a request", "return 0 for a refund"},
	{"WithShares", secondLimit, "a tenant has a share of one limit", "put the others" + alone},
	{"WithShares", inFlight, "a tenant has a share of tokens", "put InFlight" + alone},
	{"WithShares", anyWindow, "nothing flows back from it evenly", "use a TokenBucket, or put it" + alone},
	{"WithShares", calendarQuota, "nothing flows back from it evenly", "use a TokenBucket, or put it" + alone},
	{"WithShares", "WithBan", "a ban is of a key, whoever its tenants are", "put WithBan" + alone},
	{"WithShares", "WithLease", "what is taken ahead is no tenant's", "leave WithLease out"},
	{"WithLease", slidingWindow, "a token counts from when it was used", "use another algorithm"},
	{"WithLease", inFlight, "a slot is never taken ahead", "put InFlight" + alone},
	{"WithBan", "WithLease", "only Redis' denials ban", "put WithBan" + alone},
	{"WithSettle", "WithLease", "what is given back is of one charge", "leave WithLease out"},
	{"WithRefund", "WithLease", "what is given back is of one charge", "leave WithLease out"},
	{"WithLease", severalPolicies, "what is taken ahead is of one policy",
		"leave WithLease out, or decide on this policy alone"},
	{"WithQueue", nothingCounted, "there is nothing to wait for", "leave WithQueue out"},
}

// The kinds of limits in the table, and what else is no option.
const (
	alone = " into a policy of its own: AllOf"

	limitBeside     = "a limit but InFlight"
	secondLimit     = "a second limit"
	inFlight        = "InFlight"
	anyWindow       = "a window"
	slidingWindow   = "a SlidingWindow"
	calendarQuota   = "a calendar quota"
	severalPolicies = "other policies in AllOf or ReserveAll"
	nothingCounted  = "no limit that counts"
)

// String returns the row as a sentence.
func (e exclusion) String() string {
	return fmt.Sprintf("%s does not go together with %s: %s; %s", e.option, e.other, e.why, e.instead)
}

func (e exclusion) err() error { return invalid("%s", e) }

// excluded returns the row of two options.
func excluded(option, other string) exclusion {
	return exclusions[slices.IndexFunc(exclusions, func(e exclusion) bool {
		return e.option == option && e.other == other
	})]
}

// hasKind reports whether limits are of a kind.
func hasKind(kind string, limits []Limit) bool {
	counted := 0 // limits but InFlight
	for _, l := range limits {
		if l.InFlight == 0 {
			counted++
		}
		switch {
		case kind == inFlight && l.InFlight > 0,
			kind == limitBeside && counted > 0, kind == secondLimit && counted > 1,
			kind == anyWindow && l.Algorithm != TokenBucket, kind == slidingWindow && l.Algorithm == SlidingWindow,
			kind == calendarQuota && l.Calendar != Calendar{}:
			return true
		}
	}
	return kind == nothingCounted &&
		!slices.ContainsFunc(limits, func(l Limit) bool { return l.InFlight > 0 || l.Rate > 0 })
}

// has reports whether a policy has an option of the table, of its own or as a default, or a kind of limit.
func (c *config) has(what string) bool {
	switch own := slices.Contains(c.used, what); {
	case own && what == "WithLease":
		return c.counts.lease > 0
	case strings.HasPrefix(what, "With"):
		return own || slices.ContainsFunc(c.defaults, func(s setting) bool { return s.name == what })
	case what == nothingCounted && c.counts.limitFunc != nil:
		return false
	}
	return hasKind(what, c.counts.limits)
}

// exclude adds an error for each row of the table of which the list of options has both sides, and applies a
// limiter's defaults but those that the list has itself. A default is left out beside what the policy has itself,
// and of two defaults the second.
func (c *config) exclude(defaults []setting) {
	for _, s := range defaults {
		if !slices.Contains(c.used, s.name) {
			c.defaults = append(c.defaults, s)
		}
	}
	for _, row := range exclusions {
		if c.has(row.option) && c.has(row.other) && !c.leaveOut(row.other) && !c.leaveOut(row.option) {
			c.addFault(row.option, row.err())
		}
	}
	for _, s := range c.defaults {
		s.fill(c)
	}
}

// leaveOut leaves a default out, and reports whether there was one.
func (c *config) leaveOut(option string) bool {
	before := len(c.defaults)
	c.defaults = slices.DeleteFunc(c.defaults, func(s setting) bool { return s.name == option })
	return len(c.defaults) < before
}

// checkShared reports why tenants cannot share the limits of a client.
func checkShared(limits []Limit) error {
	errs := checkBursts(limits)
	for _, row := range exclusions {
		if row.option == "WithShares" && hasKind(row.other, limits) {
			errs = append(errs, row.err())
		}
	}
	return errors.Join(errs...)
}

// checkBursts reports the limits that are too large to be shared.
func checkBursts(limits []Limit) (errs []error) {
	for _, l := range limits {
		if l.InFlight == 0 && l.burst() > bucket.MaxSharedBurst {
			errs = append(errs, invalid("WithShares: %s has a burst of more than %d; count in larger units",
				l, bucket.MaxSharedBurst))
		}
	}
	return errs
}
