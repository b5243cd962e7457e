package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

const (
	// maxClientLimits is how many sets of limits a policy keeps checked, of those that its function returns. Of more, one makes
	// room for another, whichever it is: a set that is used often is soon there again.
	maxClientLimits = 2048
	// maxCachedLimits is how many limits a set that is kept has at most.
	maxCachedLimits = 16
	// maxAlgorithms is of how many names and periods a limiter remembers the algorithm.
	maxAlgorithms = 1024
)

// Policy is a limit with a name: which clients it counts, by which limits and algorithm, and what happens without Redis.
//
// [Limiter.Policy] makes one. [Policy.Handler] is its middleware; the other methods are for anything else, such as a
// worker, on the same buckets. They take a client as the policy's [KeyFunc] returns it: an IPv6 client of [ByClientIP] is
// 2001:db8::/64, not 2001:db8::1. A key that ByClientIP never returns is logged as a warning. Of the policy's options they use
// its name, limits, [WithLimitFunc], [WithAlgorithm], [WithFloor], [WithLease], [WithBan] and [WithFailure], and Acquire also
// [WithConcurrency] and [WithQueue]; the others, [WithIdentity] among them, are for
// requests. [WithDryRun] says what they do in a dry run. It is safe for concurrent use.
//
// Errors are those of [Limiter], and those of the function of WithLimitFunc.
type Policy struct {
	config
	limiter    *Limiter
	name       string // as events, results and keys have it
	keyName    string // what the keys of its clients begin with
	limits     limitSet
	identities []identity
	allowed    *clientkey.Networks
	forbidden  *clientkey.Networks
	trial      *trial // the slots of a dry run; nil without one, and without slots

	warned      atomic.Bool // that another policy charges the same bucket
	addressUsed atomic.Bool // by its functions or lists, once
	serves      atomic.Bool // requests, by a handler
	faults      redisstore.Throttle

	mu      sync.RWMutex // guards clients
	clients map[clientLimits]*limitSet
}

// clientLimits are the limits of a client, as a key of a map.
type clientLimits struct {
	n      int // of limits
	limits [4]Limit
	more   any // clientLimits of those that follow; nil if there are none
}

func newClientLimits(limits []Limit) (c clientLimits) {
	c.n = copy(c.limits[:], limits)
	if c.n < len(limits) {
		c.more = newClientLimits(limits[c.n:])
	}
	return c
}

// Policy returns a policy of the limiter.
//
// With [WithLimits] there are more limits, with [WithLimitFunc] each client has its own. The error joins all faults.
func (l *Limiter) Policy(limit Limit, opts ...Option) (*Policy, error) {
	p, err := l.policy(limit, opts)
	if err == nil {
		p.compareAlgorithms()
	}
	return p, err
}

// policy returns a policy that others are not compared with yet.
func (l *Limiter) policy(limit Limit, opts []Option) (*Policy, error) {
	if l.store == nil {
		return nil, errNotMade
	}
	cfg, errs := l.defaults.with(opts)
	errs = append(errs, cfg.misused(limiterOptions, true, "%s is an option of the limiter, not of one policy")...)
	p := &Policy{config: cfg, limiter: l, name: cfg.name, clients: map[clientLimits]*limitSet{}}
	limits := append([]Limit{limit}, cfg.limits...)
	if p.name == "" {
		p.name = limitsName(limits)
		if cfg.keyed {
			p.name += " by key"
		}
	}
	p.keyName = Key(p.name, "")
	if p.lease > 0 && p.algorithm == SlidingWindow {
		errs = append(errs, errors.New("ginlimit: WithLease: a SlidingWindow has no leases, as a token counts from when it was used"))
	}
	var err error
	p.limits, err = p.newLimits(p.name, cfg.name, limits, nil, cfg.floor)
	errs = append(errs, err)
	if p.limits.denies && p.limits.prohibited.Rate > 0 {
		errs = append(errs, fmt.Errorf("%w: WithFloor(%d) leaves nothing of %s", ErrInvalidLimit, cfg.floor, p.limits.prohibited))
	}
	p.guard(&p.limits)
	p.trial = p.newTrial()
	if p.queue > 0 && p.slots == 0 {
		errs = append(errs, errors.New("ginlimit: WithQueue: there is no WithConcurrency to wait for"))
	}
	if p.queue > 0 && len(p.config.identities) > 0 {
		errs = append(errs, errors.New("ginlimit: WithQueue: a request with a WithIdentity waits for nothing"))
	}
	p.identities, err = p.newIdentities()
	errs = append(errs, err)
	p.allowed, err = clientkey.NewNetworks(cfg.allow)
	errs = append(errs, wrapped("WithAllowList", err))
	p.forbidden, err = clientkey.NewNetworks(cfg.deny)
	errs = append(errs, wrapped("WithDenyList", err))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// algorithms are those of a limiter's policies, to find policies of one name that count in different ways. Its mutex guards
// it.
type algorithms struct {
	mu     sync.Mutex
	known  map[namedPeriod]Algorithm // of the first policy; at most maxAlgorithms
	warned map[string]bool           // names that known has
}

type namedPeriod struct {
	name   string
	period time.Duration
}

// compareAlgorithms warns if an earlier policy or identity of the name counts by another algorithm: they share no bucket.
// Policies that were given no name are not compared: nobody says that they should share any.
func (p *Policy) compareAlgorithms() {
	if p.config.name != "" && p.limitFunc == nil { // else its own limits are never counted
		p.compareAlgorithm(p.name, &p.limits)
	}
	for i := range p.identities {
		p.compareAlgorithm(p.config.identities[i].name, &p.identities[i].limits)
	}
}

func (p *Policy) compareAlgorithm(name string, s *limitSet) {
	for _, limit := range s.limits {
		if limit.Period == 0 { // a calendar quota, to which the algorithm makes no difference
			continue
		}
		if first, differs := p.limiter.algorithms.compare(namedPeriod{name, limit.Period}, p.algorithm); differs {
			p.logger.Warn("ginlimit: policies of one name share no bucket, as their algorithms differ",
				"name", name, "period", periodText(limit.Period), "first", first.String(), "other", p.algorithm.String())
		}
	}
}

// compare reports whether an algorithm is another one than the first of a name and a period, once for each name.
func (a *algorithms) compare(key namedPeriod, algorithm Algorithm) (first Algorithm, differs bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, known := a.known[key]
	switch {
	case !known && len(a.known) < maxAlgorithms:
		if a.known == nil {
			a.known, a.warned = map[namedPeriod]Algorithm{}, map[string]bool{}
		}
		a.known[key] = algorithm
	case known && first != algorithm && !a.warned[key.name]:
		a.warned[key.name] = true
		return first, true
	}
	return first, false
}

func wrapped(option string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ginlimit: %s: %w", option, err)
}

// limitsName returns the text that equal sets of limits share.
func limitsName(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		if l.Burst == l.Rate {
			l.Burst = 0
		}
		texts[i] = l.String()
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// newLimits returns limits under the name of a policy or an identity, with the policy's failure mode and share. In the
// fields they have the field name, and none that is taken.
func (p *Policy) newLimits(name, fieldName string, limits []Limit, taken []string, floor int) (limitSet, error) {
	s, err := newLimitSet(p.algorithm, limits...)
	s.name, s.failure, s.lease = name, p.failure, p.lease
	s.setFloor(int64(floor))
	s.list(fieldName, len(limits) > 1, taken)
	if s.replicas = p.limiter.defaults.replicas; s.replicas > 1 {
		s.share = s.shareOf(s.replicas)
	}
	return s, err
}

// limitsOf returns the limits of a client.
func (p *Policy) limitsOf(ctx context.Context, client string) (*limitSet, error) {
	if p.limitFunc == nil {
		return p.limits.now(), nil
	}
	limits, err := p.limitFunc(ctx, client)
	if err != nil {
		return nil, err
	}
	var key clientLimits
	if len(limits) <= maxCachedLimits {
		key = newClientLimits(limits)
		p.mu.RLock()
		s := p.clients[key]
		p.mu.RUnlock()
		if s != nil {
			return s.now(), nil
		}
	}
	var taken []string
	for i := range p.identities {
		taken = append(taken, p.identities[i].limits.policyNames()...)
	}
	fresh, err := p.newLimits(p.name, p.config.name, limits, taken, p.floor)
	if err != nil {
		return nil, err
	}
	p.guard(&fresh)
	if len(limits) <= maxCachedLimits {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.clients) >= maxClientLimits {
			for any := range p.clients { // a map begins with any of them
				delete(p.clients, any)
				break
			}
		}
		p.clients[key] = &fresh
	}
	return &fresh, nil
}

// subject returns a client under its limits, or all faults in a method's arguments.
func (p *Policy) subject(ctx context.Context, client string, n int) (*subject, error) {
	if p == nil || p.limiter == nil {
		return nil, errNoPolicy
	}
	if err := checkArguments(client, n, nil); err != nil {
		return nil, err
	}
	p.warnNoClient(ctx, client)
	limits, err := p.limitsOf(ctx, client)
	if err != nil {
		return nil, err
	}
	return &subject{keyName: p.keyName, client: client, limits: limits, bans: p.banning()}, nil
}

// errNoPolicy is the error of a zero Policy.
var errNoPolicy = fmt.Errorf("%w: the policy was not made by Limiter.Policy", ErrUnavailable)

// begin returns a client under its limits, and an Event of a method that takes tokens. An error of the policy's function
// is an Event too.
func (p *Policy) begin(ctx context.Context, client string, n int) (*subject, observation, error) {
	if p == nil || p.limiter == nil {
		return nil, observation{}, errNoPolicy
	}
	o := p.observe(p.name)
	s, err := p.subject(ctx, client, n)
	if err != nil && client != "" && n > 0 {
		o.record(ctx, OutcomeError, n, false, Result{}, failure{err: err, origin: fromLimitFunc})
	}
	return s, o, err
}

// Allow takes one token of a client. It is short for AllowN with n = 1.
func (p *Policy) Allow(ctx context.Context, client string) (Result, error) {
	return p.AllowN(ctx, client, 1)
}

// AllowN takes n tokens of a client, or none. See [Limiter.AllowN].
func (p *Policy) AllowN(ctx context.Context, client string, n int) (Result, error) {
	s, o, err := p.begin(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	res, _, err := p.limiter.allow(ctx, s, n)
	return res, o.end(ctx, p.limiter, s, n, res, err)
}

// AllowUpTo takes as many tokens of a client as there are, up to n. See [Limiter.AllowUpTo].
func (p *Policy) AllowUpTo(ctx context.Context, client string, n int) (Result, error) {
	s, o, err := p.begin(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	res, err := p.limiter.allowUpTo(ctx, s, n)
	return res, o.end(ctx, p.limiter, s, n, res, err)
}

// Wait takes one token of a client as soon as there is one. It is short for WaitN with n = 1.
func (p *Policy) Wait(ctx context.Context, client string) error { return p.WaitN(ctx, client, 1) }

// WaitN takes n tokens of a client as soon as there are so many. See [Limiter.WaitN].
func (p *Policy) WaitN(ctx context.Context, client string, n int) error {
	s, o, err := p.begin(ctx, client, n)
	if err != nil {
		return err
	}
	res, err := p.limiter.wait(ctx, s, n)
	return waited(res, n, o.end(ctx, p.limiter, s, n, res, err))
}

// Peek tells what one token of a client would meet, with [WithConcurrency] together with a slot, and takes nothing: Granted is 0.
func (p *Policy) Peek(ctx context.Context, client string) (Result, error) {
	s, err := p.subject(ctx, client, 1)
	if err != nil {
		return Result{}, err
	}
	if p.trial != nil {
		return p.peekTrial(ctx, s)
	}
	return p.limiter.peek(ctx, ctx, s)
}

// Refund gives n tokens back to a client. See [Limiter.Refund].
func (p *Policy) Refund(ctx context.Context, client string, n int) error {
	s, err := p.subject(ctx, client, n)
	if err != nil {
		return err
	}
	return p.limiter.refund(ctx, s, n)
}

// Block denies a client every token for d, in every process. See [Limiter.Block]. It blocks the buckets of the limits that the
// client has now: a limit of another period, which [WithLimitFunc] returns later, has a bucket of its own.
func (p *Policy) Block(ctx context.Context, client string, d time.Duration) error {
	s, err := p.subject(ctx, client, 1)
	if err != nil {
		return err
	}
	return p.limiter.block(ctx, s, d)
}

// Reset fills a client's buckets up, and ends a block and a ban. It leaves slots alone, as their requests are in flight.
func (p *Policy) Reset(ctx context.Context, client string) error {
	s, err := p.subject(ctx, client, 1)
	if err != nil {
		return err
	}
	return p.limiter.reset(ctx, s)
}

// FirstOf returns middleware that limits a request by the first of the policies whose [KeyFunc] finds a key.
//
// So a request counts under its API key, say, or else under its address. A key function finds none if it returns an error
// that wraps [ErrNoKey], or an empty key. Any other error, such as [ErrBadRequest], and every error after a key was found, such as
// [ErrUnknownClient] of [WithLimitFunc], is that policy's to answer. If no policy finds a key, the error is the last
// policy's to answer. It panics without a policy, on a nil one, and on policies of two limiters.
func FirstOf(policies ...*Policy) gin.HandlerFunc {
	if len(policies) == 0 {
		panic(errors.New("ginlimit: FirstOf without a policy"))
	}
	policies = slices.Clone(policies)
	var errs []error
	first := -1
	for i, p := range policies {
		switch {
		case p == nil || p.limiter == nil:
			errs = append(errs, fmt.Errorf("ginlimit: FirstOf: policy %d is nil or was not made by Limiter.Policy", i+1))
		case first < 0:
			first = i
		case p.limiter != policies[first].limiter:
			errs = append(errs, fmt.Errorf("ginlimit: FirstOf: policy %d is of another limiter than policy %d", i+1, first+1))
		}
	}
	if err := errors.Join(errs...); err != nil {
		panic(err)
	}
	for _, p := range policies {
		p.serves.Store(true)
	}
	return func(c *gin.Context) {
		for i, p := range policies {
			c.Set(policyKey, p)
			client, err := p.clientKey(c)
			if i == len(policies)-1 || !errors.Is(err, ErrNoKey) {
				p.serve(c, func(*gin.Context) (string, error) { return client, err })
				return
			}
		}
	}
}
