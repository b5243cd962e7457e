package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/throttle"
)

// Policy is a name, limits and options, made by [Limiter.Policy]. [Policy.Handler] is its
// middleware; the other methods are for anything else, on the same buckets. They take a client as
// the policy's [KeyFunc] returns it: see [AddrKey]. Of the options they use the limits,
// [WithFloor], [WithLease], [WithBan] and [WithFailureMode]. It is safe for concurrent use.
//
// If the context or [WithTimeout] ends while a call is in flight, the tokens may have been taken;
// Reserve and Wait give them back. After an error there is no decision: [ErrInvalidArgument],
// [ErrNoKey], the context's, [ErrClosed], the error of [WithLimitFunc], else [ErrUnavailable].
type Policy struct {
	*policyState
	tenant    bucket.Tenant // whose share the methods use; none without WithShares
	all       bool          // a method is for all tenants
	tenantErr error         // why that tenant is none
}

// policyState is what a policy has in common with its shares.
type policyState struct {
	policyConfig
	limiter *Limiter
	name    string // as events, results and keys have it
	prefix  string // of the keys of its clients
	field   string // as the names of its limits in header fields begin
	limits  *policyLimits
	clients limitCache
	asked   engine.Ask    // what each request asks, but for its client, set, tenant and tokens
	waiting *atomic.Int64 // callers, of all policies of the name

	trust  gintrust.Trust // of Gin in the headers of proxies
	serves atomic.Bool    // requests, by a handler

	options     []string    // the names of those in force, but the key and header fields, for operators
	isPublished atomic.Bool // operators can see it
	logged      struct {    // what the log has said once, or not long ago
		twice      atomic.Bool // that another policy charges the same bucket
		smallBurst atomic.Bool // that its burst is too small for its tenants
		faults     throttle.Log
		dropped    throttle.Log // that a reservation was, with a slot
		override   throttle.Log // that one cannot be used
	}
}

// Policy returns a policy with at least one [Limit] or [WithLimitFunc], and any [Option]. Its
// limits, each of another period or algorithm, must all allow. Make a policy once, at start, and
// derive others by [Policy.With]. The error joins all faults, each an [OptionError]; a name that
// the limiter has already is one. In another process, or after a restart, a policy of the same name
// shares the buckets of limits of the same period and algorithm: a changed Rate or Burst keeps the
// bucket.
func (l *Limiter) Policy(name string, opts ...PolicyOption) (*Policy, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	cfg := &config{policyConfig: policyConfig{answers: answerConfig{headers: XRateLimit}}}
	cfg.fill(opts)
	cfg.exclude(l.defaults)
	cfg.requireOf("name", name != "", "the policy has no name")
	p := l.newPolicy(cfg, name)
	const (
		taken = "the limiter has a policy named %q already; keep it and call its With, or choose another name"
		full  = "the limiter has made %d policies; make each policy once, at start, not for each request"
	)
	if err := l.policies.take(name, p, taken, full, cfg.errs); err != nil {
		return nil, err
	}
	return p, nil
}

// fill applies a policy's options, and notes all errors in them.
func (c *config) fill(opts []PolicyOption) {
	for i, opt := range opts {
		limit, isPointer := opt.(*Limit)
		if c.requireOption(i, opt != nil && !(isPointer && limit == nil)) {
			opt.policyOption(c)
		}
	}
}

// derivedOptions are those that [Policy.With] replaces.
var derivedOptions = []string{"WithCost", "WithSettle", "WithRefund", "WithFloor", "WithSkip", "WithAllowList",
	"WithDenyList", "WithQueue", "WithFailureMode", "WithHeaders", "WithHeaderFunc", "WithDeniedHandler",
	"WithErrorHandler", "WithDryRun"}

// With returns a policy with the same name, key, limits, bans and buckets, and with other options:
// a floor for batch jobs, another cost for another route. Options that need other buckets are
// errors, but not an [InFlight] of fewer slots. The error joins all faults, each an [OptionError].
func (p *Policy) With(opts ...PolicyOption) (*Policy, error) {
	if !p.made() {
		return nil, errNoPolicy
	}
	cfg := &config{policyConfig: p.policyConfig}
	own := p.counts.limits
	cfg.counts.limits, cfg.used = nil, nil
	cfg.fill(opts)
	for _, option := range cfg.used {
		cfg.requireOf(option, slices.Contains(derivedOptions, option),
			"With: %s makes another policy; call Limiter.Policy with another name", option)
	}
	limits, used, at := slices.Clone(own), cfg.used, make([]OptionError, len(own))
	cfg.counts.fewerSlots = cfg.counts.fewerSlots || len(cfg.counts.limits) > 0
	for n, l := range cfg.counts.limits {
		i := slices.IndexFunc(limits, func(own Limit) bool { return own.InFlight >= l.InFlight && l.InFlight > 0 })
		if i >= 0 {
			limits[i], at[i] = l, cfg.limitsAt[n]
			continue
		}
		of := cfg.limitsAt[n]
		cfg.errs = append(cfg.errs, &OptionError{of.Index, of.Option, invalid("With: %s makes another policy, "+
			"but for InFlight with at most as many slots; call Limiter.Policy with another name", l)})
	}
	cfg.counts.limits, cfg.limitsAt = limits, at
	for _, option := range p.used {
		if !slices.Contains(derivedOptions, option) {
			cfg.used = append(cfg.used, option)
		}
	}
	cfg.exclude(nil)
	cfg.used = append(slices.Clone(used), p.used...) // also what it replaces has an effect, unless it is given
	derived := p.limiter.newPolicy(cfg, p.name)
	if cfg.errs != nil {
		return nil, errors.Join(cfg.errs...)
	}
	derived.tenant, derived.tenantErr = p.tenant, p.tenantErr
	derived.options = optionsOf(append(used, p.options...))
	return derived, nil
}

// newPolicy returns a policy, and notes all errors in it.
func (l *Limiter) newPolicy(cfg *config, name string) *Policy {
	p := &Policy{policyState: &policyState{
		policyConfig: cfg.policyConfig, limiter: l, name: name, field: httpfields.Name(name),
		waiting: new(atomic.Int64),
	}}
	if first := l.policies.get(name); first != nil {
		p.waiting = first.waiting
	}
	if p.prefix = Key(name, ""); p.dryRun { // no key of a client of a policy in force begins so
		p.prefix = Key(name, "dry run", "")
	}
	limits := cfg.counts.limits
	if cfg.counts.limitFunc != nil { // it returns all but the slots
		limits = append(slices.Clone(limits), Unlimited())
	}
	if l.secret != nil {
		p.options = append(p.options, "WithKeySecret")
	}
	if l.ignoresOverrides {
		p.options = append(p.options, "WithoutOverrides")
	}
	for _, s := range cfg.defaults {
		p.options = append(p.options, s.name)
	}
	p.options = optionsOf(append(p.options, cfg.used...))
	var err error
	if p.limits, err = p.counts.newLimits(name, limits, 0, l.engine.IsLocal()); err != nil {
		cfg.addLimitFaults(err)
	}
	if p.counts.shares != nil {
		for _, err := range checkBursts(limits) {
			cfg.addFault("WithShares", err)
		}
	}
	if err := p.counts.checkLeft(p.limits); err != nil {
		cfg.addFault("WithFloor", err)
	}
	p.prepare()
	return p
}

// optionsOf returns names of options, in order and once each, but those that [PolicyInfo] has apart.
func optionsOf(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "WithKey" || name == "WithHeaders" })
	slices.Sort(names)
	return slices.Compact(names)
}

// Share returns the policy for one tenant, with the weight of its requests, 1 to 1,000. The methods
// of a policy [WithShares] need it, except [Policy.Reset].
func (p *Policy) Share(tenant string, weight int) *Policy {
	if !p.made() {
		return &Policy{}
	}
	share := &Policy{policyState: p.policyState}
	share.tenant, share.tenantErr = p.tenantOf(tenant, weight)
	return share
}

// tenantOf returns a tenant of the policy, or every error in it.
func (p *Policy) tenantOf(name string, weight int) (bucket.Tenant, error) {
	var errs []error
	if p.counts.shares == nil {
		errs = append(errs, fmt.Errorf("%w: Share needs a policy with WithShares", ErrInvalidArgument))
	}
	if name == "" {
		errs = append(errs, fmt.Errorf("%w: the tenant is empty", ErrInvalidArgument))
	}
	if weight < 1 || weight > bucket.MaxWeight {
		errs = append(errs, fmt.Errorf("%w: a weight of %d; want 1 to %d", ErrInvalidArgument, weight, bucket.MaxWeight))
	}
	if errs != nil {
		return bucket.Tenant{}, errors.Join(errs...)
	}
	return bucket.Tenant{Name: p.limiter.engine.TenantName(name), Weight: int64(weight)}, nil
}

// tenantOfRequest returns the tenant of a request under limits of a policy WithShares. Limits that count nothing have
// none.
func (p *Policy) tenantOfRequest(c *gin.Context, limits *policyLimits) (bucket.Tenant, error) {
	tenant, err := p.tenantOf(p.counts.shares(c))
	if !limits.rules.Divided {
		tenant = bucket.Tenant{}
	}
	return tenant, err
}

// ofAll returns the policy for all tenants together, if it is not for one.
func (p *Policy) ofAll() *Policy {
	if !p.made() || p.tenant.Name != "" || p.tenantErr != nil {
		return p
	}
	return &Policy{policyState: p.policyState, all: true}
}

// checkTenant reports why a method has no tenant that it needs.
func (p *Policy) checkTenant() error {
	if p.counts.shares != nil && !p.all && p.tenantErr == nil && p.tenant.Name == "" {
		return fmt.Errorf("%w: the policy has WithShares: call Share(tenant, weight) before this method", ErrInvalidArgument)
	}
	return p.tenantErr
}

// tokensPerTenant is how many charges of the usual cost the burst should hold for each tenant that is
// busy, times its weight. With fewer, a tenant below its share is denied by chance.
const tokensPerTenant = 8

// warnBurst logs once that a burst is too small for the tenants that share it, after a denial beside
// others. No tenant may use the floor, so it comes on top.
func (p *Policy) warnBurst(ctx context.Context, a *engine.Answer, r Result) {
	want := tokensPerTenant*a.BusyCost + int64(p.counts.floor)
	if a.BusyCost > 0 && int64(r.Limit.burst()) < want && !p.logged.smallBurst.Swap(true) {
		p.limiter.logger.WarnContext(ctx, "ginlimit: the burst is too small for the tenants that were busy; "+
			"tenants below their share may be denied because of others",
			"name", p.name, "limit", r.Limit.String(), "burst", r.Limit.burst(), "want", want)
	}
}

// limitsOf returns the limits of a client: those that override the policy's, its own from the policy's function,
// or the policy's.
func (p *Policy) limitsOf(ctx context.Context, client string) (*policyLimits, error) {
	if limits, ok := p.limiter.overrides.Find(p.name, client); ok {
		own, err := p.under(p.withSlots(ctx, client, limits))
		if err == nil {
			return own, nil
		}
		if p.logged.override.Allow() {
			p.limiter.logger.WarnContext(ctx, "ginlimit: an override does not fit its policy, and is ignored",
				"name", p.name, "reason", planReason(err))
		}
	}
	if p.counts.limitFunc == nil {
		return p.limits, nil
	}
	return p.funcLimits(ctx, client)
}

// overrideOf returns the limits that override a client's, or nil.
func (p *Policy) overrideOf(client string) []Limit {
	limits, _ := p.limiter.overrides.Find(p.name, client)
	return limits
}

// funcLimits returns a client's limits as the policy's function has them.
func (p *Policy) funcLimits(ctx context.Context, client string) (*policyLimits, error) {
	limits, err := p.counts.limitFunc(ctx, client)
	if err != nil {
		return nil, err
	}
	return p.under(limits)
}

// withSlots returns the limits of an override with the slots that the policy's function returns for the client, unless
// the override names some itself. If the function fails, the client has limits by the override alone.
func (p *Policy) withSlots(ctx context.Context, client string, limits []Limit) []Limit {
	if p.counts.limitFunc == nil || slices.ContainsFunc(limits, Limit.isSlots) {
		return limits
	}
	if own, err := p.funcLimits(ctx, client); err == nil && own.slots > 0 {
		limits = append(slices.Clone(limits), InFlight(own.slots))
	}
	return limits
}

// withoutSlots returns limits without slots that only an override has, or nil: what an operator limits makes no
// method an error.
func (p *Policy) withoutSlots(client string, set *policyLimits) *policyLimits {
	named := slices.ContainsFunc(p.overrideOf(client), Limit.isSlots)
	if p.limits.slots > 0 || !named && p.counts.limitFunc != nil {
		return nil
	}
	tokens := slices.DeleteFunc(slices.Clone(set.given), Limit.isSlots)
	if len(tokens) == 0 {
		tokens = []Limit{Unlimited()}
	}
	without, err := p.under(tokens)
	if err != nil {
		return nil
	}
	return without
}

// under returns limits of a client as the policy counts them.
func (p *Policy) under(limits []Limit) (*policyLimits, error) {
	if known := p.clients.get(limits); known != nil {
		return known, nil
	}
	fresh, err := p.counts.newLimits(p.name, limits, p.limits.slots, p.limiter.engine.IsLocal())
	if p.counts.shares != nil {
		err = errors.Join(err, checkShared(limits))
	}
	if err != nil {
		return nil, &unusable{err, limits}
	}
	p.clients.keep(limits, fresh)
	return fresh, nil
}

// prepare fills in what all requests ask of the policy alike. A dry run never waits.
func (p *Policy) prepare() {
	p.asked = engine.Ask{
		Subject: engine.Subject{Prefix: p.prefix}, Failure: engine.Failure(p.asks.failure), Leases: true,
		Queue: p.asks.queue, Waiting: p.waiting, Settles: p.asks.settle != nil, Report: rules.ReportDenying,
	}
	if p.dryRun {
		p.asked.Queue.Length = 0
	}
	switch {
	case p.answers.headerFunc != nil:
		p.asked.Report = rules.ReportFull
	case p.answers.headers&RateLimitDraft != 0:
		p.asked.Report = rules.ReportEvery
	}
}

// askOf returns what a method asks about a client under limits.
func (p *Policy) askOf(client string, limits *policyLimits) engine.Ask {
	ask := engine.Ask{
		Subject: engine.Subject{Prefix: p.prefix, Client: client, Set: limits.rules.Now()},
		Failure: engine.Failure(p.asks.failure), Leases: true, Waiting: p.waiting,
	}
	if limits.rules.Divided {
		ask.Tenant = p.tenant
	}
	return ask
}

// made reports whether the policy was made by [Limiter.Policy].
func (p *Policy) made() bool { return p != nil && p.policyState != nil }

// leases reports whether the policy has WithLease itself, which excludes others beside it. A limiter's default
// just does not serve there.
func (p *Policy) leases() bool { return p.counts.lease > 0 && slices.Contains(p.used, "WithLease") }

// warnNoClient logs a warning, at most once a minute, if a method is given a key that [ByClientIP],
// the policy's KeyFunc, never returns. What reads as an address is meant as one. Other text may be
// the key of a worker, which needs no KeyFunc, unless the policy serves requests.
func (p *Policy) warnNoClient(ctx context.Context, client string) {
	if p.key != nil {
		return
	}
	isAddress, isKey := clientkey.ReadAddress(client)
	if !isKey && (isAddress || p.serves.Load()) && p.limiter.noClient.Allow() {
		p.limiter.logger.WarnContext(ctx,
			"ginlimit: no request counts under the key that a method was given, as ByClientIP never returns it",
			"name", p.name)
	}
}
