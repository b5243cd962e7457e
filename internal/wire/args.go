package wire

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// verbs are the verbs of the scripts.
var verbs = [...]any{bucket.Take: "take", bucket.Charge: "charge", bucket.Give: "give", bucket.Return: "return",
	bucket.Block: "block", bucket.Reset: "reset"}

// What is appended to the name of a bucket, to name what belongs to it.
const (
	recordSuffix = ":back"
	// turnsSuffix and the number of slots name the processes that wait for a slot, in order. A process
	// that may hold more slots does not wait for one that may hold fewer.
	turnsSuffix = ":turns:"
	heldSuffix  = ":held" // what tenants hold; without it, the name is that of the bounds
)

// SetNames sets what the buckets of a call are called: prefix{key}:ID. The prefix includes the brace.
func SetNames(c *dispatch.Call, prefix string) {
	for i := range c.Names {
		c.Names[i] = appendName(c.Names[i][:0], prefix, c.KeyOf(i), c.Buckets[i].ID)
		if c.Buckets[i].Kind == bucket.Ban {
			c.Names[i] = append(c.Names[i], c.Op.Tenant.Name...) // each tenant has a ban of its own
		}
	}
}

// appendName appends the name of a bucket.
func appendName(name dispatch.Name, prefix string, key []byte, id string) dispatch.Name {
	return append(append(append(append(name, prefix...), key...), "}:"...), id...)
}

// suffixed returns the name of what belongs to a bucket.
func suffixed(name dispatch.Name, suffix string) *dispatch.Name {
	name = append(slices.Clone(name), suffix...)
	return &name
}

// Call appends the beginning of a script's call: the script by its SHA-1 or its source.
func (s *Scripts) Call(args []any, number int, bySHA bool) []any {
	script := s[number]()
	if bySHA {
		return append(args, script.bySHA[:]...)
	}
	return append(args, script.bySource[:]...)
}

// AppendGroup appends the keys and arguments of one group, as script.lua, decide.lua and the files of further
// scripts document them. process is the name of this process.
func AppendGroup(args []any, g *dispatch.Group, process string) []any {
	args = appendKeys(args, g)
	counted, second := bucket.Counted(g.Buckets), g.Charges
	if g.Op.Records == bucket.WithRecords {
		second = int64(bucket.WithRecords)
	}
	n, each := g.Op.N, g.Op.Each[:min(len(g.Op.Each), counted)]
	switch {
	case len(each) == 1: // beside slots
		n, each = each[0], nil
	case len(each) > 1:
		n = 0
	}
	args = append(args, verbs[g.Op.Verb], n, second)
	for i := range g.Buckets[:counted] {
		b := &g.Buckets[i]
		if args = appendBucket(args, b); b.Floor > 0 && g.Op.Verb != bucket.Take {
			args[len(args)-1] = b.Capacity + b.Floor
		}
	}
	for i := range each {
		args = append(args, each[i])
	}
	for i := range g.Op.Claims {
		args = append(args, g.Op.Claims[i].Mark)
	}
	for i := 0; g.Op.Records != bucket.NoRecords && i < len(g.Op.Claims); i++ {
		claim := &g.Op.Claims[i]
		args = append(args, claim.Sure, min(claim.Behind, bucket.MaxUnits), claim.Age, claim.Made, claim.Resets)
	}
	if counted == len(g.Buckets) {
		return args
	}
	switch last := &g.Buckets[len(g.Buckets)-1]; last.Kind {
	case bucket.Ahead:
		return append(args, last.Drain, last.Cost, last.Capacity, g.Op.Ahead, g.Op.Held)
	case bucket.Tenants:
		return appendTenants(args, g)
	}
	return appendGuards(args, g, process)
}

// appendKeys appends the number of a group's keys, and the keys.
func appendKeys(args []any, g *dispatch.Group) []any {
	first, counted := len(args), bucket.Counted(g.Buckets)
	args = append(args, nil)
	for i := range g.Names {
		if g.Buckets[i].Kind != bucket.Tenants {
			args = append(args, &g.Names[i])
		}
	}
	for i := range g.Buckets[counted:] {
		if b := &g.Buckets[counted+i]; b.Kind == bucket.Slots && g.Op.Waits > 0 {
			args = append(args, suffixed(g.Names[counted+i], turnsSuffix+strconv.FormatInt(b.Capacity, 10)))
		}
	}
	if g.Op.Records == bucket.WithRecords {
		for _, name := range g.Names[:counted] {
			args = append(args, suffixed(name, recordSuffix))
		}
	}
	if bucket.At(g.Buckets, bucket.Tenants) >= 0 {
		args = append(args, suffixed(g.Names[1], heldSuffix), &g.Names[1])
	}
	args[first] = len(args) - first - 1
	return args
}

// appendBucket appends a bucket.
func appendBucket(args []any, b *bucket.Bucket) []any {
	args = append(args, b.Args[:]...)
	if b.Ends != 0 {
		args[len(args)-len(b.Args)] = b.Left(time.Now().UnixMilli())
	}
	return args
}

// appendGuards appends a ban and slots as arguments of guards.lua.
func appendGuards(args []any, g *dispatch.Group, process string) []any {
	counted := bucket.Counted(g.Buckets)
	slots, kind := counted, "slots"
	if ban := &g.Buckets[slots]; ban.Kind == bucket.Ban {
		ownLimits, ownSlots := ownOf(g, counted)
		if kind, slots = "both", slots+1; slots == len(g.Buckets) {
			kind = "ban"
		}
		args = append(args, kind, ban.Cost, ban.Capacity, int(g.Op.Bans), ownLimits, ownSlots)
	} else {
		args = append(args, kind)
	}
	if slots < len(g.Buckets) {
		args = append(args, process, g.Op.Waits)
	}
	for i := slots; i < len(g.Buckets); i++ {
		newest, attempts := g.Attempts(i)
		args = append(args, g.Buckets[i].Capacity, newest.Ended, newest.Held, attempts)
	}
	return append(args, counted)
}

// ownOf returns how many of the first limits of a group have the key of the ban, and whether the first
// slots, which follow the ban, have: 1 or 0.
func ownOf(g *dispatch.Group, ban int) (limits, slots int) {
	key := g.KeyOf(ban)
	for limits < ban && bytes.Equal(g.KeyOf(limits), key) {
		limits++
	}
	if ban+1 < len(g.Buckets) && bytes.Equal(g.KeyOf(ban+1), key) {
		slots = 1
	}
	return limits, slots
}

// AppendEach appends the keys and arguments of several groups, each of which takes from one bucket of the same
// limit: every group's key, the limit, and each group's charges unless all are 1. For a cluster node, the keys
// after the first come last, undeclared. firstKey is how many arguments there are without them and their charges.
func AppendEach(args []any, groups []*dispatch.Group, node bool) (all []any, firstKey int) {
	declared := len(groups)
	if node {
		declared = 1
	}
	args = append(args, declared)
	for _, g := range groups[:declared] {
		args = append(args, &g.Names[0])
	}
	once := int64(1)
	for _, g := range groups {
		if g.Charges != 1 {
			once = 0
		}
	}
	args = appendBucket(append(args, "each", groups[0].Op.N, once), &groups[0].Buckets[0])
	firstKey = len(args)
	if once == 0 {
		firstKey++
		for _, g := range groups {
			args = append(args, g.Charges)
		}
	}
	for _, g := range groups[declared:] {
		args = append(args, &g.Names[0])
	}
	return args, firstKey
}
