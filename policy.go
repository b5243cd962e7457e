package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Policy is a limit with a name: which clients it counts, by which limits and algorithm, and what
// happens without Redis.
//
// [Limiter.Policy] makes one. [Policy.Handler] is its middleware; the other methods are for
// anything else, such as a worker, on the same buckets. They take a client as the policy's
// [KeyFunc] returns it: an IPv6 client of [ByClientIP] is 2001:db8::/64, not 2001:db8::1. A key
// that ByClientIP never returns is logged as a warning. Of the policy's options they use its name,
// limits, [WithLimitFunc], [WithAlgorithm], [WithFloor], [WithLease], [WithBan] and [WithFailure],
// and Acquire also [WithConcurrency] and [WithQueue]; the others, [WithIdentity] among them, are
// for requests. [WithDryRun] says what they do in a dry run. It is safe for concurrent use.
//
// For errors see [Limiter]; errors of WithLimitFunc's function are returned as they are.
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

	clients limitCache
}

// Policy returns a policy of the limiter.
//
// With [WithLimits] there are more limits, with [WithLimitFunc] each client has its own. The error
// joins all faults.
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
	p := &Policy{config: cfg, limiter: l, name: cfg.name}
	limits := append([]Limit{limit}, cfg.limits...)
	if p.name == "" {
		p.name = limitsName(limits)
		if cfg.keyed {
			p.name += " by key"
		}
	}
	p.prefix = Key(p.name, "")
	if p.lease > 0 && p.algorithm == SlidingWindow {
		errs = append(errs, errors.New(
			"ginlimit: WithLease: a SlidingWindow has no leases, as a token counts from when it was used"))
	}
	var err error
	p.limits, err = p.newLimits(p.name, cfg.name, limits, nil, cfg.floor)
	errs = append(errs, err)
	if p.limits.rules.Prohibits() && p.limits.prohibited.Rate > 0 {
		errs = append(errs, fmt.Errorf("%w: WithFloor(%d) leaves nothing of %s",
			ErrInvalidLimit, cfg.floor, p.limits.prohibited))
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

// compareAlgorithms warns if an earlier policy or identity of the name counts by another algorithm:
// they share no bucket. Policies that were given no name are not compared: nobody says that they
// should share any.
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

func wrapped(option string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ginlimit: %s: %w", option, err)
}

// newLimits returns limits under the name of a policy or an identity. In the header fields they
// have the field name, and no name that is taken.
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
	if s := p.clients.get(limits); s != nil {
		return s, nil
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
	p.clients.keep(limits, fresh)
	return fresh, nil
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

// identity is an additional key to count a policy's requests under.
type identity struct {
	prefix string
	key    KeyFunc
	limits *limitSet
}

// newIdentities returns the identities of the policy's configuration, and all errors in them.
func (p *Policy) newIdentities() ([]identity, error) {
	var all []identity
	var errs []error
	names, taken := map[string]bool{p.name: true}, p.limits.fieldNames()
	if p.slots > 0 {
		names[p.name+slotsSuffix] = true
	}
	for _, option := range p.config.identities {
		if names[option.name] {
			errs = append(errs, fmt.Errorf("ginlimit: WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		set, err := p.newLimits(option.name, option.name, option.limits, taken, 0)
		set.rules.Divide(int64(p.limiter.defaults.replicas))
		taken = append(taken, set.fieldNames()...)
		errs = append(errs, wrapped(fmt.Sprintf("WithIdentity(%q)", option.name), err))
		all = append(all, identity{Key(option.name, ""), option.key, set})
	}
	return all, errors.Join(errs...)
}

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

// banning returns which denials ban a client: none in a dry run.
func (p *Policy) banning() bucket.Bans {
	if p.dryRun {
		return bucket.NoBans
	}
	return bucket.AllBans
}

// warnSpoofable logs a warning if clients can spoof their address. Each policy looks once, and a
// limiter warns once.
func (p *Policy) warnSpoofable(c *gin.Context) {
	if p.addressUsed.Load() {
		return
	}
	p.addressUsed.Store(true)
	if header := trustedHeader(c, engineHeaders(c)); header != "" && !p.limiter.warned.Swap(true) {
		p.logger.WarnContext(c.Request.Context(), "ginlimit: Gin trusts "+header+
			" from any client; clients can spoof their IP. "+
			"Call SetTrustedProxies with the addresses of your proxies, or with nil if there are none")
	}
}

// warnNoClient logs a warning, at most once a minute, if a method is given a key that [ByClientIP],
// the policy's KeyFunc, never returns. What reads as an address is meant as one. Other text may be
// the key of a worker, which needs no KeyFunc, unless the policy serves requests.
func (p *Policy) warnNoClient(ctx context.Context, client string) {
	if p.keyed {
		return
	}
	isAddress, isKey := clientkey.ReadAddress(client)
	if !isKey && (isAddress || p.serves.Load()) && p.limiter.noClient.Allow() {
		p.logger.WarnContext(ctx,
			"ginlimit: no request counts under the key that a method was given, as ByClientIP never returns it",
			"name", p.name)
	}
}
