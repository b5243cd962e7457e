package operate

import (
	"slices"
	"strings"

	"github.com/ginlimit/ginlimit"
)

// Replacement is what an override replaces, for people.
type Replacement struct {
	Of      string // limits
	Kept    string // slots that the override does not replace, or ""
	LeftOut string // what will not hold and may be thought to stay, or ""
}

// ReplacementOf returns what an override with limits replaces: another override, or limits of a policy as the variants
// of it have them. The variant of is the one that an operator looks at.
func ReplacementOf(
	limits []ginlimit.Limit, before *ginlimit.Override, of ginlimit.PolicyInfo, variants []ginlimit.PolicyInfo,
) (r Replacement) {
	keeps := !slices.ContainsFunc(limits, isInFlight)
	var texts, kept []string
	for _, p := range variants {
		slots := slices.DeleteFunc(slices.Clone(p.Limits), isNotInFlight)
		switch {
		case !keeps:
			texts = append(texts, LimitsText(p.Limits, p.Options))
			continue
		case len(slots) > 0:
			kept = append(kept, LimitsText(slots, nil))
		case HasFunction(p):
			kept = append(kept, "the slots that the application gives it")
		}
		rates := slices.DeleteFunc(slices.Clone(p.Limits), isInFlight)
		text := LimitsText(rates, p.Options)
		if len(rates) == 0 && len(slots) > 0 && !HasFunction(p) {
			text = "no rate"
		}
		texts = append(texts, text)
	}
	r.Of, r.Kept, r.LeftOut = either(texts), either(kept), leftOut(of.Limits, limits)
	if before != nil {
		r.Of, r.LeftOut = LimitsText(before.Limits, nil)+", of an override", leftOut(before.Limits, limits)
	}
	return r
}

// either returns texts of variants as one.
func either(texts []string) string {
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), " or ")
}

// leftOut says which limits an override leaves out that has others of the same policy, or returns "": whoever raises
// one limit of several may think that the others stay.
func leftOut(before, limits []ginlimit.Limit) string {
	isIn := func(of []ginlimit.Limit) func(ginlimit.Limit) bool {
		return func(l ginlimit.Limit) bool { return SharesBucket([]ginlimit.Limit{l}, of) }
	}
	left := slices.DeleteFunc(slices.Clone(before), isIn(limits))
	if left = slices.DeleteFunc(left, isInFlight); len(left) == 0 || !SharesBucket(before, limits) {
		return ""
	}
	return "an override replaces all limits: " + LimitsText(left, nil) + " will not hold"
}
