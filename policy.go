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

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
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
	prefix     string // of the keys of its clients
	limits     *limitSet
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
	if l.engine == nil {
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
	p.prefix = Key(p.name, "")
	if p.lease > 0 && p.algorithm == SlidingWindow {
		errs = append(errs, errors.New("ginlimit: WithLease: a SlidingWindow has no leases, as a token counts from when it was used"))
	}
	var err error
	p.limits, err = p.newLimits(p.name, cfg.name, limits, nil, cfg.floor)
	errs = append(errs, err)
	if p.limits.rules.Prohibits() && p.limits.prohibited.Rate > 0 {
		errs = append(errs, fmt.Errorf("%w: WithFloor(%d) leaves nothing of %s", ErrInvalidLimit, cfg.floor, p.limits.prohibited))
	}
	p.guard(p.limits)
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
		p.compareAlgorithm(p.name, p.limits)
	}
	for i := range p.identities {
		p.compareAlgorithm(p.config.identities[i].name, p.identities[i].limits)
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

// newLimits returns limits under the name of a policy or an identity. In the header fields they have
// the field name, and no name that is taken.
func (p *Policy) newLimits(name, fieldName string, limits []Limit, taken []string, floor int) (*limitSet, error) {
	s, err := newLimitSet(p.algorithm, limits...)
	s.name = name
	s.leave(floor)
	s.nameFields(fieldName, len(limits) > 1, taken)
	return s, err
}

// guard completes a set of the policy's limits with its ban and slots, and with its share without
// Redis.
func (p *Policy) guard(s *limitSet) {
	var ban, slots *bucket.Bucket
	if p.banFirst > 0 {
		b := bucket.NewBan(milliseconds(p.banFirst), milliseconds(p.banLongest))
		ban = &b
	}
	if p.slots > 0 && !p.dryRun && !s.rules.Prohibits() { // a dry run has slots of its own: see trial
		slots = s.addSlots(p.name, p.slots)
	}
	s.rules.Guard(ban, slots)
	s.rules.Divide(int64(p.limiter.defaults.replicas))
}

// limitsOf returns the limits of a client.
func (p *Policy) limitsOf(ctx context.Context, client string) (*limitSet, error) {
	if p.limitFunc == nil {
		return p.limits, nil
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
			return s, nil
		}
	}
	var taken []string
	for i := range p.identities {
		taken = append(taken, p.identities[i].limits.fieldNames()...)
	}
	fresh, err := p.newLimits(p.name, p.config.name, limits, taken, p.floor)
	if err != nil {
		return nil, err
	}
	p.guard(fresh)
	if len(limits) <= maxCachedLimits {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.clients) >= maxClientLimits {
			for any := range p.clients { // a map begins with any of them
				delete(p.clients, any)
				break
			}
		}
		p.clients[key] = fresh
	}
	return fresh, nil
}

// ask returns the question of a method's arguments, or all faults in them. It is to be put back.
func (p *Policy) ask(ctx context.Context, client string, n int) (*adHoc, error) {
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
	q := p.limiter.adHoc()
	q.set, q.asks[0] = limits, p.askOf(client, limits)
	return q, nil
}

// askOf returns the question about a client under limits.
func (p *Policy) askOf(client string, limits *limitSet) engine.Ask {
	return engine.Ask{
		Prefix: p.prefix, Client: client, Set: limits.rules.Now(), Scope: rules.Tokens, Bans: p.banning(),
		Failure: engine.Failure(p.failure), Lease: p.lease,
	}
}

// errNoPolicy is the error of a zero Policy.
var errNoPolicy = fmt.Errorf("%w: the policy was not made by Limiter.Policy", ErrUnavailable)

// observed is ask of a method that takes tokens, and that observers see. An error of the policy's
// function is an Event too.
func (p *Policy) observed(ctx context.Context, client string, n int) (*adHoc, error) {
	if p == nil || p.limiter == nil {
		return nil, errNoPolicy
	}
	o := observe(p.observers, p.name)
	q, err := p.ask(ctx, client, n)
	if err != nil && client != "" && n > 0 {
		o.record(ctx, OutcomeError, n, false, Result{}, failure{err: err, origin: fromLimitFunc})
	}
	if q != nil {
		q.observed = o
	}
	return q, err
}

// Allow takes one token of a client. It is short for AllowN with n = 1.
func (p *Policy) Allow(ctx context.Context, client string) (Result, error) {
	return p.AllowN(ctx, client, 1)
}

// AllowN takes n tokens of a client, or none. See [Limiter.AllowN].
func (p *Policy) AllowN(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	return q.end(ctx, n, p.limiter.engine.Take(ctx, int64(n), q.asks[:], q.answers[:]))
}

// AllowUpTo takes as many tokens of a client as there are, up to n. See [Limiter.AllowUpTo].
func (p *Policy) AllowUpTo(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	return q.end(ctx, n, p.limiter.engine.TakeUpTo(ctx, int64(n), &q.asks[0], &q.answers[0]))
}

// Wait takes one token of a client as soon as there is one. It is short for WaitN with n = 1.
func (p *Policy) Wait(ctx context.Context, client string) error { return p.WaitN(ctx, client, 1) }

// WaitN takes n tokens of a client as soon as there are so many. See [Limiter.WaitN].
func (p *Policy) WaitN(ctx context.Context, client string, n int) error {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return err
	}
	defer q.putBack()
	res, err := q.end(ctx, n, p.limiter.engine.Wait(ctx, int64(n), &q.asks[0], &q.answers[0]))
	return waited(res, n, err)
}

// Peek tells what one token of a client would meet, with [WithConcurrency] together with a slot, and takes nothing: Granted is 0.
func (p *Policy) Peek(ctx context.Context, client string) (Result, error) {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	q.asks[0].Scope = rules.All
	if p.trial != nil {
		return p.peekTrial(ctx, q)
	}
	if err := p.limiter.engine.Peek(ctx, q.asks[:], q.answers[:]); err != nil {
		return Result{}, err
	}
	return q.result(), nil
}

// Refund gives n tokens back to a client. See [Limiter.Refund].
func (p *Policy) Refund(ctx context.Context, client string, n int) error {
	q, err := p.ask(ctx, client, n)
	if err != nil {
		return err
	}
	return p.limiter.engine.Refund(ctx, int64(n), &q.asks[0])
}

// Block denies a client every token for d, in every process. See [Limiter.Block]. It blocks the buckets of the limits that the
// client has now: a limit of another period, which [WithLimitFunc] returns later, has a bucket of its own.
func (p *Policy) Block(ctx context.Context, client string, d time.Duration) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	if err := q.set.checkBlockable(d); err != nil {
		return err
	}
	return p.limiter.engine.Block(ctx, d, &q.asks[0])
}

// Reset fills a client's buckets up, and ends a block and a ban. It leaves slots alone, as their requests are in flight.
func (p *Policy) Reset(ctx context.Context, client string) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	return p.limiter.engine.Reset(ctx, &q.asks[0])
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
