package ginlimit

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// trial is what a policy with [WithDryRun] and [WithConcurrency] has instead of slots: slots of its own, so that a policy in force
// of the same name denies nobody because of it.
type trial struct {
	keyName string // what the keys of its slots begin with; no client's key of a policy begins so
	limits  limitSet
}

// newTrial returns the slots of a dry run, or nil if it needs none.
func (p *Policy) newTrial() *trial {
	if !p.dryRun || p.slots == 0 {
		return nil
	}
	t := &trial{keyName: Key(p.name, "dry run", "")}
	t.limits, _ = p.newLimits(p.name, "", []Limit{{Rate: -1}}, nil, 0) // it is valid
	t.limits.guards = &guards{}
	t.limits.guards.setSlots(p, &t.limits)
	t.limits.withGuards()
	return t
}

// subject returns the slots of a client.
func (t *trial) subject(s *subject) subject {
	status := s.status
	if status == nil {
		status = &limitStatuses{}
	}
	return subject{keyName: t.keyName, client: s.client, limits: &t.limits, status: status, acquires: true, trial: true}
}

// tryOut decides on a slot of the dry run, on n tokens and on the identities: on all or none, one after another.
func (p *Policy) tryOut(ctx context.Context, n int, subjects ...subject) (decision, error) {
	own := &subjects[0]
	slot := p.trial.subject(own)
	own.status = slot.status
	d, err := p.limiter.allowAll(ctx, append([]subject{slot}, subjects...), n)
	if len(d.taken) > 0 {
		d.slot = d.taken[0].slot
	}
	if d.hash != 0 { // of the policy's own key, not of the slots
		d.hash = clientkey.Hash(p.limiter.keys.Append(nil, own.keyName, own.client))
	}
	return d, err
}

// acquireTrial is [Policy.acquire] of a dry run, which does not wait.
func (p *Policy) acquireTrial(ctx context.Context, s *subject, n int) (Result, uint64, error) {
	d, err := p.tryOut(ctx, n, *s)
	s.slot, s.failure, s.keyName = d.slot, d.failure, p.trial.keyName // by which the slot is released
	return d.result, d.hash, err
}

// peekTrial is [Limiter.peek] of a dry run, with a slot of it.
func (p *Policy) peekTrial(ctx context.Context, s *subject) (Result, error) {
	within := ctx
	if p.limiter.source == FromRedis {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, time.Now().Add(p.limiter.defaults.timeout))
		defer cancel()
	}
	own, err := p.limiter.peek(ctx, within, s)
	if err != nil || own.RetryAfter < 0 {
		return own, err
	}
	subject := p.trial.subject(s)
	slot, err := p.limiter.peek(ctx, within, &subject)
	if len(s.limits.all()) == 0 || !slot.Allowed && slot.closerThan(own) {
		own = slot
	}
	return own, err
}

// slotKeyName is what the keys of the policy's slots begin with.
func (p *Policy) slotKeyName() string {
	if p.trial != nil {
		return p.trial.keyName
	}
	return p.keyName
}

// banning returns which denials ban a client: none in a dry run.
func (p *Policy) banning() bucket.Bans {
	if p.dryRun {
		return bucket.NoBans
	}
	return bucket.AllBans
}
