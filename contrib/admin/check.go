package admin

import (
	"context"

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

// replaces returns what an override replaces.
func (p *plan) replaces() operate.Replacement {
	return operate.ReplacementOf(p.Limits, p.Target.Override, p.Info, p.Variants)
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
