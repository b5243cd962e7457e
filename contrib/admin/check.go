package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// check returns why an override will be refused, before anybody is asked to confirm it.
func (v *visit) check(p *plan) error {
	if p.Do == "override" {
		return v.Check(v.ctx, p.wanted(v))
	}
	return nil
}

// denies says whom limits that allow nothing deny, or "".
func (p *plan) denies() string {
	switch {
	case !operate.Prohibits(p.Limits):
		return ""
	case p.Everyone:
		return " This denies everybody everything."
	}
	return " This denies it everything."
}

// leavesOut says which limits an override leaves out, or "".
func (p *plan) leavesOut() string {
	before := p.Info.Limits
	if p.Target.Override != nil {
		before = p.Target.Override.Limits
	}
	if text := operate.LeftOut(before, p.Limits); text != "" {
		return " " + sentence(text)
	}
	return ""
}

// instead returns the limits that an override replaces.
func (p *plan) instead() string {
	keeps := p.kept() != ""
	text := func(limits []ginlimit.Limit, options []string) string {
		if keeps {
			limits = slices.DeleteFunc(slices.Clone(limits), func(l ginlimit.Limit) bool { return l.InFlight > 0 })
		}
		return operate.LimitsText(limits, options)
	}
	if o := p.Target.Override; o != nil {
		return text(o.Limits, nil) + ", of an override"
	}
	var all []string
	for _, served := range p.Variants {
		all = append(all, text(served.Limits, served.Options))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " or ")
}

// afterwards says what blocks and bans do once an override has been made or ended, or "".
func (p *plan) afterwards(v *visit, to operate.Target) string {
	text, err := bounded(v, func(ctx context.Context) (string, error) {
		return v.Afterwards(ctx, to, p.Limits, p.Until), nil
	})
	switch {
	case err != nil:
		text = operate.NotRead
	case text == "":
		return ""
	}
	return " " + text
}

// found says what a reset ends, and whether it may end anything.
func (p *plan) found(v *visit) (text string, ends bool) {
	type found struct {
		text string
		ends bool
	}
	f, err := bounded(v, func(ctx context.Context) (f found, _ error) {
		f.text, f.ends = v.Found(ctx, *p.Target)
		return f, nil
	})
	return f.text, f.ends || err != nil
}

// elsewhere says that a block is not known to processes that serve other limits, or "".
func (p *plan) elsewhere() string {
	for _, served := range p.Variants {
		if p.Target.Override == nil && !operate.SharesBucket(p.Info.Limits, served.Limits) {
			return " Processes that serve limits of another period do not know it."
		}
	}
	return ""
}
