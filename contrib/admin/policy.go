package admin

import (
	"context"
	"slices"

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
	Overrides list[ginlimit.Override]
	All       *ginlimit.Override // for all clients, or nil
	Secret    bool
}

// policy is the page of a policy.
func (h *handler) policy(v *visit) error {
	name := v.r.FormValue("name")
	variants, err := v.Variants(v.ctx, name)
	if isMistake(err) {
		return err
	}
	v.failed("The policy cannot be read.", err)
	return h.showPolicy(v, name, variants)
}

func (h *handler) showPolicy(v *visit, name string, variants []ginlimit.PolicyInfo) error {
	body := policyBody{Name: name, Variants: variants, Secret: slices.ContainsFunc(variants, operate.HasSecret)}
	var err error
	body.Picture, err = h.pictureOf(v, name)
	v.failed("The decisions of the last ten minutes cannot be read.", err)
	body.Denied, err = bounded(v, func(ctx context.Context) ([]top.Client, error) {
		return top.Denied(ctx, h.rdb, h.prefix, name)
	})
	v.failed("Who is denied most cannot be read.", err)
	body.Denied = body.Denied[:min(len(body.Denied), clientsShown)]
	all, err := v.Overrides(v.ctx)
	v.failed("The overrides cannot be read.", err)
	all = slices.DeleteFunc(all, func(o ginlimit.Override) bool { return o.Policy != name })
	for _, o := range all {
		if o.Client == "" {
			body.All = &o
		}
	}
	body.Overrides = cut(v, soonest(all), clientsShown)
	return v.show("policy", "Policy "+shown(name), body)
}
