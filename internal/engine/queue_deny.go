package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// lookBehind looks, before a request joins others that wait, at what they need not lack: it is done if
// the client is banned, or its tokens come too late.
func (r *queued) lookBehind(ctx context.Context) (done bool, err error) {
	for i := range r.asks {
		ask, answer := &r.asks[i], &r.answers[i]
		if !ask.Set.Counts(rules.Tokens) {
			continue
		}
		ask.Set = ask.Set.Now()
		if err := r.look(ctx, ask, answer); err != nil {
			return true, err
		}
		if l, waits := r.lacks(); !answer.Allowed && (!waits || l.at.After(r.until)) {
			return true, r.deny(ctx, nil)
		}
		answer.reset()
	}
	return false, nil
}

// deny returns the outcome of a request that waits no more. If it lacks tokens, and a denial for want
// of them bans its client, it is denied once more, which does.
func (r *queued) deny(ctx context.Context, err error) error {
	bans := false
	for i := range r.asks {
		r.asks[i].Bans, r.asks[i].turn = r.bans[i], 0
		bans = bans || r.bans[i] != bucket.NoBans && r.asks[i].bans()
	}
	l, waits := r.lacks()
	if err != nil || !bans || !waits || l.slot {
		return err
	}
	for i := range r.asks {
		if r.asks[i].Bans == bucket.AllBans {
			r.asks[i].Bans = bucket.LimitBans
		}
	}
	return r.try(ctx)
}

// denyBehind denies a request that finds no place in a line, would wait there for too long, or has
// waited there without a turn.
func (r *queued) denyBehind(ctx context.Context, l lack) error {
	ask, answer := &r.asks[l.ask], &r.answers[l.ask]
	if l.slot {
		r.forget()
		if r.known() {
			return nil
		}
		r.e.noSlot(ask, answer, r.e.Hash(ask), r.banned())
		return nil
	}
	if before, _ := r.e.waiting.Before(l.line, r.began); before == 0 && answer.Decided && !answer.Allowed {
		return r.deny(ctx, nil) // it has tried
	}
	at := r.expected(l)
	r.forget()
	ask.Set = ask.Set.Now()
	if err := r.look(ctx, ask, answer); err != nil {
		return err
	}
	if !answer.Allowed {
		if err := r.deny(ctx, nil); err != nil || answer.Allowed {
			return err
		}
	}
	wait := time.Duration(bucket.CeilDiv(int64(max(1, time.Until(at))), int64(time.Millisecond))) * time.Millisecond
	if answer.Allowed || answer.RetryAfter >= 0 {
		answer.RetryAfter = max(answer.RetryAfter, wait) // those before it take what is there
	}
	answer.Allowed, answer.Granted, answer.Remaining = false, 0, 0
	answer.ResetAfter = max(answer.ResetAfter, answer.RetryAfter)
	return nil
}

// known finds an Ask that this process knows to be denied for longer than a slot may be missing.
func (r *queued) known() bool {
	for i := range r.asks {
		ask, answer := &r.asks[i], &r.answers[i]
		if !ask.Set.Counts(rules.Limits) {
			continue
		}
		if r.knows(ask, answer) && (answer.RetryAfter < 0 || answer.RetryAfter > slotRetry) {
			return true
		}
		answer.reset()
	}
	return false
}

// knows reports whether a request is known to lack tokens, or to be banned, and if so fills in the answer.
// Denials are remembered of a try, which may want a slot too, and of a look.
func (r *queued) knows(asked *Ask, answer *Answer) bool {
	ask := *asked
	for _, ask.Scope = range [...]rules.Scope{asked.Scope, rules.Tokens} {
		c := r.e.call(takeAll(r.n, &ask), &ask, ask.Scope)
		denied := r.e.isDenied(c, &ask)
		if denied {
			answer.begin(r.e, &ask, c)
			answer.judge(c, c.Op, &ask, FromCache)
		}
		if r.e.release(c); denied {
			return true
		}
	}
	return false
}

// banned returns for how long this process knows the client to be banned.
func (r *queued) banned() (left time.Duration) {
	for i := range r.asks {
		if ask := &r.asks[i]; ask.bans() {
			_, hash := subject(r.e.key(ask), ask.Tenant)
			left = max(left, r.e.bans.left(hash))
		}
	}
	return left
}

// forget forgets what was decided before.
func (r *queued) forget() {
	for i := range r.answers {
		r.answers[i].reset()
	}
}

// look finds whether a request lacks tokens or is banned, without taking anything. It asks Redis only for
// what is not known.
func (r *queued) look(ctx context.Context, asked *Ask, answer *Answer) error {
	e, ask := r.e, *asked
	answer.reset()
	if r.knows(asked, answer) {
		return nil
	}
	ask.Scope = min(ask.Scope, rules.Tokens)
	c := e.call(bucket.Peek(r.n), &ask, ask.Scope)
	defer e.release(c)
	answer.begin(e, &ask, c)
	if err := e.store.Do(ctx, c); err != nil {
		return e.fallBack(ctx, c, c.Op, &ask, answer, err)
	}
	answer.judge(c, c.Op, &ask, FromStore)
	if !answer.Allowed {
		c.Op.Charges = 1
		e.remember(c)
	}
	return nil
}
