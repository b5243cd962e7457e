package ginlimit

import (
	"fmt"
	"slices"
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
	{"WithShares", window, "nothing flows back from it evenly", "use a TokenBucket, or put it" + alone},
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
	window          = "a window"
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

// checkBeside reports why a policy cannot decide together with others. A default lease just does not serve there.
func (p *Policy) checkBeside(others int) error {
	if others > 0 && p.lease > 0 && slices.Contains(p.used, "WithLease") {
		return excluded("WithLease", severalPolicies).err()
	}
	return nil
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
			kind == window && l.Algorithm != TokenBucket, kind == slidingWindow && l.Algorithm == SlidingWindow,
			kind == calendarQuota && l.Calendar != Calendar{}:
			return true
		}
	}
	return kind == nothingCounted &&
		!slices.ContainsFunc(limits, func(l Limit) bool { return l.InFlight > 0 || l.Rate > 0 })
}

// has reports whether the configuration has an option of the table, or a kind of limit.
func (c *config) has(what string) bool {
	switch what {
	case "WithLimitFunc":
		return c.limitFunc != nil
	case "WithSettle":
		return c.settle != nil
	case "WithRefund":
		return c.refund != nil
	case "WithShares":
		return c.shares != nil
	case "WithBan":
		return c.banFirst > 0
	case "WithLease":
		return c.lease > 0
	case "WithQueue":
		return c.queue > 0
	case nothingCounted:
		return c.limitFunc == nil && hasKind(what, c.limits)
	}
	return hasKind(what, c.limits)
}

// drop leaves an option of the table out, which was a default.
func (c *config) drop(option string) {
	switch option {
	case "WithSettle":
		c.settle = nil
	case "WithRefund":
		c.refund = nil
	case "WithBan":
		c.banFirst = 0
	case "WithLease":
		c.lease = 0
	case "WithQueue":
		c.queue = 0
	}
}

// exclude adds an error for each row of the table of which the list of options has both sides. A default of the
// limiter is left out beside what the policy has itself, and of two defaults the second.
func (c *config) exclude() {
	own := func(what string) bool { return slices.Contains(c.used, what) || what[:4] != "With" }
	for _, row := range exclusions {
		switch {
		case !c.has(row.option) || !c.has(row.other):
		case own(row.option) && own(row.other):
			c.errs = append(c.errs, row.err())
		case own(row.other):
			c.drop(row.option)
		default:
			c.drop(row.other)
		}
	}
}
