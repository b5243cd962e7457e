package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// identityOption is what [WithIdentity] was given.
type identityOption struct {
	name   string
	key    KeyFunc
	limits []Limit
}

// identity is one that a handler's requests are counted for besides.
type identity struct {
	keyName string
	key     KeyFunc
	rules   rules
}

// newIdentities returns the identities of the handler's configuration, and all faults in them.
func (h *handler) newIdentities(fieldNames map[string]bool) ([]identity, error) {
	var all []identity
	var faults []error
	names := map[string]bool{h.name: true}
	for _, option := range h.config.identities {
		if names[option.name] {
			faults = append(faults, fmt.Errorf("ginlimit: WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		r, err := h.newRules(newFieldName(option.name, fieldNames), option.limits)
		h.policies = append(h.policies, r.policies)
		faults = append(faults, wrapped(fmt.Sprintf("WithIdentity(%q)", option.name), err))
		all = append(all, identity{Key(option.name, ""), option.key, r})
	}
	return all, errors.Join(faults...)
}

// claim is a wish for tokens of one identity.
type claim struct {
	keyName string // what the keys of the handler begin with
	client  string
	rules   *rules
	told    *standings // what the client is told of it
}

// charge is what was taken of a claim.
type charge struct {
	claim
	n      int
	source Source // of whose buckets
}

// claim decides on one claim, and returns the hash of the key. One on 0 tokens is free.
func (l *Limiter) claim(ctx context.Context, c claim, n int) (Result, uint64, error) {
	if res, ok := c.settled(n); ok {
		return res, 0, nil
	}
	a := l.ask(opDecide, c.rules)
	defer l.release(a)
	l.about(a, c.keyName, c.client)
	a.told = c.told
	res, err := l.take(ctx, a, c.rules, n)
	return res, a.hash, err
}

// settled is that of its rules, and tells of a limit that prohibits.
func (c *claim) settled(n int) (Result, bool) {
	res, ok := c.rules.settled(n)
	if ok && !res.Allowed {
		c.told.addProhibited(c.rules.policy)
	}
	return res, ok
}

// decideAll decides on a request for all of its identities.
func (h *handler) decideAll(c *gin.Context, own claim, n int) (decision, error) {
	claims := []claim{own}
	for i := range h.identities {
		identity := &h.identities[i]
		client, err := identity.key(c)
		if err == nil && client == "" {
			err = fmt.Errorf("%w: a key function returned none", ErrNoKey)
		}
		if err != nil {
			return decision{}, err
		}
		claims = append(claims, claim{identity.keyName, client, &identity.rules, own.told})
	}
	return h.limiter.claimAll(c.Request.Context(), claims, n)
}

// claimAll takes n tokens of every claim, or of none. Its Result is that of the one closest to exhaustion.
func (l *Limiter) claimAll(ctx context.Context, claims []claim, n int) (decision, error) {
	var d decision
	var counted []claim
	for i, c := range claims {
		res, ok := c.settled(n)
		if ok && !res.Allowed {
			return decision{result: res}, nil // prohibited: nobody is asked
		}
		if !ok {
			counted = append(counted, c)
		} else if i == 0 || res.closerThan(d.result) {
			d.result = res
		}
	}
	if len(counted) == 0 {
		return d, nil
	}
	if err := l.ready(ctx); err != nil {
		return decision{}, err
	}
	start := time.Now()
	if s, ok := l.store.(*redisStore); ok && len(counted) > 1 && s.together() {
		d, err := l.claimTogether(ctx, counted, n)
		if err == nil || !isReply(err) {
			return d, err
		}
		// As one of a cluster's node, or of a proxy.
		if d, err = l.claimInTurn(ctx, start, counted, n); err == nil && d.result.Source != FromLocal {
			s.goApart()
		}
		return d, err
	}
	return l.claimInTurn(ctx, start, counted, n)
}

// claimTogether has one script decide on all claims. Where Redis is late or lost, each is decided on without it;
// what it refuses is an error.
func (l *Limiter) claimTogether(ctx context.Context, claims []claim, n int) (decision, error) {
	all := rules{failure: claims[0].rules.failure}
	singles := make([]*ask, len(claims))
	var known decision
	for i, c := range claims {
		all.buckets = append(all.buckets, c.rules.buckets...)
		a := l.ask(opDecide, c.rules)
		defer l.release(a)
		l.about(a, c.keyName, c.client)
		wish(a, c.rules, n)
		singles[i] = a
		if l.denied.knows(a) {
			res := c.rules.result(a.states, a.charges, a.n, c.told)
			if known.hash == 0 || res.closerThan(known.result) {
				known = decision{result: res, hash: a.hash}
			}
		}
	}
	if known.hash != 0 {
		known.result.Source = FromMemory
		return known, nil
	}
	a := l.ask(opDecide, &all)
	defer l.release(a)
	a.key = append(a.key[:0], singles[0].key...)
	from := len(claims[0].rules.buckets)
	for i, c := range claims[1:] {
		a.others = append(a.others, otherKey{singles[i+1].key, from})
		from += len(c.rules.buckets)
	}
	a.hash = singles[0].hash
	wish(a, &all, n)
	a.told = claims[0].told
	err := l.store.do(ctx, a)
	switch {
	case err == nil:
		res := told(all.result(a.states, a.charges, a.n, a.told), n)
		res.Source = l.source
		l.learn(claims, singles, a, res.Granted > 0)
		return granted(claims, singles[0].hash, res), nil
	case isReply(err):
		return decision{}, err
	}
	return l.inTurn(ctx, claims, n, func(c claim, a *ask) (Result, error) { return l.without(ctx, a, c.rules, err) })
}

// learn has the deny memory know what one script found of several claims.
func (l *Limiter) learn(claims []claim, singles []*ask, a *ask, taken bool) {
	from := 0
	for i, single := range singles {
		copy(single.states, a.states[from:])
		from += len(single.states)
		single.sent, single.received = a.sent, a.received
		switch {
		case taken:
			l.denied.drop(single)
		case !claims[i].rules.result(single.states, single.charges, single.n, nil).Allowed:
			l.denied.remember(single)
		}
	}
}

// granted is the decision on claims that were decided on together.
func granted(claims []claim, hash uint64, res Result) decision {
	d := decision{result: res, hash: hash}
	if res.Granted > 0 {
		for _, c := range claims {
			d.taken = append(d.taken, charge{c, res.Granted, res.Source})
		}
	}
	return d
}

// claimInTurn decides on one claim after another, in no more time than one decision may take, and gives back what was
// taken if a later one refuses.
func (l *Limiter) claimInTurn(ctx context.Context, start time.Time, claims []claim, n int) (decision, error) {
	within := ctx
	if l.source == FromRedis {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, start.Add(l.defaults.timeout))
		defer cancel()
	}
	return l.inTurn(within, claims, n, func(c claim, a *ask) (Result, error) { return l.decideWithin(ctx, within, a, c.rules) })
}

// inTurn decides on one claim after another, and gives back what was taken if there is a refusal or an error. It has
// no more time for that than the context; then it is done afterwards.
func (l *Limiter) inTurn(ctx context.Context, claims []claim, n int, decide func(claim, *ask) (Result, error)) (decision, error) {
	var d decision
	source := l.source
	for i, c := range claims {
		a := l.ask(opDecide, c.rules)
		l.about(a, c.keyName, c.client)
		wish(a, c.rules, n)
		a.told = c.told
		before := len(c.told.limits)
		res, err := decide(c, a)
		if i == 0 {
			d.hash = a.hash
		}
		l.release(a)
		res = told(res, n)
		if err != nil || !res.Allowed {
			l.giveBackAll(ctx, d.taken)
			c.told.giveBack(before, int64(n))
			return decision{result: res, hash: d.hash}, err
		}
		if res.Granted > 0 {
			d.taken = append(d.taken, charge{c, res.Granted, res.Source})
		}
		source = max(source, res.Source) // one that is local makes all so
		if i == 0 || res.closerThan(d.result) {
			d.result = res
		}
	}
	d.result.Source = source
	return d, nil
}

// giveBackAll gives back what was taken. It waits for that as long as the context lasts. What cannot be given back
// stays taken, as by a request whose answer is lost.
func (l *Limiter) giveBackAll(ctx context.Context, taken []charge) {
	if len(taken) == 0 {
		return
	}
	done := make(chan struct{})
	l.afterwards.do(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), l.defaults.timeout)
		defer cancel()
		for _, charge := range taken {
			_ = l.giveBack(ctx, charge)
		}
	}, done)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// afterwards is work that nobody has to wait for but close.
type afterwards struct {
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup
}

// do does f, which closes done, unless it is too late.
func (a *afterwards) do(f func(), done chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		close(done)
		return
	}
	a.all.Go(f)
}

func (a *afterwards) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.all.Wait()
}

// giveBack returns what was taken, to the buckets that it was taken from.
func (l *Limiter) giveBack(ctx context.Context, taken charge) error {
	store, r := l.store, taken.rules
	if taken.source == FromLocal && l.source == FromRedis {
		if r.failure == FailOpen {
			return nil // nothing was taken
		}
		store, r = l.local, r.shareOf(l.defaults.replicas)
	}
	if len(r.buckets) == 0 {
		return nil
	}
	a := l.ask(opDecide, r)
	defer l.release(a)
	l.about(a, taken.keyName, taken.client)
	a.charges = -int64(taken.n)
	err := store.do(ctx, a)
	l.denied.forget(a, err != nil && !isRefusal(err))
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// together reports whether keys of several clients may go into one call of the script.
func (s *redisStore) together() bool { return s.apart.Load() <= time.Now().Unix() }

// goApart has keys go apart for a while.
func (s *redisStore) goApart() { s.apart.Store(time.Now().Add(apartTime).Unix()) }
