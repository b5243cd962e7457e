package admin

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/contrib/top"
)

const clientsShown = 20

// policyBody is the page of a policy.
type policyBody struct {
	Name      string
	Variants  []ginlimit.PolicyInfo
	Picture   *picture
	Denied    []top.Client
	Used      []top.Client // nobody if the application does not report use
	Overrides list[ginlimit.Override]
	All       *ginlimit.Override // for all clients, or nil
	Unknown   struct{ Picture, Denied, Overrides bool }
	Secret    bool
}

// policy is the page of a policy.
func (h *handler) policy(v *visit) error {
	name := v.r.FormValue("name")
	variants, err := v.Variants(v.ctx, name)
	if err != nil { // nothing of it can be read then
		return err
	}
	return h.showPolicy(v, name, variants)
}

func (h *handler) showPolicy(v *visit, name string, variants []ginlimit.PolicyInfo) error {
	body := policyBody{Name: name, Variants: variants, Secret: slices.ContainsFunc(variants, operate.HasSecret)}
	var err error
	body.Picture, err = h.pictureOf(v, name)
	body.Unknown.Picture = v.failed("The decisions of the last ten minutes cannot be read.", err)
	body.Denied, err = h.most(v, name, top.Denied)
	body.Unknown.Denied = v.failed("Who is denied most cannot be read.", err)
	body.Used, err = h.most(v, name, top.Used)
	v.failed("Who uses most cannot be read.", err)
	all, err := v.OfPolicy(v.ctx, name)
	if err == nil {
		body.All, err = v.ForAll(all, name)
	}
	if err == nil {
		body.Overrides, err = v.soonest(all, clientsShown)
	}
	body.Unknown.Overrides = v.failed("The overrides cannot be read.", err)
	return v.show("policy", "Policy "+shown(name), body)
}

// most returns the first of the clients that a policy denies most, or that use most.
func (h *handler) most(v *visit, policy string,
	read func(context.Context, redis.UniversalClient, string, string) ([]top.Client, error),
) ([]top.Client, error) {
	all, err := bounded(v, func(ctx context.Context) ([]top.Client, error) { return read(ctx, h.rdb, h.prefix, policy) })
	return all[:min(len(all), clientsShown)], err
}
