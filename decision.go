package ginlimit

import (
	"context"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// decision is what a policy decided on a request: on its own key first, then on its identities. A
// dry run with slots decides on these before.
type decision struct {
	limits  *limitSet    // of the policy's own key
	asks    []engine.Ask // empty if nobody was asked
	answers []engine.Answer

	one struct { // memory for a policy without identities
		asks     [1]engine.Ask
		answers  [1]engine.Answer
		statuses [1]rules.Status
	}
}

// add adds a question.
func (d *decision) add(ask engine.Ask) {
	d.asks, d.answers = append(d.asks, ask), append(d.answers, engine.Answer{})
}

// own returns the index of the policy's own key.
func (p *Policy) own() int {
	if p.trial != nil {
		return 1
	}
	return 0
}

// setOf returns the limits of a question.
func (d *decision) setOf(p *Policy, i int) *limitSet {
	switch own := p.own(); {
	case i < own:
		return p.trial.limits
	case i > own:
		return p.identities[i-own-1].limits
	}
	return d.limits
}

// ask prepares the questions of a request.
func (d *decision) ask(c *gin.Context, p *Policy, client string, limits *limitSet) error {
	report := rules.ReportDenying
	if p.headers&RateLimitDraft != 0 {
		report = rules.ReportEvery
	}
	own := p.askOf(client, limits)
	own.Report, own.Settles = report, p.settleFunc != nil
	if p.slots > 0 && p.trial == nil {
		own.Scope = rules.All
	}
	var others []engine.Ask
	for i := range p.identities {
		key, err := keyOf(p.identities[i].key, c)
		if err != nil {
			return err
		}
		others = append(others, engine.Ask{
			Prefix: p.identities[i].prefix, Client: key, Set: p.identities[i].limits.rules.Now(), Scope: rules.Tokens,
			Failure: own.Failure, Lease: own.Lease, Settles: own.Settles, Report: report,
		})
	}
	d.limits, d.asks, d.answers = limits, d.one.asks[:0], d.one.answers[:0]
	if p.trial != nil {
		d.add(p.trial.askOf(&own))
	}
	d.add(own)
	for i := range others {
		d.add(others[i])
	}
	d.answers[0].Statuses = d.one.statuses[:0]
	return nil
}

// take decides on n tokens.
func (d *decision) take(ctx context.Context, p *Policy, n int) error {
	e := p.limiter.engine
	if len(d.asks) == 1 && p.queue > 0 && p.slots > 0 {
		return e.TakeQueued(ctx, int64(n), &d.asks[0], &d.answers[0], p.queue, p.queueWait)
	}
	return e.Take(ctx, int64(n), d.asks, d.answers)
}

// result returns the decision as one Result: of a denial that of the key that denies, else that of
// the key closest to exhaustion.
func (d *decision) result(p *Policy) (r Result) {
	found, denied, counted, local := false, false, false, false
	for i := range d.answers {
		a := &d.answers[i]
		denied = denied || a.Decided && !a.Allowed
		counted = counted || a.Decided && a.Source != engine.FromStatic
		local = local || a.Source == engine.FromLocal
	}
	trial := false // r is a free slot of a dry run, which says nothing of the limits
	for i := range d.answers {
		a := &d.answers[i]
		if !a.Decided || a.Allowed == denied || counted && !denied && a.Source == engine.FromStatic {
			continue
		}
		this := d.setOf(p, i).result(p.limiter.engine, a)
		if !found || trial || this.closerThan(r) {
			r, found, trial = this, true, i < p.own() && !denied
		}
	}
	if local && !denied {
		r.Source = FromLocal
	}
	return r
}

// taken returns what was taken, which may have to be given back.
func (d *decision) taken() (charges []engine.Charge) {
	for i := range d.answers {
		if a := &d.answers[i]; a.Decided && a.Source != engine.FromStatic {
			charges = append(charges, a.Charge(&d.asks[i]))
		}
	}
	return charges
}

// slot returns the index of the answer that holds a slot, or -1.
func (d *decision) slot() int {
	return slices.IndexFunc(d.answers, func(a engine.Answer) bool { return a.HasSlot() })
}

// failure returns why the store did not decide, or nil.
func (d *decision) failure() (err error) {
	for i := range d.answers {
		if d.answers[i].Err != nil {
			err = d.answers[i].Err
		}
	}
	return err
}
