package dispatch

import (
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Run is charges of one of a group's tenants, one after another.
type Run struct {
	Tenant  int // its index
	Charges int64
}

// MaxRun is how many charges the calls of a group make together at most, if they are of several tenants.
const MaxRun = 1 << 42

// tenants are those whose calls a group has, and what each holds of the group's buckets.
type tenants struct {
	all    []bucket.Tenant // in the order of their first calls; none if the buckets are not shared
	states []bucket.State  // of each tenant, of each Tenants bucket, as for the next call
}

// of returns the index of a tenant, or -1.
func (t *tenants) of(name string) int {
	return slices.IndexFunc(t.all, func(one bucket.Tenant) bool { return one.Name == name })
}

// admits reports whether the group may carry a call of a tenant: of one of its tenants, or of another if
// nothing comes with the buckets that is the tenant's own.
func (g *Group) admits(c *Call) bool {
	if len(g.tenants.all) == 0 {
		return true
	}
	if g.Charges+c.Op.Charges > MaxRun {
		return false
	}
	i := g.tenants.of(c.Op.Tenant.Name)
	if i >= 0 {
		return g.tenants.all[i] == c.Op.Tenant && (len(g.tenants.all) == 1 || g.sharedOnly())
	}
	return g.sharedOnly()
}

// sharedOnly reports whether the group has limits and what tenants hold of them, and nothing else.
func (g *Group) sharedOnly() bool {
	last := g.Buckets[len(g.Buckets)-1]
	return last.Kind == bucket.Tenants && len(g.Others) == 0
}

// begin makes the tenants those of the first call.
func (t *tenants) begin(c *Call) {
	t.all, t.states = t.all[:0], t.states[:0]
	if c.Op.Tenant.Name != "" {
		t.all = append(t.all, c.Op.Tenant)
	}
}

// add adds the tenant of a call that joins.
func (t *tenants) add(c *Call) {
	if len(t.all) > 0 && t.of(c.Op.Tenant.Name) < 0 {
		t.all = append(t.all, c.Op.Tenant)
	}
}

// Tenants returns the tenants of the calls, and their charges in order if there are several tenants.
func (g *Group) Tenants() (all []bucket.Tenant, runs []Run) {
	if len(g.tenants.all) < 2 {
		return g.tenants.all, nil
	}
	for c := g.Call; c != nil; c = c.next {
		i := g.tenants.of(c.Op.Tenant.Name)
		if last := len(runs) - 1; last >= 0 && runs[last].Tenant == i {
			runs[last].Charges += c.Op.Charges
		} else {
			runs = append(runs, Run{i, c.Op.Charges})
		}
	}
	return g.tenants.all, runs
}

// FoundTenant sets what a tenant was found to hold of the next of the Tenants buckets. It is called for
// each tenant of a bucket, then for those of the next bucket.
func (g *Group) FoundTenant(s bucket.State) { g.tenants.states = append(g.tenants.states, s) }

// choose sets the states found to those of a call's tenant.
func (t *tenants) choose(g *Group, c *Call) {
	if len(t.states) == 0 {
		return
	}
	at := t.of(c.Op.Tenant.Name)
	for i := range g.Buckets {
		if g.Buckets[i].Kind == bucket.Tenants {
			g.Found[i] = t.states[at]
			at += len(t.all)
		}
	}
}

// changed notes what a call's tenant holds after its charge, and what that is to the others.
func (t *tenants) changed(g *Group, c *Call) {
	if len(t.states) == 0 {
		return
	}
	own, first := t.of(c.Op.Tenant.Name), 0
	for i := range g.Buckets {
		if g.Buckets[i].Kind != bucket.Tenants {
			continue
		}
		after := g.Found[i]
		for j := range t.all {
			s := &t.states[first+j]
			if j == own {
				*s = after
				continue
			}
			of := *s.Shares
			of.Sum, of.Weights = after.Shares.Sum, after.Shares.Weights
			if after.Shares.Finish == bucket.NoFinish { // all tenants are forgotten
				of.Finish = bucket.NoFinish
			}
			s.Level, s.Shares = after.Level, &of
		}
		first += len(t.all)
	}
}
