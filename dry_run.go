package ginlimit

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// trial is what a policy with [WithDryRun] and [WithConcurrency] has instead of slots: slots of its
// own, so that a policy in force of the same name denies nobody because of it.
type trial struct {
	prefix string // of the keys of its slots; no client's key of a policy begins so
	limits *limitSet
}

// newTrial returns the slots of a dry run, or nil if it needs none.
func (p *Policy) newTrial() *trial {
	if !p.dryRun || p.slots == 0 {
		return nil
	}
	t := &trial{prefix: Key(p.name, "dry run", "")}
	t.limits, _ = p.newLimits(p.name, "", []Limit{{Rate: -1}}, nil, 0) // it is valid
	t.limits.rules.Guard(nil, t.limits.addSlots(p.name, p.slots))
	t.limits.rules.Divide(int64(p.limiter.defaults.replicas))
	return t
}

// askOf returns the question about the slots of the client of another question.
func (t *trial) askOf(own *engine.Ask) engine.Ask {
	ask := *own
	ask.Prefix, ask.Set, ask.Scope, ask.Lease = t.prefix, &t.limits.rules, rules.All, 0
	return ask
}

// peekTrial is [Policy.Peek] of a dry run, with a slot of it.
func (p *Policy) peekTrial(ctx context.Context, q *adHoc) (Result, error) {
	e := p.limiter.engine
	asks, answers := []engine.Ask{q.asks[0], p.trial.askOf(&q.asks[0])}, make([]engine.Answer, 2)
	if err := e.Peek(ctx, asks, answers); err != nil {
		return Result{}, err
	}
	own, slot := q.set.result(e, &answers[0]), p.trial.limits.result(e, &answers[1])
	if own.RetryAfter >= 0 && (!asks[0].Set.Counts(rules.All) || !slot.Allowed && slot.closerThan(own)) {
		own = slot
	}
	return own, nil
}

// banning returns which denials ban a client: none in a dry run.
func (p *Policy) banning() bucket.Bans {
	if p.dryRun {
		return bucket.NoBans
	}
	return bucket.AllBans
}
