package admin

import (
	"fmt"
	"time"

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

// replaces returns what an override replaces.
func (p *plan) replaces() operate.Replacement {
	return operate.ReplacementOf(p.Limits, p.Target.Override, p.Info, p.Variants)
}

// stands says what becomes of a block or a debt of the client under limits of other periods, or "".
func (p *plan) stands() string {
	for _, g := range p.Results {
		if !operate.IsHeld(g.Result) || operate.SharesBucket([]ginlimit.Limit{g.Limit}, p.Limits) {
			continue
		}
		end, afterwards := time.Now().Add(g.RetryAfter), ""
		if end.After(p.Until) {
			afterwards = ", but again when it ends"
		}
		return fmt.Sprintf(" It is denied under %s until %s by a block or a debt: not while the override holds%s.", g.Limit,
			timeText(end), afterwards)
	}
	return ""
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
