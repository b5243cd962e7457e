package wire

import (
	"encoding/binary"

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
	return append(args, appendCharges(make([]byte, 0, 8*len(all)), g, all))
}

// appendCharges appends the weights and charges of tenants, as the last argument.
func appendCharges(text []byte, g *dispatch.Group, all []bucket.Tenant) []byte {
	for i := range all {
		text = append(binary.BigEndian.AppendUint16(text, uint16(all[i].Weight)), 0, 0)
	}
	if len(all) == 1 {
		return text
	}
	for _, run := range g.Runs() {
		of := text[4*run.Tenant+2:]
		binary.BigEndian.PutUint16(of, binary.BigEndian.Uint16(of)+uint16(run.Charges))
		text = binary.BigEndian.AppendUint16(append(text, byte(run.Tenant)), uint16(run.Charges))
	}
	return text
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
		of := &bucket.Shares{Sum: reply[n], Weights: reply[n+1], Finish: bucket.NoFinish, Weight: tenant.Weight}
		if held := reply[i]; held > 0 {
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
