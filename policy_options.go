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

// WithKey sets the function that returns a request's key, by default [ByClientIP]. Policies with different
// keys need different names, also in different processes, or user 7 and tenant 7 would share a bucket.
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

// WithLimitFunc sets a function that returns all limits of a client, at least one, such as [Plans.Limits].
// client is what the [KeyFunc] returned; ctx is the request's, or the method's. If f returns an error, no
// limit or an invalid limit, the error handler answers. A changed Rate or Burst keeps the buckets. Of limits
// of its own the policy may only have [InFlight], for clients whose limits have none. A lower InFlight ends
// no request.
//
// [AllOf] and [ReserveAll] call the functions of several policies at the same time, each in a goroutine of its own,
// if they do not return within a millisecond. ctx then ends when the function of an earlier policy has returned an
// error; a function that ignores that is still waited for. If ctx is a [gin.Context], or is derived from one, they are
// called one after another.
func WithLimitFunc(f func(ctx context.Context, client string) ([]Limit, error)) PolicyOption {
	return policySetting{"WithLimitFunc", func(c *config) {
		c.require(f != nil, "WithLimitFunc: the function is nil")
		c.counts.limitFunc = f
	}}
}

// WithCost sets how many tokens a request takes, by default 1. A cost of 0 takes nothing: headers are set and
// the request passes, blocked or not, unless the limit prohibits. A cost below 0 goes to the error handler. A
// cost above a limit's Burst is denied without Retry-After.
func WithCost(f func(*gin.Context) int) Option {
	return setting{"WithCost", func(c *config) {
		c.require(f != nil, "WithCost: the function is nil")
		c.asks.cost = f
	}}
}

// WithRefund gives a request's tokens back if f returns true, so that only failed logins count, say. f is
// called after the handlers that follow, even if one panics; then the status is 500, unless the response has
// begun. Only tokens that the bucket still lacks are given back, and none after a [Policy.Reset]. Redis'
// errors go to the context's Errors.
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

// WithSettle sets the function that returns how many tokens a request really took, or a negative number if that
// is not known. The request first takes its cost, as an estimate (see [WithCost]), which stands if it is not
// known. f is called after the handlers that follow, even if one panics; then the status is 500, unless the
// response has begun. The difference is given back or charged: see [Reservation.Settle]. Redis' errors change
// nothing and go to the context's Errors.
func WithSettle(f func(*gin.Context) int) Option {
	return setting{"WithSettle", func(c *config) {
		if c.require(f != nil, "WithSettle: the function is nil") {
			c.asks.settle = func(c *gin.Context, _ int) int { return f(c) }
		}
	}}
}

// WithFloor reserves n tokens of each limit for policies with a lower floor on the same buckets, which
// [Policy.With] makes, so that batch jobs stop while people still get through. The default is 0. Remaining
// and RetryAfter describe the part that this policy may use, Limit the whole. A [Reservation] may settle with
// reserved tokens. n must be below each Burst, minus what [WithLease] keeps of it. A client whose limit is n
// tokens or less is denied.
func WithFloor(n int) Option {
	return setting{"WithFloor", func(c *config) {
		if c.require(n >= 0, "WithFloor(%d): want at least 0", n) {
			c.counts.floor = n
		}
	}}
}

// WithQueue lets a request wait for tokens or a slot instead of being denied: in each process up to length
// requests of a client, each for up to wait.
//
// Requests for a key are served in order of arrival in their process. A request is denied at once, with
// [CauseQueueFull], if length others of its client or 16,384 others of the limiter wait. It is also denied at
// once if its tokens would come later than wait or its own deadline; Retry-After says when they come. For a
// slot it always waits, because nobody knows when a slot becomes free. If Redis hangs, it takes at most wait
// and one [WithTimeout].
//
// [Policy.Reserve] and [ReserveAll] wait too, other methods do not. A request that costs 0, a banned client
// and a policy [WithDryRun] never wait. A waiting request keeps the limits that it arrived with. length is at
// least 1, wait above 0 and at most a day; a policy without a limit that counts is an error.
//
// A client that leaves gives its place back. For HTTP/1.1, a body of less than 256 kB with a Content-Length is
// read while the request waits, as net/http notices nothing before: docs/guide.md says which bodies are not.
func WithQueue(length int, wait time.Duration) Option {
	return setting{"WithQueue", func(c *config) {
		if c.require(length >= 1, "WithQueue(%d, %s): want a length of at least 1", length, wait) &&
			c.require(0 < wait && wait <= maxTimeout,
				"WithQueue(%d, %s): want a wait of more than 0 and at most %s", length, wait, maxTimeout) {
			c.asks.queue = engine.Queue{Length: length, Wait: wait}
		}
	}}
}

// WithBan bans a denied client for first. If it is denied again soon after, the next ban is twice as long, up
// to longest.
//
// During a ban everything that takes the client's tokens is denied, and these denials do not prolong it.
// RetryAfter is the end of the ban, or later if no token is there by then. After the ban the client is on
// probation for as long as the ban was: a denial in that time doubles the next ban. [Policy.Reset] ends both.
// Choose a first ban, of at least 1 ms, that is longer than the limit denies by itself. longest is at most a
// hundred years.
//
// With [WithRefund] or [WithSettle] only tokens not given back lead to a ban: five failed logins, say. But
// more simultaneous requests than the limit holds ban the client, even if all would succeed. Without Redis
// each process has its own bans.
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

// WithSkip bypasses the policy if f returns true: the request is not counted and gets no headers. In a policy
// it replaces the limiter's default.
func WithSkip(f func(*gin.Context) bool) Option {
	return setting{"WithSkip", func(c *config) {
		c.require(f != nil, "WithSkip: the function is nil")
		c.exempts.skip = f
	}}
}

// WithAllowList bypasses the policy for addresses in these networks: their requests are not counted. It goes
// before [WithDenyList], and in a policy replaces the limiter's default. The client's address is found as by
// [ByClientIP], whatever key the policy has; an unreadable address goes to the error handler. While Gin
// trusts X-Forwarded-For from any client, as by default, the list has no effect, and the log says so as an
// error.
func WithAllowList(p ...netip.Prefix) Option {
	networks, err := clientkey.NewNetworks(p)
	return setting{"WithAllowList", func(c *config) {
		c.require(err == nil, "WithAllowList: %v", err)
		c.exempts.allowed = networks
	}}
}

// WithDenyList answers requests from addresses in these networks with 403; the rest is as in [WithAllowList].
// For temporary bans, prefer [Policy.Block].
func WithDenyList(p ...netip.Prefix) Option {
	networks, err := clientkey.NewNetworks(p)
	return setting{"WithDenyList", func(c *config) {
		c.require(err == nil, "WithDenyList: %v", err)
		c.exempts.denied = networks
	}}
}

// WithDryRun counts requests but denies none, to try a limit. In the next handler, [Results] has what it
// would have decided. Put it before handlers that deny, or it sees only what they allow. It counts under keys
// of its own: it shares no bucket, slot or ban with a policy in force, and buckets start full when it is
// removed. It waits for nothing, sets no headers, and adds errors to the context's Errors only. Methods of
// its [Policy] use the same keys.
func WithDryRun() Option {
	return setting{"WithDryRun", func(c *config) { c.dryRun = true }}
}

// WithHeaders selects the header fields that report limits. The default is [XRateLimit]. A 429 has
// Retry-After and Cache-Control in any case.
func WithHeaders(h Headers) Option {
	return setting{"WithHeaders", func(c *config) {
		c.require(h&^(XRateLimit|RateLimitDraft) == 0,
			"WithHeaders(%d): want XRateLimit, RateLimitDraft, both, or NoHeaders", h)
		c.answers.headers = h
	}}
}

// WithHeaderFunc sets further headers, after [WithHeaders]'. f gets a Result for each limit of the
// policy, in the order given, for every decision that headers report. If several policies allow a request,
// every f is called, the one closest to exhaustion last; on a denial only the answering policy's.
func WithHeaderFunc(f func(http.Header, []Result)) Option {
	return setting{"WithHeaderFunc", func(c *config) {
		c.require(f != nil, "WithHeaderFunc: the function is nil")
		c.answers.headerFunc = f
	}}
}

// WithDeniedHandler sets the function that answers a denied request, by default with a problem+json body (RFC
// 9457). The status 429 and the headers are set before, and the request is aborted, whatever f does.
func WithDeniedHandler(f func(*gin.Context, Result)) Option {
	return setting{"WithDeniedHandler", func(c *config) {
		c.require(f != nil, "WithDeniedHandler: the function is nil")
		c.answers.deniedHandler = f
	}}
}

// WithErrorHandler sets the function that answers a request without a decision. The default adds the error to
// the context's Errors and answers with the status of [ErrorStatus]. The request is aborted when f returns; f
// lets it pass, unlimited, by calling [gin.Context.Next]. Do not send the error's text to clients. A 500 that
// the application causes is logged as a warning, at most once a minute for each policy.
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
