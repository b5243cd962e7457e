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
	key, others := c.Key, c.Others
	for i := range c.Names {
		if len(others) > 0 && others[0].From == i {
			key, others = others[0].Key, others[1:]
		}
		c.Names[i] = appendName(c.Names[i][:0], prefix, key, c.Buckets[i].ID)
	}
	if ban := c.Layout.Ban; ban >= 0 {
		c.Names[ban] = append(c.Names[ban], c.Op.Tenant.Name...) // each tenant has a ban of its own
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
	counted, second := g.Layout.Limits, g.Charges
	if g.Op.Records == bucket.WithRecords {
		second = int64(bucket.WithRecords)
	}
	n, each := g.Op.N, g.Op.Each
	if each != nil {
		n, each = costs(each, counted)
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
	if g.Op.Verb == bucket.Return {
		args = appendClaims(args, &g.Op)
	}
	switch l := g.Layout; {
	case l.Limits == len(g.Buckets):
		return args
	case l.Ahead >= 0:
		ahead := &g.Buckets[l.Ahead]
		return append(args, ahead.Drain, ahead.Cost, ahead.Capacity, g.Op.Ahead, g.Op.Held)
	case l.Tenants >= 0:
		return appendTenants(args, g)
	}
	return appendGuards(args, g, process)
}

// costs returns the tokens that each charge takes of limits, by the costs of all buckets: of the only limit, or of
// each.
func costs(all []int64, limits int) (n int64, each []int64) {
	switch limits {
	case 0:
		return 1, nil
	case 1: // beside slots
		return all[0], nil
	}
	return 0, all[:limits]
}

// appendClaims appends what a Return claims.
func appendClaims(args []any, op *bucket.Op) []any {
	for i := range op.Claims {
		args = append(args, op.Claims[i].Mark)
	}
	for i := 0; op.Records != bucket.NoRecords && i < len(op.Claims); i++ {
		claim := &op.Claims[i]
		args = append(args, claim.Sure, min(claim.Behind, bucket.MaxUnits), claim.Age, claim.Made, claim.Resets)
	}
	return args
}

// appendKeys appends the number of a group's keys, and the keys.
func appendKeys(args []any, g *dispatch.Group) []any {
	first, l, names := len(args), g.Layout, g.Names
	if l.Tenants >= 0 {
		names = names[:l.Tenants]
	}
	args = append(args, nil)
	for i := range names {
		args = append(args, &names[i])
	}
	for i := l.Slots; g.Op.Waits > 0 && 0 <= i && i < len(names); i++ {
		args = append(args, suffixed(names[i], turnsSuffix+strconv.FormatInt(g.Buckets[i].Capacity, 10)))
	}
	if g.Op.Records == bucket.WithRecords {
		for _, name := range names[:l.Limits] {
			args = append(args, suffixed(name, recordSuffix))
		}
	}
	if l.Tenants >= 0 {
		args = append(args, suffixed(g.Names[l.Tenants], heldSuffix), &g.Names[l.Tenants])
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
	counted := g.Layout.Limits
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
