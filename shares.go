package ginlimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
)

// WithShares lets tenants share the limit of a policy fairly, such as what an upstream allows. The policy's
// [KeyFunc] returns what is shared; f returns the request's tenant and its weight, 1 normally and at most
// 1,000.
//
// A tenant alone may use the whole rate, and at a weight of w the part w / (1 + w) of the burst. If tenants
// ask for more than the limit allows, each gets a share of the rate in proportion to its weight. Nothing is
// left unused while a tenant asks for it. A tenant below its share is not denied because of other tenants, if
// Burst is eight times the usual cost for each tenant that is busy at once. If a share denies, the cause is
// [CauseShare]. An empty tenant and another weight go to the error handler.
//
// The policy has one token bucket with a Burst of at most 16,777,216, and nothing else: put other limits,
// [InFlight], [WithBan] and [WithLease] into policies of their own, and combine them by [AllOf]. docs/fair.md
// has the rule.
func WithShares(f func(c *gin.Context) (tenant string, weight int)) PolicyOption {
	return policySetting{"WithShares", func(c *config) {
		c.require(f != nil, "WithShares: the function is nil")
		c.counts.shares = f
	}}
}

// Share returns the policy for one tenant. The methods of a policy [WithShares] need it, except
// [Policy.Reset]. With an empty tenant, or a weight outside 1 to 1,000, they return [ErrInvalidArgument].
// Pass the weight that the tenant's requests have, since Peek and Status judge by it.
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

// tenantOfRequest returns the tenant of a request, or none of a policy without shares.
func (p *Policy) tenantOfRequest(c *gin.Context) (bucket.Tenant, error) {
	if p.counts.shares == nil {
		return bucket.Tenant{}, nil
	}
	return p.tenantOf(p.counts.shares(c))
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
