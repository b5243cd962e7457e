package operate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Target is a client under a policy.
type Target struct {
	Info     ginlimit.PolicyInfo
	Client   Client
	Override *ginlimit.Override // that holds for the client, or nil
	Hidden   bool               // it may have slots that only the application knows
	Tenant   string             // of a policy with shares, or "" for all
	policy   *ginlimit.Policy
	replaced *ginlimit.Policy // with the limits that the override replaces, or nil
	own      []ginlimit.Limit // of policy
	base     []ginlimit.Limit // of replaced
	unread   error            // why some of it is not known
}

// Target returns a client under a policy. The limits are as given, else as an override or the policy has them.
func (o *Operator) Target(
	ctx context.Context, info ginlimit.PolicyInfo, client Client, limits []ginlimit.Limit,
) (to Target, err error) {
	to.Info, to.Client = info, client
	if to.Override, err = o.overrideOf(ctx, info, client); err != nil {
		return to, err
	}
	given := len(limits) > 0
	base, known := info.Limits, !HasFunction(info)
	if !known && !given {
		if base, known, err = o.planOf(ctx, info, client); err != nil {
			return to, err
		}
	}
	own := base
	if to.Override != nil {
		to.Hidden = !known && !given && !slices.ContainsFunc(to.Override.Limits, isInFlight)
		own, known = withSlots(to.Override.Limits, base), true
	}
	if given {
		own, known = limits, true
	}
	switch {
	case !known:
		return to, needs(NeedsLimits, "policy %q has limits of each client, which only the application knows", info.Name)
	case len(own) == 0:
		return to, needs(NeedsLimits, "policy %q has limits of a time zone that is not known here", info.Name)
	}
	if to.Override != nil && !given && slices.ContainsFunc(base, hasBucket) {
		if to.replaced, err = o.policy(to, base); err != nil {
			return to, err
		}
		to.base = base
	}
	to.own = own
	to.policy, err = o.policy(to, own)
	return to, err
}

// withSlots returns limits with the slots of others, unless they have some.
func withSlots(limits, others []ginlimit.Limit) []ginlimit.Limit {
	if slices.ContainsFunc(limits, isInFlight) {
		return limits
	}
	return append(slices.Clone(limits), slices.DeleteFunc(slices.Clone(others), isNotInFlight)...)
}

// errNotKept is the answer of plans that Redis does not keep.
var errNotKept = errors.New("not in Redis")

// planOf returns the limits that Redis keeps of a client's plan with the policy's slots, or the policy's and false.
func (o *Operator) planOf(ctx context.Context, of ginlimit.PolicyInfo, c Client) ([]ginlimit.Limit, bool, error) {
	if of.Plans == "" || c.Hashed { // a plan has another hash
		return of.Limits, false, nil
	}
	var opts []ginlimit.LimiterOption
	if o.Secret != nil {
		opts = append(opts, ginlimit.WithKeySecret(o.Secret))
	}
	limiter, err := o.limiter(opts...)
	if err != nil {
		return nil, false, err
	}
	plans, err := limiter.NewPlans(of.Plans, 366*24*time.Hour,
		func(context.Context, string) ([]ginlimit.Limit, error) { return nil, errNotKept })
	if err != nil {
		return nil, false, err
	}
	switch limits, err := plans.Limits(ctx, c.Key); {
	case errors.Is(err, ginlimit.ErrUnknownClient):
		return nil, false, needs(NeedsLimits, "the plans %q of policy %q do not know the client", of.Plans, of.Name)
	case err != nil:
		return of.Limits, false, nil
	default:
		return withSlots(limits, of.Limits), true, nil
	}
}

// overrideOf returns the override that holds for a client, or nil.
func (o *Operator) overrideOf(ctx context.Context, of ginlimit.PolicyInfo, c Client) (*ginlimit.Override, error) {
	all, err := o.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	stored, prefix, isPlain := o.Stored(of.Name, c), ginlimit.Key(of.Name, ""), c.Hashed && !HasSecret(of)
	var found []Listed
	for _, v := range all {
		if v.Policy != of.Name {
			continue
		}
		is := v.Client == "" || v.Client == stored
		if isPlain && v.Client != "" { // overrides have the client, of which the hash is known
			is = string(clientkey.Text{}.Append(nil, prefix, v.Client)) == stored
		}
		if is {
			found = append(found, v)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	read, err := o.Read(slices.MaxFunc(found, Listed.Compare)) // rather the client's own
	if err != nil {
		return nil, err
	}
	return &read[0], nil
}

// Overrides lists the overrides in force, in no order.
func (o *Operator) Overrides(ctx context.Context) ([]Listed, error) {
	if o.overrides == nil {
		all, err := o.limiters[0].Traits(traits.Key{}).Overrides(ctx)
		if err != nil {
			return nil, err
		}
		o.overrides = all
	}
	return slices.Clone(o.overrides), nil
}

// Read reads listed overrides, with clients as Redis has them.
func (o *Operator) Read(some ...Listed) ([]ginlimit.Override, error) {
	return o.limiters[0].Traits(traits.Key{}).Read(some)
}

// ForAll returns the listed override of a policy for all clients, or nil.
func (o *Operator) ForAll(all []Listed, policy string) (*ginlimit.Override, error) {
	i := slices.IndexFunc(all, func(v Listed) bool { return v.Client == "" && v.Policy == policy })
	if i < 0 {
		return nil, nil
	}
	read, err := o.Read(all[i])
	if err != nil {
		return nil, err
	}
	return &read[0], nil
}

// Change makes overrides, with clients as Redis has them, up to 1,000: see [ginlimit.Limiter.OverrideAll].
func (o *Operator) Change(ctx context.Context, all ...ginlimit.Override) error {
	o.overrides = nil // also after an error: they may be in force
	return o.limiters[0].OverrideAll(ctx, all...)
}

// Check returns why Change would not make overrides.
func (o *Operator) Check(ctx context.Context, all ...ginlimit.Override) error {
	return o.limiters[0].Traits(traits.Key{}).CheckOverrides(ctx, all)
}

// Replaces returns what an override with limits would replace for a client, or for all if it is the zero Client.
func (o *Operator) Replaces(
	ctx context.Context, of ginlimit.PolicyInfo, c Client, limits []ginlimit.Limit,
) (Replacement, error) {
	variants, err := o.Variants(ctx, of.Name)
	if err != nil {
		return Replacement{}, err
	}
	before, err := o.overrideOf(ctx, of, c)
	return ReplacementOf(limits, before, of, variants), err
}

// Status returns a Result for each limit of the client. A policy with shares needs a tenant.
func (o *Operator) Status(ctx context.Context, to Target, tenant string) ([]ginlimit.Result, error) {
	if HasShares(to.Info) && tenant == "" {
		return nil, needs(NeedsTenant, "policy %q is shared by tenants", to.Info.Name)
	}
	to, err := to.Of(tenant)
	if err != nil {
		return nil, err
	}
	return to.policy.Status(ctx, to.Client.Key)
}

// Of returns the target of a tenant, or of all if it is "".
func (t Target) Of(tenant string) (Target, error) {
	switch shared := HasShares(t.Info); {
	case tenant == "":
		return t, nil
	case !shared:
		return t, fault("policy %q has no tenants", t.Info.Name)
	case t.Client.Hashed:
		return t, needs(NeedsNoHash, "policy %q is shared by tenants", t.Info.Name)
	}
	t.Tenant, t.policy = tenant, t.policy.Share(tenant, 1)
	if t.replaced != nil {
		t.replaced = t.replaced.Share(tenant, 1)
	}
	return t, nil
}

// CheckBlock returns why the client cannot be blocked for a time.
func (o *Operator) CheckBlock(t Target, d time.Duration) error {
	const instead = "an override with the limit prohibited denies a client everything"
	switch {
	case HasShares(t.Info):
		return fault("policy %q is shared by tenants, and has no blocks; %s", t.Info.Name, instead)
	case !slices.ContainsFunc(t.own, isNotInFlight):
		return fault("policy %q limits requests in flight alone, and has no blocks; %s", t.Info.Name, instead)
	}
	check := o.limiters[0].Traits(traits.Key{}).CheckBlock
	err := check(t.own, d)
	if err == nil && t.base != nil {
		err = check(t.base, d)
	}
	return err
}

// Block denies the client everything for a time.
func (t Target) Block(ctx context.Context, d time.Duration) error {
	return t.change(func(p *ginlimit.Policy) error { return p.Block(ctx, t.Client.Key, d) })
}

// Reset ends the client's block and ban, and fills its buckets.
func (t Target) Reset(ctx context.Context) error {
	return t.change(func(p *ginlimit.Policy) error { return p.Reset(ctx, t.Client.Key) })
}

// change makes a change that outlasts an override: also to the limits that it replaces, if they have a bucket.
func (t Target) change(do func(*ginlimit.Policy) error) error {
	err := do(t.policy)
	if err == nil && t.replaced != nil {
		err = do(t.replaced)
	}
	return err
}

// Prohibits reports that limits deny everything.
func Prohibits(limits []ginlimit.Limit) bool {
	return slices.ContainsFunc(limits, func(l ginlimit.Limit) bool { return l.Rate == 0 && l.InFlight == 0 })
}

func isInFlight(l ginlimit.Limit) bool { return l.InFlight > 0 }

func hasBucket(l ginlimit.Limit) bool { return l.Rate > 0 }

func isNotInFlight(l ginlimit.Limit) bool { return l.InFlight == 0 }
