package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
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
func (h *handler) newIdentities() ([]identity, error) {
	var all []identity
	var faults []error
	names := map[string]bool{h.name: true}
	for _, option := range h.config.identities {
		if names[option.name] {
			faults = append(faults, fmt.Errorf("ginlimit: WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		r, err := h.newRules(option.limits)
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
}

// claim decides on one claim, and returns the hash of the key. One on 0 tokens is free.
func (l *Limiter) claim(ctx context.Context, c claim, n int) (Result, uint64, error) {
	if res, ok := c.rules.settled(n); ok {
		return res, 0, nil
	}
	a := l.ask(opDecide, c.rules)
	defer l.release(a)
	l.about(a, c.keyName, c.client)
	res, err := l.take(ctx, a, c.rules, n)
	return res, a.hash, err
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
		claims = append(claims, claim{identity.keyName, client, &identity.rules})
	}
	result, counted, err := h.limiter.claimAll(c.Request.Context(), claims, n)
	return decision{result: result, claims: counted}, err
}

// claimAll takes n tokens of every claim, or of none. It returns the Result of the one closest to exhaustion, and
// those that are counted.
func (l *Limiter) claimAll(ctx context.Context, claims []claim, n int) (Result, []claim, error) {
	var closest Result
	var counted []claim
	for i, c := range claims {
		res, ok := c.rules.settled(n)
		if ok && !res.Allowed {
			return res, nil, nil // prohibited: nobody is asked
		}
		if !ok {
			counted = append(counted, c)
		} else if i == 0 || res.closerThan(closest) {
			closest = res
		}
	}
	switch {
	case len(counted) == 0:
		return closest, nil, nil
	case len(counted) == 1:
		res, _, err := l.claim(ctx, counted[0], n)
		return res, counted, err
	}
	if s, ok := l.store.(*redisStore); ok && s.together() {
		res, err := l.claimTogether(ctx, counted, n)
		if !isApart(err) {
			return res, counted, err
		}
		s.goApart()
	}
	res, err := l.claimInTurn(ctx, counted, n)
	return res, counted, err
}

// claimTogether has one script decide on all claims. Where Redis does not, each is decided on without it.
func (l *Limiter) claimTogether(ctx context.Context, claims []claim, n int) (Result, error) {
	all := rules{failure: claims[0].rules.failure}
	for _, c := range claims {
		all.buckets = append(all.buckets, c.rules.buckets...)
	}
	a := l.ask(opDecide, &all)
	defer l.release(a)
	var hash maphash.Hash
	hash.SetSeed(keySeed)
	a.others = a.others[:0]
	from := 0
	for i, c := range claims {
		if i == 0 {
			l.about(a, c.keyName, c.client)
			_, _ = hash.Write(a.key) // it has no error
		} else {
			key := appendSlotText(nil, c.keyName, c.client, l.macs)
			a.others = append(a.others, otherKey{key, from})
			_, _ = hash.Write(key)
		}
		from += len(c.rules.buckets)
	}
	a.hash = hash.Sum64()
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	wish(a, &all, n)
	err := l.store.do(ctx, a)
	switch {
	case err == nil:
		res := told(all.result(a.levels, a.charges, a.n), n)
		res.Source = l.source
		return res, nil
	case isApart(err):
		return Result{}, err
	}
	return l.inTurn(claims, n, func(c claim, a *ask) (Result, error) { return l.without(ctx, a, c.rules, err) })
}

// claimInTurn decides on one claim after another, in no more time than one decision may take, and gives back what was
// taken if a later one refuses.
func (l *Limiter) claimInTurn(ctx context.Context, claims []claim, n int) (Result, error) {
	within := ctx
	if l.source == FromRedis {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, l.defaults.timeout)
		defer cancel()
	}
	return l.inTurn(claims, n, func(c claim, a *ask) (Result, error) { return l.decideWithin(ctx, within, a, c.rules) })
}

// inTurn decides on one claim after another, and gives back what was taken if there is a refusal or an error.
func (l *Limiter) inTurn(claims []claim, n int, decide func(claim, *ask) (Result, error)) (Result, error) {
	var closest Result
	var granted []Result
	for i, c := range claims {
		a := l.ask(opDecide, c.rules)
		l.about(a, c.keyName, c.client)
		wish(a, c.rules, n)
		res, err := decide(c, a)
		l.release(a)
		res = told(res, n)
		if err == nil && res.Allowed {
			granted = append(granted, res)
			if i == 0 || res.closerThan(closest) {
				source := max(res.Source, closest.Source) // one that is local makes all so
				closest = res
				closest.Source = source
			}
			continue
		}
		for i, res := range granted {
			if res.Granted > 0 {
				_ = l.giveBack(context.Background(), claims[i], res) // else it stays taken, as in an outage
			}
		}
		return res, err
	}
	return closest, nil
}

// giveBack returns what a Result granted to a claim, to the buckets that it was taken from.
func (l *Limiter) giveBack(ctx context.Context, c claim, res Result) error {
	store, r, n := l.store, c.rules, int64(res.Granted)
	if res.Source == FromLocal && l.source == FromRedis {
		if r.failure == FailOpen {
			return nil // nothing was taken
		}
		store, r = l.local, r.shareOf(l.defaults.replicas)
	}
	if len(r.buckets) == 0 || n == 0 {
		return nil
	}
	a := l.ask(opDecide, r)
	defer l.release(a)
	l.about(a, c.keyName, c.client)
	a.charges = -n
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

// isApart reports whether Redis refuses a call as its keys are not in one place.
func isApart(err error) bool { return err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") }
