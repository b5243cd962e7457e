package redisstore

import (
	"slices"
	"strconv"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// tenantsOf returns how many of the buckets are what tenants hold.
func tenantsOf(buckets []bucket.Bucket) (n int) {
	for i := range buckets {
		if buckets[i].Kind == bucket.Tenants {
			n++
		}
	}
	return n
}

// heldSuffix is appended to the name of what tenants hold to name the hash of that. The name alone is that
// of the bounds.
const heldSuffix = ":held"

// notesReset reports whether an operation of a tenant comes with the keys that note when it was reset.
func notesReset(op *bucket.Op) bool {
	return op.Tenant.Name != "" && op.Records == bucket.WithRecords &&
		(op.Verb == bucket.Return || op.Verb == bucket.Reset)
}

// encodeResets appends the names of the keys that note when a tenant was reset.
func (c *command) encodeResets(g *dispatch.Group) {
	for i := range g.Names {
		if g.Buckets[i].Kind == bucket.Tenants {
			name := append(append(slices.Clone(g.Names[i]), ":reset"...), g.Op.Tenant.Name...)
			c.args = append(c.args, &name)
		}
	}
}

// encodeTenants appends what comes with shared buckets, then the tenants, as arguments of shares.lua.
func (c *command) encodeTenants(g *dispatch.Group, process string) {
	all := g.Tenants()
	shared, guards := tenantsOf(g.Buckets), 0
	if counted := bucket.Counted(g.Buckets); counted+shared < len(g.Buckets) {
		c.encodeBanAndSlots(g, process)
		guards = 1
	}
	if len(all) == 1 {
		c.args = append(c.args, all[0].Name, all[0].Weight+heldUnit*min(g.Charges, dispatch.MaxRun))
		if guards == 0 && g.Op.Verb == bucket.Take && bucket.Counted(g.Buckets) == 1 {
			return
		}
		c.args = append(c.args, "")
	} else {
		c.encodeRuns(all, g.Runs())
	}
	c.args = append(c.args, guards, len(all), shared)
}

// encodeRuns appends several tenants and the runs of their charges.
func (c *command) encodeRuns(all []bucket.Tenant, runs []dispatch.Run) {
	for i := range all {
		c.args = append(c.args, all[i].Name)
	}
	first := len(c.args)
	for i := range all {
		c.args = append(c.args, all[i].Weight)
	}
	text := make([]byte, 0, 8*len(runs))
	for _, run := range runs {
		c.args[first+run.Tenant] = c.args[first+run.Tenant].(int64) + heldUnit*run.Charges
		text = strconv.AppendInt(text, int64(run.Tenant+1), 10)
		text = append(strconv.AppendInt(append(text, ' '), run.Charges, 10), ' ')
	}
	c.args = append(c.args, text)
}

// tenantNumbers returns how many integers about tenants a reply should have that has some: see shares.lua.
func tenantNumbers(g *dispatch.Group, shared, has int) int {
	all := g.Tenants()
	if shared == 1 && (has == 2+len(all) || has == 2+2*len(all)) {
		return has
	}
	return shared * (2 + 3*len(all))
}

// decodeTenants sets what each tenant of a group holds, by the levels of the shared buckets and the rest
// of a reply.
func decodeTenants(g *dispatch.Group, levels []bucket.State, reply []int64) {
	all := g.Tenants()
	n := len(all)
	for i := range tenantsOf(g.Buckets) {
		sum, weights, held := reply[0], reply[1], reply[2:2+n]
		reply = reply[2+n:]
		var waits, blocks []int64
		if n > 0 && len(reply) >= n {
			waits, reply = reply[:n], reply[n:]
		}
		if n > 0 && len(reply) >= n {
			blocks, reply = reply[:n], reply[n:]
		}
		for j, tenant := range all {
			of := &bucket.Shares{Sum: sum, Weights: weights, Finish: bucket.NoFinish, Weight: tenant.Weight}
			if held[j] > 0 {
				of.Finish, of.Held = (held[j]-1)/heldUnit, (held[j]-1)%heldUnit
			}
			s := bucket.State{Level: levels[i].Level, Shares: of}
			if waits != nil {
				s.Wait = waits[j]
			}
			if blocks != nil {
				of.Block = blocks[j]
			}
			g.FoundTenant(s)
		}
	}
}

// heldUnit times a tenant's finish is added to its weight: see shares.lua.
const heldUnit = 1024
