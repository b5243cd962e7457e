package ginlimit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

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
			c.errs = append(c.errs, row.err())
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
	var c config
	c.checkBursts(limits)
	for _, row := range exclusions {
		if row.option == "WithShares" && hasKind(row.other, limits) {
			c.errs = append(c.errs, row.err())
		}
	}
	return errors.Join(c.errs...)
}

// checkBursts notes the limits that are too large to be shared.
func (c *config) checkBursts(limits []Limit) {
	for _, l := range limits {
		c.require(l.InFlight > 0 || l.burst() <= bucket.MaxSharedBurst,
			"WithShares: %s has a burst of more than %d; count in larger units", l, bucket.MaxSharedBurst)
	}
}
