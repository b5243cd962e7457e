package ginlimit

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Policy is a name, limits and options, made by [Limiter.Policy]. [Policy.Handler] is its middleware; the
// other methods are for anything else, such as a worker, on the same buckets. It is safe for concurrent use.
//
// Methods take a client as the policy's [KeyFunc] returns it: see [AddrKey] for [ByClientIP]. Of the options
// they use the limits, [WithFloor], [WithLease], [WithBan] and [WithFailureMode], and Reserve [WithQueue].
// [WithShares] needs [Policy.Share].
//
// A method waits for Redis no longer than [WithTimeout] and its context. If either ends while the call is in
// flight, the tokens may have been taken all the same. An error means that no decision was made:
// [ErrInvalidArgument] or [ErrNoKey] for an argument, the context's error, [ErrClosed], an error of
// [WithLimitFunc] as it is, else [ErrUnavailable].
type Policy struct {
	*policyState
	tenant    bucket.Tenant // whose share the methods use; none without WithShares
	all       bool          // a method is for all tenants
	tenantErr error         // why that tenant is none
}

// policyState is what a policy has in common with its shares.
type policyState struct {
	config
	limiter   *Limiter
	name      string // as events, results and keys have it
	prefix    string // of the keys of its clients
	limits    *limitSet
	allowed   *clientkey.Networks
	forbidden *clientkey.Networks

	warned      atomic.Bool    // that another policy charges the same bucket
	burstWarned atomic.Bool    // that its burst is too small for its tenants
	trust       gintrust.Trust // of Gin in the headers of proxies
	serves      atomic.Bool    // requests, by a handler
	faults      redisstore.Throttle

	clients limitCache
}

// Policy returns a policy with at least one [Limit] or [WithLimitFunc], and any [Option]. Its limits, each of
// another period or algorithm, must all allow.
// Make a policy once, at start, and derive others with the same buckets by [Policy.With]. The error joins all
// faults, each an [ErrInvalidArgument]; a name that the limiter has already is one, and so is the 65,537th
// policy.
//
// A policy of the same name in another process, or after a restart, shares the buckets of limits of the same
// period and algorithm. So a changed Rate or Burst keeps the bucket: what is missing takes as long to come
// back as before. A changed window keeps what it has counted.
func (l *Limiter) Policy(name string, opts ...PolicyOption) (*Policy, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	cfg := l.defaults
	cfg.fill(opts)
	cfg.exclude()
	cfg.require(name != "", "the policy has no name")
	p, err := l.policy(cfg, name)
	const (
		taken = "the limiter has a policy named %q already; keep it and call its With, or choose another name"
		full  = "the limiter has made %d policies; make each policy once, at start, not for each request"
	)
	if err := l.policies.take(name, taken, full, append(cfg.errs, err)); err != nil {
		return nil, err
	}
	return p, nil
}

// derivedOptions are those that [Policy.With] replaces.
var derivedOptions = []string{"WithCost", "WithSettle", "WithRefund", "WithFloor", "WithSkip", "WithAllowList",
	"WithDenyList", "WithQueue", "WithFailureMode", "WithHeaders", "WithHeaderFunc", "WithDeniedHandler",
	"WithErrorHandler", "WithDryRun"}

// With returns a policy with the same name, key, limits, bans and buckets, and with other options: a floor
// for batch jobs, another cost for another route. [WithKey], [WithBan], [WithLease], [WithShares] and limits
// are errors, as they would need other buckets, except an [InFlight] of at most as many slots. The error
// joins all faults.
func (p *Policy) With(opts ...PolicyOption) (*Policy, error) {
	if !p.made() {
		return nil, errNoPolicy
	}
	cfg := p.config
	cfg.limits = slices.Clip(cfg.limits)
	cfg.fill(opts)
	for _, option := range cfg.used {
		cfg.require(slices.Contains(derivedOptions, option),
			"With: %s makes another policy; call Limiter.Policy with another name", option)
	}
	limits := slices.Clone(p.config.limits)
	for _, l := range cfg.limits[len(limits):] {
		i := slices.IndexFunc(limits, func(own Limit) bool { return own.InFlight >= l.InFlight && l.InFlight > 0 })
		if cfg.require(i >= 0, "With: %s makes another policy, but for InFlight with at most as many slots; "+
			"call Limiter.Policy with another name", l) {
			limits[i] = l
		}
	}
	cfg.limits = limits
	for _, option := range p.used {
		if !slices.Contains(derivedOptions, option) {
			cfg.used = append(cfg.used, option)
		}
	}
	cfg.exclude()
	cfg.lease = p.lease // a default too, as the buckets keep room for it
	derived, err := p.limiter.policy(cfg, p.name)
	if err := errors.Join(append(cfg.errs, err)...); err != nil {
		return nil, err
	}
	derived.tenant, derived.tenantErr = p.tenant, p.tenantErr
	return derived, nil
}

// policy returns a policy, and all faults in it.
func (l *Limiter) policy(cfg config, name string) (*Policy, error) {
	p := &Policy{policyState: &policyState{
		config: cfg, limiter: l, name: name,
	}}
	p.prefix = p.prefixOf(name)
	var errs []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, invalid(format, args...))
		}
	}
	var err error
	limits := cfg.limits
	if p.limitFunc != nil { // it returns all but the slots
		limits = append(slices.Clone(limits), Unlimited())
	}
	p.limits, err = p.newLimits(limits)
	errs = append(errs, err)
	if p.shares != nil {
		errs = append(errs, checkBursts(limits))
	}
	if p.settleFunc = p.settle; p.refund != nil {
		p.settleFunc = p.refund
	}
	p.guard(p.limits)
	nothing := "WithFloor(%d) leaves nothing of %s"
	if p.lease > 0 {
		nothing += ", of whose burst WithLease keeps a part: make either smaller"
	}
	require(!p.limits.rules.Prohibits() || p.limits.prohibited.Rate == 0, nothing, cfg.floor, p.limits.prohibited)
	p.allowed, err = clientkey.NewNetworks(cfg.allow)
	errs = append(errs, wrapped("WithAllowList", err))
	p.forbidden, err = clientkey.NewNetworks(cfg.deny)
	return p, errors.Join(append(errs, wrapped("WithDenyList", err))...)
}

func wrapped(option string, err error) error {
	if err == nil {
		return nil
	}
	return invalid("%s: %v", option, err)
}

// newLimits returns limits of the policy.
func (p *Policy) newLimits(limits []Limit) (*limitSet, error) {
	s, err := newLimitSet(limits)
	s.name = p.name
	s.leave(p.floor)
	s.nameFields()
	return s, err
}

// guard completes a set of the policy's limits with its ban and slots, what it keeps for leases, and
// its share without Redis.
func (p *Policy) guard(s *limitSet) {
	var ban, slots *bucket.Bucket
	if p.banFirst > 0 {
		b := bucket.NewBan(milliseconds(p.banFirst), milliseconds(p.banLongest))
		ban = &b
	}
	if p.shares != nil {
		s.rules.Divide()
	}
	if s.slots > 0 && !s.rules.Prohibits() {
		slots = s.addSlots()
	}
	s.rules.Guard(ban, slots)
	if !p.limiter.engine.IsLocal() {
		if i := s.rules.AllowLeases(p.lease); i >= 0 {
			s.prohibit(i)
			s.fields = nil
			s.nameFields()
		}
	}
	s.rules.KeepShare()
}

// prefixOf returns the prefix of the keys of clients under a name. A dry run has keys of its own: no
// client's key of a policy in force begins so.
func (p *Policy) prefixOf(name string) string {
	if p.dryRun {
		return Key(name, "dry run", "")
	}
	return Key(name, "")
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
	fresh, err := p.newLimits(limits)
	if p.shares != nil {
		err = errors.Join(err, checkShared(limits))
	}
	if err != nil {
		return nil, &unusable{err, limits}
	}
	if fresh.slots == 0 {
		fresh.slots = p.limits.slots
	}
	p.guard(fresh)
	p.clients.keep(limits, fresh)
	return fresh, nil
}

// askOf returns the question about a client under limits.
func (p *Policy) askOf(client string, limits *limitSet) engine.Ask {
	ask := engine.Ask{
		Subject: engine.Subject{Prefix: p.prefix, Client: client, Set: limits.rules.Now()},
		Failure: engine.Failure(p.failure), Leases: true,
	}
	if limits.rules.Divided() {
		ask.Tenant = p.tenant
	}
	return ask
}

// made reports whether the policy was made by [Limiter.Policy].
func (p *Policy) made() bool { return p != nil && p.policyState != nil }

func init() {
	traits.Of = func(policy any) (t traits.Traits, ok bool) {
		p, ok := policy.(*Policy)
		if ok = ok && p.made(); !ok {
			return t, false
		}
		return traits.Traits{
			Options: p.used, Shares: p.shares != nil, Bans: p.banFirst > 0, DryRun: p.dryRun, LimitFunc: p.limitFunc != nil,
			Leases: p.lease > 0 && !p.limiter.engine.IsLocal(), CheckBlock: p.limits.checkBlockable,
		}, true
	}
}

// errNoPolicy is the error of a zero Policy.
var errNoPolicy = invalid("the policy was not made by Limiter.Policy")

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

// observe begins an Event of the policy, for each of the observers.
func (p *Policy) observe() observation {
	if p.observers == nil {
		return observation{}
	}
	return observation{p.observers, time.Now(), Event{Name: p.name, DryRun: p.dryRun}}
}

// useAddress logs a warning if clients can spoof the address by which the policy knows them.
func (p *Policy) useAddress(c *gin.Context) { p.trust.Warn(c, p.logger, &p.limiter.addresses) }
