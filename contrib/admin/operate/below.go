package operate

import (
	"math/bits"
	"slices"

	"github.com/ginlimit/ginlimit"
)

// Below says that an override gives less than its policy's limits, or returns "": also if only the application knows
// the limits.
func Below(served []ginlimit.PolicyInfo, o ginlimit.Override) string {
	for _, p := range served {
		if p.Name == o.Policy && !HasFunction(p) && !IsDryRun(p) && isLower(o.Limits, p.Limits) {
			return ", below the policy's " + LimitsText(p.Limits, p.Options)
		}
	}
	return ""
}

// isLower reports that some limits allow less than others: in the same bucket, in flight, or in the long run.
func isLower(limits, others []ginlimit.Limit) bool {
	for _, l := range limits {
		for _, other := range others {
			one := []ginlimit.Limit{l}
			if isCounted(l) && isCounted(other) && SharesBucket(one, []ginlimit.Limit{other}) && l.Rate < other.Rate ||
				l.InFlight > 0 && l.InFlight < other.InFlight {
				return true
			}
		}
	}
	all, of := slowest(limits), slowest(others)
	isFree := func(l ginlimit.Limit) bool { return l == ginlimit.Unlimited() }
	return all != nil && (of != nil && isSlower(*all, *of) || of == nil && slices.ContainsFunc(others, isFree))
}

// isCounted reports that a limit counts tokens, or allows none.
func isCounted(l ginlimit.Limit) bool { return l.InFlight == 0 && l.Rate >= 0 }

// slowest returns the limit that allows the least in the long run, but no quota of a calendar, or nil.
func slowest(limits []ginlimit.Limit) (found *ginlimit.Limit) {
	for _, l := range limits {
		if isCounted(l) && l.Period > 0 && (found == nil || isSlower(l, *found)) {
			found = &l
		}
	}
	return found
}

// isSlower compares rates, exactly.
func isSlower(a, b ginlimit.Limit) bool {
	high, low := bits.Mul64(uint64(a.Rate), uint64(b.Period))
	otherHigh, otherLow := bits.Mul64(uint64(b.Rate), uint64(a.Period))
	return high < otherHigh || high == otherHigh && low < otherLow
}
