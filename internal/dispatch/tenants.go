package dispatch

import "github.com/ginlimit/ginlimit/internal/bucket"

// Run is charges of one of a group's tenants, one after another.
type Run struct {
	Tenant  int // its index
	Charges int64
}

// MaxRun is how many charges the calls of a group make together at most, if they are of several tenants.
const MaxRun = 1 << 42

// tenants are those whose calls a group has, and what they hold of the group's buckets.
type tenants struct {
	all    []bucket.Tenant // in the order of their first calls; none if the buckets are not shared
	index  map[string]int  // of a tenant, once there are several
	shared []sharedBucket  // each Tenants bucket, as for the next call
}

// sharedBucket is what the tenants of a group hold of a bucket.
type sharedBucket struct {
	level, sum, weights int64
	tenants             []bucket.State // of each tenant; sum and weights there are void
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

// admits reports whether the group may carry a call of a tenant: of one of its tenants, or of another if
// nothing comes with the buckets that is the tenant's own. If so it sets the call's tenant.
func (g *Group) admits(c *Call) bool {
	t := &g.tenants
	if len(t.all) == 0 {
		return true
	}
	if g.Charges+c.Op.Charges > MaxRun {
		return false
	}
	i := t.of(c.Op.Tenant.Name)
	if i < 0 && g.sharedOnly() {
		if t.index == nil {
			t.index = map[string]int{}
		}
		i = len(t.all)
		t.index[c.Op.Tenant.Name] = i
		t.all = append(t.all, c.Op.Tenant)
	}
	c.tenant = i
	return i >= 0 && t.all[i] == c.Op.Tenant && (len(t.all) == 1 || g.sharedOnly())
}

// sharedOnly reports whether the group has limits and what tenants hold of them, and nothing else.
func (g *Group) sharedOnly() bool {
	last := g.Buckets[len(g.Buckets)-1]
	return last.Kind == bucket.Tenants && len(g.Others) == 0
}

// begin makes the tenants those of the first call.
func (t *tenants) begin(c *Call) {
	t.all, t.shared = t.all[:0], t.shared[:0]
	clear(t.index)
	if c.Op.Tenant.Name != "" {
		t.all, c.tenant = append(t.all, c.Op.Tenant), 0
	}
}

// Tenants returns the tenants of the calls, in the order of their first calls.
func (g *Group) Tenants() []bucket.Tenant { return g.tenants.all }

// Runs returns the charges of the tenants' calls in order. A probe has no tenant.
func (g *Group) Runs() (runs []Run) {
	if len(g.tenants.all) == 0 {
		return nil
	}
	for c := g.Call; c != nil; c = c.next {
		if last := len(runs) - 1; last >= 0 && runs[last].Tenant == c.tenant {
			runs[last].Charges += c.Op.Charges
		} else {
			runs = append(runs, Run{c.tenant, c.Op.Charges})
		}
	}
	return runs
}

// FoundTenant sets what a tenant was found to hold of the next of the Tenants buckets. It is called for
// each tenant of a bucket, then for those of the next bucket.
func (g *Group) FoundTenant(s bucket.State) {
	t := &g.tenants
	last := len(t.shared) - 1
	if last < 0 || len(t.shared[last].tenants) == len(t.all) {
		t.shared = append(t.shared, sharedBucket{level: s.Level, sum: s.Shares.Sum, weights: s.Shares.Weights})
		last++
	}
	t.shared[last].tenants = append(t.shared[last].tenants, s)
}

// choose sets what a call's tenant was found to hold. The first call may have been answered, and its memory
// be used again.
func (t *tenants) choose(g *Group, c *Call) {
	at := 0
	for i := range c.Buckets {
		if c.Buckets[i].Kind == bucket.Tenants && at < len(t.shared) {
			b := &t.shared[at]
			s := b.tenants[c.tenant]
			of := *s.Shares
			of.Sum, of.Weights = b.sum, b.weights
			g.Found[i] = bucket.State{Level: b.level, Wait: s.Wait, Shares: &of}
			at++
		}
	}
}

// changed notes what a call's tenant holds after its charge.
func (t *tenants) changed(g *Group, c *Call) {
	at := 0
	for i := range c.Buckets {
		if c.Buckets[i].Kind != bucket.Tenants || at == len(t.shared) {
			continue
		}
		b, after := &t.shared[at], g.Found[i]
		at++
		b.level, b.sum, b.weights = after.Level, after.Shares.Sum, after.Shares.Weights
		own := b.tenants[c.tenant].Shares
		own.Finish, own.Held = after.Shares.Finish, after.Shares.Held
		if own.Finish == bucket.NoFinish { // all tenants are forgotten
			for j := range b.tenants {
				b.tenants[j].Shares.Finish = bucket.NoFinish
			}
		}
	}
}
