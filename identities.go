package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// identityOption is what [WithIdentity] was given.
type identityOption struct {
	name   string
	key    KeyFunc
	limits []Limit
}

// identity is an additional key that a policy's requests count under.
type identity struct {
	keyName string
	key     KeyFunc
	limits  limitSet
}

// newIdentities returns the identities of the policy's configuration, and all errors in them.
func (p *Policy) newIdentities() ([]identity, error) {
	var all []identity
	var errs []error
	names, taken := map[string]bool{p.name: true}, p.limits.policyNames()
	if p.slots > 0 {
		names[p.name+slotsSuffix] = true
	}
	for _, option := range p.config.identities {
		if names[option.name] {
			errs = append(errs, fmt.Errorf("ginlimit: WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		set, err := p.newLimits(option.name, option.name, option.limits, taken, 0)
		taken = append(taken, set.policyNames()...)
		errs = append(errs, wrapped(fmt.Sprintf("WithIdentity(%q)", option.name), err))
		all = append(all, identity{Key(option.name, ""), option.key, set})
	}
	return all, errors.Join(errs...)
}

// subjects returns the subjects of a request: the policy's own, then its identities.
func (p *Policy) subjects(c *gin.Context, own subject) ([]subject, error) {
	all := []subject{own}
	for i := range p.identities {
		identity := &p.identities[i]
		client, err := identity.key(c)
		if err == nil && client == "" {
			err = fmt.Errorf("%w: a key function returned none", ErrNoKey)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, subject{keyName: identity.keyName, client: client, limits: identity.limits.now(), status: own.status})
	}
	return all, nil
}

// charge is what was taken of a subject.
type charge struct {
	subject
	n      int
	source Source // of whose buckets
}

// allowAll takes n tokens of every subject, or of none. Its Result is that of the one closest to exhaustion.
func (l *Limiter) allowAll(ctx context.Context, subjects []subject, n int) (decision, error) {
	if err := l.ready(ctx); err != nil {
		return decision{}, err
	}
	var d decision
	var counted []subject
	guarded := false
	for i := range subjects {
		s := &subjects[i]
		under := s.guarded()
		guarded = guarded || under != s
		res, ok := under.static(n)
		if ok && !res.Allowed {
			return decision{result: res}, nil // prohibited: nobody is asked
		}
		if !ok {
			counted = append(counted, *s)
		} else if i == 0 || res.closerThan(d.result) {
			d.result = res
		}
	}
	if len(counted) == 0 {
		return d, nil
	}
	start := time.Now()
	if store, ok := l.store.(*redisstore.Store); ok && len(counted) > 1 && !guarded && store.Together() {
		d, err := l.allowTogether(ctx, counted, n)
		if err == nil || !redisstore.IsReply(err) {
			return d, err
		}
		// As one of a cluster's node, or of a proxy.
		if d, err = l.allowInTurn(ctx, start, counted, n); err == nil && d.result.Source != FromLocal {
			store.Separate()
		}
		return d, err
	}
	return l.allowInTurn(ctx, start, counted, n)
}

// allowTogether has one script decide on all subjects. If Redis is late or unavailable, each is decided on without it. An
// error that Redis replied is returned.
func (l *Limiter) allowTogether(ctx context.Context, subjects []subject, n int) (decision, error) {
	all := limitSet{failure: subjects[0].limits.failure}
	singles := make([]*dispatch.Call, len(subjects))
	var known decision
	for i := range subjects {
		s := &subjects[i]
		all.join(s.limits)
		c := l.call(takeAll(s.limits, n), s)
		defer l.release(c)
		singles[i] = c
		s.receipt.begin(l, c.Hash)
		if l.knownRefusal(c) {
			res := s.limits.result(c.States, c.Op, s.status)
			if known.hash == 0 || res.closerThan(known.result) {
				known = decision{result: res, hash: c.Hash}
			}
		}
	}
	if known.hash != 0 {
		known.result.Source = FromMemory
		return known, nil
	}
	joint := subjects[0]
	joint.limits = &all
	c := l.call(takeAll(&all, n), &joint)
	defer l.release(c)
	from := len(subjects[0].limits.buckets)
	for i := range subjects[1:] {
		c.AddKey(singles[i+1].Key, singles[i+1].Hash, from) // a copy: singles[i+1] may be used again before c is answered
		from += len(subjects[i+1].limits.buckets)
	}
	err := l.do(ctx, c)
	switch {
	case err == nil:
		res := allOrNone(all.result(c.States, c.Op, joint.status), n)
		res.Source = l.source
		l.learn(subjects, singles, c, res.Granted > 0)
		return l.taken(subjects, c, res), nil
	case redisstore.IsReply(err):
		return decision{}, err
	}
	return l.inTurn(ctx, subjects, n, func(s *subject, c *dispatch.Call) (Result, error) { return l.fallback(ctx, c, c.Op, s, err) })
}

// learn has the deny cache know what one script found of several subjects.
func (l *Limiter) learn(subjects []subject, singles []*dispatch.Call, c *dispatch.Call, taken bool) {
	from := 0
	for i, single := range singles {
		copy(single.States, c.States[from:])
		from += len(single.States)
		single.Sent, single.Received = c.Sent, c.Received
		switch {
		case taken:
			l.denied.Drop(single.Key, single.Hash)
		case !subjects[i].limits.result(single.States, single.Op, nil).Allowed:
			l.remember(single)
		}
	}
}

// taken is the decision on subjects that one script decided on together.
func (l *Limiter) taken(subjects []subject, c *dispatch.Call, res Result) decision {
	d := decision{result: res, hash: c.Hash}
	if !res.Allowed {
		return d
	}
	from := 0
	for _, s := range subjects {
		to := from + len(s.limits.buckets)
		s.receipt.fill(c.Sent, c.States[from:to])
		d.taken = append(d.taken, charge{s, res.Granted, res.Source})
		from = to
	}
	return d
}

// allowInTurn decides on one subject after another, in no more time than one decision may take, and gives back what was
// taken if a later one refuses.
func (l *Limiter) allowInTurn(ctx context.Context, start time.Time, subjects []subject, n int) (decision, error) {
	within := ctx
	if l.source == FromRedis {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, start.Add(l.defaults.timeout))
		defer cancel()
	}
	return l.inTurn(within, subjects, n, func(s *subject, c *dispatch.Call) (Result, error) { return l.decide(ctx, within, c, s) })
}

// inTurn decides on one subject after another, and gives back what was taken if there is a refusal or an error. It waits
// for that as long as the context lasts.
func (l *Limiter) inTurn(ctx context.Context, subjects []subject, n int,
	decide func(*subject, *dispatch.Call) (Result, error)) (decision, error) {
	if !l.background.begin() {
		return decision{}, errClosed()
	}
	defer l.background.all.Done()
	var d decision
	source := l.source
	for i := range subjects {
		s := &subjects[i]
		s.receipt = l.newReceipt()
		before := len(s.status.limits)
		under := s.guarded()
		c := l.call(takeAll(under.limits, n), under)
		end := l.attempt(c, s)
		res, err := func() (Result, error) {
			defer end()
			res, err := decide(under, c)
			l.settleAttempt(c, s, res, err)
			return res, err
		}()
		if i == 0 {
			d.hash = c.Hash
		}
		if under.failure != nil {
			d.failure = under.failure
		}
		l.release(c)
		res = allOrNone(res, n)
		if err != nil || !res.Allowed {
			l.giveBackAll(ctx, d.taken)
			s.status.giveBack(before, int64(n))
			return decision{result: res, hash: d.hash, failure: d.failure}, err
		}
		if res.Granted > 0 || n == 0 {
			d.taken = append(d.taken, charge{*s, res.Granted, res.Source})
		}
		source = max(source, res.Source) // one that is local makes all so
		// A free slot of a dry run says nothing of the limits.
		if i == 0 || i == 1 && subjects[0].trial || res.closerThan(d.result) {
			d.result = res
		}
	}
	d.result.Source = source
	return d, nil
}

// giveBackAll gives back what was taken, and waits for that as long as the context lasts. What cannot be given back stays
// taken.
func (l *Limiter) giveBackAll(ctx context.Context, taken []charge) {
	if len(taken) == 0 {
		return
	}
	l.finish(ctx, func(ctx context.Context) {
		for i := range taken {
			_ = l.giveBack(ctx, &taken[i])
		}
	})
}
