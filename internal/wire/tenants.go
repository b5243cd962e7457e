package wire

import (
	"strconv"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// heldUnit times a tenant's finish is added to its weight: see fast/tenants.lua.
const heldUnit = 1024

// appendTenants appends the tenants, as arguments of fast/tenants.lua. A probe and a reset of all have none.
func appendTenants(args []any, g *dispatch.Group) []any {
	all := g.Tenants()
	if len(all) == 0 {
		return args
	}
	for i := range all {
		args = append(args, all[i].Name)
	}
	first := len(args)
	for i := range all {
		args = append(args, all[i].Weight)
	}
	if len(all) == 1 {
		args[first] = all[0].Weight + heldUnit*min(g.Charges, dispatch.MaxRun)
		return args
	}
	runs := g.Runs()
	text := make([]byte, 0, 8*len(runs))
	for _, run := range runs {
		args[first+run.Tenant] = args[first+run.Tenant].(int64) + heldUnit*run.Charges
		text = strconv.AppendInt(text, int64(run.Tenant+1), 10)
		text = append(strconv.AppendInt(append(text, ' '), run.Charges, 10), ' ')
	}
	return append(args, text)
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
