package dispatch

import "github.com/ginlimit/ginlimit/internal/bucket"

// Run is charges of one of a group's tenants, one after another.
type Run struct {
	Tenant  int // its index
	Charges int64
}

const (
	// maxRun is how many charges several calls of a group make together at most, if they are of tenants:
	// package wire sends two bytes.
	maxRun = 1<<16 - 1
	// maxTenants is how many tenants a group has at most: package wire sends a byte for one. Each takes
	// Redis a microsecond.
	maxTenants = 256
)

// tenants are those whose calls a group has, and what they hold of the group's limit, the first bucket. The
// second bucket is what they hold.
type tenants struct {
	all          []bucket.Tenant // in the order of their first calls; none if the limit is not shared
	index        map[string]int  // of a tenant, once there are several
	found        []bucket.State  // of each tenant, as for the next call; level, sum and weights there are void
	level        int64           // as for the next call
	sum, weights int64
}

// of returns the index of a tenant, or -1.
func (t *tenants) of(name string) int {
	if len(t.all) > 0 && t.all[0].Name == name {
		return 0
	}
	if i, ok := t.index[name]; ok {
		return i
	}
	return -1
}

// admits reports whether the group may carry a call of a tenant. If so it sets the call's tenant.
func (g *Group) admits(c *Call) bool {
	t := &g.tenants
	if len(t.all) == 0 {
		return true
	}
	if g.Charges+c.Op.Charges > maxRun {
		return false
	}
	i := t.of(c.Op.Tenant.Name)
	if i < 0 && len(t.all) == maxTenants {
		return false
	}
	if i < 0 {
		if t.index == nil {
			t.index = map[string]int{}
		}
		i = len(t.all)
		t.index[c.Op.Tenant.Name] = i
		t.all = append(t.all, c.Op.Tenant)
	}
	c.tenant = i
	return t.all[i] == c.Op.Tenant
}

// begin begins with the first call's tenant.
func (t *tenants) begin(c *Call) { t.all, c.tenant = append(t.all, c.Op.Tenant), 0 }

// reset forgets the tenants.
func (t *tenants) reset() {
	t.all, t.found = t.all[:0], t.found[:0]
	clear(t.index)
}

// Tenants returns the tenants of the calls, in the order of their first calls.
func (g *Group) Tenants() []bucket.Tenant { return g.tenants.all }

// Runs returns the charges of the tenants' calls in order.
func (g *Group) Runs() (runs []Run) {
	for c := g.Call; c != nil; c = c.next {
		if last := len(runs) - 1; last >= 0 && runs[last].Tenant == c.tenant {
			runs[last].Charges += c.Op.Charges
		} else {
			runs = append(runs, Run{c.tenant, c.Op.Charges})
		}
	}
	return runs
}

// FoundTenant sets what the next tenant was found to hold.
func (g *Group) FoundTenant(s bucket.State) {
	t := &g.tenants
	t.level, t.sum, t.weights = s.Level, s.Shares.Sum, s.Shares.Weights
	t.found = append(t.found, s)
}

// choose sets what a call's tenant was found to hold. The first call may have been answered, and its memory
// be used again.
func (t *tenants) choose(g *Group, c *Call) {
	s := t.found[c.tenant]
	of := *s.Shares
	of.Sum, of.Weights = t.sum, t.weights
	g.Found[1] = bucket.State{Level: t.level, Wait: s.Wait, Shares: &of}
}

// changed notes what a call's tenant holds after its charge.
func (t *tenants) changed(g *Group, c *Call) {
	after := g.Found[1]
	t.level, t.sum, t.weights = after.Level, after.Shares.Sum, after.Shares.Weights
	own := t.found[c.tenant].Shares
	own.Finish, own.Held = after.Shares.Finish, after.Shares.Held
	if own.Finish == bucket.NoFinish { // all tenants are forgotten
		for i := range t.found {
			t.found[i].Shares.Finish = bucket.NoFinish
		}
	}
}
