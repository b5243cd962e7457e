package ginlimit

import (
	"context"
	"time"
)

// The plans that Redis keeps, each as text that expires.

// name returns a plan's key in Redis.
func (p *Plans) name(key string) string {
	prefix := p.config.prefix
	if prefix != "" {
		prefix += ":"
	}
	return prefix + "plan:{" + key + "}"
}

// changes returns the key of the number of a plan's invalidations.
func (p *Plans) changes(key string) string { return p.name(key) + ":changes" }

// keptPlan is what Redis has of a plan.
type keptPlan struct {
	plan    *plan         // nil if there is none
	left    time.Duration // for how long it is to be gone by; 0 if it is old
	changes string        // the number of invalidations
}

// kept returns what Redis has.
func (p *Plans) kept(ctx context.Context, key string) keptPlan {
	found, _ := redisSays(ctx, p, func(ctx context.Context) (keptPlan, error) {
		pipe := p.rdb.Pipeline()
		text, life, changes := pipe.Get(ctx, p.name(key)), pipe.PTTL(ctx, p.name(key)), pipe.Get(ctx, p.changes(key))
		if _, err := pipe.Exec(ctx); err != nil && !isRefusal(err) {
			return keptPlan{}, err
		}
		found := keptPlan{changes: changes.Val()}
		if text.Val() == unknownPlan {
			found.plan, found.left = &plan{unknown: true}, max(0, life.Val())
		} else if limit, err := ParseLimit(text.Val()); err == nil { // else there is none, or it is not ours
			found.plan, found.left = &plan{limit: limit}, max(0, life.Val()-planRest)
		}
		return found, nil
	})
	return found
}

// keep puts a plan into Redis, unless it was invalidated since the number of changes was read. It reports whether
// Redis has taken it.
func (p *Plans) keep(ctx context.Context, key string, answer *plan, changes string) bool {
	text, life := answer.limit.String(), p.life+planRest
	if answer.unknown { // anybody can invent clients
		text, life = unknownPlan, p.life
	}
	kept, ok := redisSays(ctx, p, func(ctx context.Context) (bool, error) {
		pipe := p.rdb.Pipeline()
		set, now := pipe.Set(ctx, p.name(key), text, life), pipe.Get(ctx, p.changes(key))
		_, err := pipe.Exec(ctx)
		if set.Err() == nil && now.Val() != changes {
			err = p.rdb.Del(ctx, p.name(key)).Err()
		}
		return set.Err() == nil, err
	})
	return kept && ok
}

// redisSays has Redis asked something, and waits no longer than the timeout. It is false where Redis does not
// answer, and then for a while does not ask.
func redisSays[T any](ctx context.Context, p *Plans, ask func(context.Context) (T, error)) (said T, ok bool) {
	now, away := time.Now(), p.away.Load()
	if away != 0 && (now.UnixMilli() < away || !p.away.CompareAndSwap(away, now.Add(planGlance).UnixMilli())) {
		return said, false // another one tries
	}
	timer := time.NewTimer(p.config.timeout)
	defer timer.Stop()
	select {
	case p.calls <- struct{}{}:
	case <-timer.C:
		return said, false
	}
	type reply struct {
		said T
		err  error
	}
	answered := make(chan reply, 1)
	go func() {
		defer func() { <-p.calls }()
		ctx, cancel := context.WithTimeout(ctx, p.config.timeout)
		defer cancel()
		said, err := ask(ctx)
		answered <- reply{said, err}
	}()
	select {
	case r := <-answered:
		if r.err == nil || isRefusal(r.err) {
			p.away.Store(0)
			return r.said, true
		}
	case <-timer.C:
	}
	p.away.Store(time.Now().Add(planGlance).UnixMilli())
	return said, false
}
