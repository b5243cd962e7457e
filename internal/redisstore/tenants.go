package redisstore

import (
	"slices"
	"strconv"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// heldSuffix is appended to the name of what tenants hold to name the hash of that. The name alone is that
// of the bounds.
const heldSuffix = ":held"

// heldUnit times a tenant's finish is added to its weight: see lua/fast/tenants.lua.
const heldUnit = 1024

// isShared reports whether the buckets are a limit and what tenants hold of it.
func isShared(buckets []bucket.Bucket) bool { return buckets[len(buckets)-1].Kind == bucket.Tenants }

// encodeHeld appends the names of what tenants hold of a shared limit.
func (c *command) encodeHeld(g *dispatch.Group) {
	held := append(slices.Clone(g.Names[1]), heldSuffix...)
	c.args = append(c.args, &held, &g.Names[1])
}

// encodeTenants appends the tenants, as arguments of lua/fast/tenants.lua. A probe and a reset of all have none.
func (c *command) encodeTenants(g *dispatch.Group) {
	all := g.Tenants()
	if len(all) == 0 {
		return
	}
	for i := range all {
		c.args = append(c.args, all[i].Name)
	}
	first := len(c.args)
	for i := range all {
		c.args = append(c.args, all[i].Weight)
	}
	if len(all) == 1 {
		c.args[first] = all[0].Weight + heldUnit*min(g.Charges, dispatch.MaxRun)
		return
	}
	runs := g.Runs()
	text := make([]byte, 0, 8*len(runs))
	for _, run := range runs {
		c.args[first+run.Tenant] = c.args[first+run.Tenant].(int64) + heldUnit*run.Charges
		text = strconv.AppendInt(text, int64(run.Tenant+1), 10)
		text = append(strconv.AppendInt(append(text, ' '), run.Charges, 10), ' ')
	}
	c.args = append(c.args, text)
}

// decodeTenants sets what each tenant of a group holds by what follows the level in a reply. It reports whether
// that has as many integers as it should.
func decodeTenants(g *dispatch.Group, reply []int64) bool {
	all := g.Tenants()
	n := len(all)
	if len(reply) != 2+n && len(reply) != 2+2*n {
		return false
	}
	for i, tenant := range all {
		of := &bucket.Shares{Sum: reply[0], Weights: reply[1], Finish: bucket.NoFinish, Weight: tenant.Weight}
		if held := reply[2+i]; held > 0 {
			of.Finish, of.Held = (held-1)/heldUnit, (held-1)%heldUnit
		}
		s := bucket.State{Level: g.Found[0].Level, Shares: of}
		if len(reply) > 2+n {
			s.Wait = reply[2+n+i]
		}
		g.FoundTenant(s)
	}
	return true
}
