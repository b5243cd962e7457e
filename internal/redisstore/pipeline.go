package redisstore

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

const (
	// maxKeys is how many keys of different clients go into one command. Larger commands save
	// nothing per key, and block Redis for longer.
	maxKeys = 64
	// maxLookback is how many of the last commands are searched for the same limit.
	maxLookback = 8
)

// pipeline holds the commands of one batch. The goroutine that sends the batch owns it. Its memory
// is reused.
type pipeline struct {
	store      *Store
	coalescing *coalescing // for the commands of several groups
	commands   []*command
	spare      []*command
	single     []*dispatch.Group
}

// coalescing says how the groups of one server share commands.
type coalescing struct {
	// crossSlot is set for a cluster node. A command's keys may be in several hash slots, and only
	// the first is declared. The node skips keys that it does not have.
	crossSlot bool
	// has reports whether the server still has a key. It is nil where a key's server cannot change.
	has func(key *dispatch.Name) bool
}

// command is what a client sends for one or more groups. go-redis does not retry it, because Redis
// may have charged although no reply came in time. It still follows redirections.
type command struct {
	redis.Cmder              // *redis.IntCmd for one token bucket, else *redis.IntSliceCmd
	hook        *boundedHook // sends it; nil if the client does
	args        []any
	reported    []any // the report of slots; nil for a decision
	from        int   // its first update
	groups      []*dispatch.Group
	single      [1]int64 // the reply of an IntCmd
	firstArgs   int      // the args for the first key alone, if it spans hash slots; else 0
	afterASK    bool     // only its first key is left
}

// NoRetry implements [redis.Cmder].
func (*command) NoRetry() bool { return true }

// go-redis before 9.19 ignores NoRetry; with such a version this line does not compile.
var _ = redis.Cmder.NoRetry

// SetErr implements [redis.Cmder]. The client calls it before it follows a redirection. After ASK,
// the command keeps only its first key. The importing node may also import the hash slots of the
// other keys, and would create keys there that have not arrived yet.
func (c *command) SetErr(err error) {
	if c.firstArgs > 0 && redis.HasErrorPrefix(err, "ASK") {
		c.afterASK = true
	}
	c.Cmder.SetErr(err)
}

// Args implements [redis.Cmder].
func (c *command) Args() []any {
	if c.afterASK {
		return c.args[:c.firstArgs]
	}
	return c.Cmder.Args()
}

// build makes the commands of groups. Groups that take from a single bucket of the same limit share
// a command, unless coalescing is nil. A group that may not share comes after them, in the order of
// the calls.
func (p *pipeline) build(groups []*dispatch.Group, coalescing *coalescing) {
	p.reset()
	p.coalescing = coalescing
	for _, g := range groups {
		if coalescing != nil && g.First && g.Op.Verb == bucket.Take && g.Charges > 0 &&
			len(g.Buckets) == 1 && g.Buckets[0].IsLimit() &&
			(coalescing.has == nil || coalescing.has(&g.Names[0])) {
			p.coalesce(g)
		} else {
			p.single = append(p.single, g)
		}
	}
	for _, g := range p.single {
		p.add(g)
	}
}

// coalesce adds the group to a command of its limit, or to a new one.
func (p *pipeline) coalesce(g *dispatch.Group) {
	for _, c := range p.commands[max(0, len(p.commands)-maxLookback):] {
		first := c.groups[0]
		if len(c.groups) < maxKeys && first.Op.N == g.Op.N && bucket.Same(first.Buckets, g.Buckets) {
			c.groups = append(c.groups, g)
			return
		}
	}
	p.add(g)
}

// add adds a command for one group.
func (p *pipeline) add(g *dispatch.Group) {
	var c *command
	if n := len(p.spare); n > 0 {
		c, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		c = new(command)
	}
	c.groups = append(c.groups, g)
	p.commands = append(p.commands, c)
}

// reset recycles all commands.
func (p *pipeline) reset() {
	for _, c := range p.commands {
		c.Cmder, c.firstArgs, c.afterASK = nil, 0, false
		clear(c.args)
		clear(c.groups)
		c.args, c.groups = c.args[:0], c.groups[:0]
	}
	p.spare = append(p.spare, p.commands...)
	clear(p.commands)
	clear(p.single)
	p.commands, p.single, p.coalescing = p.commands[:0], p.single[:0], nil
}

// run sends the commands by the script's SHA, and again with its source where Redis lacks it. It
// reports whether Redis refused a command of several groups. Redis does so if the keys are in
// different hash slots, if the user may not use MGET, or if the server does not know cross-slot
// scripts.
func (p *pipeline) run(ctx context.Context) (refused bool) {
	for _, c := range p.commands {
		c.encode(ctx, p.store, p.coalescing, true)
	}
	p.exec(ctx, p.commands)
	var missing []*command
	for _, c := range p.commands {
		if err := c.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.encode(ctx, p.store, p.coalescing, false)
			missing = append(missing, c)
		}
	}
	if missing != nil {
		p.exec(ctx, missing)
	}
	for _, c := range p.commands {
		c.decode()
		refused = refused || c.groups[0].Err == errRetrySingle && c.Err() != nil
	}
	return refused
}

// exec sends commands and reads their replies. Failures become the commands' errors.
func (p *pipeline) exec(ctx context.Context, commands []*command) {
	if len(commands) == 1 {
		_ = p.store.rdb.Process(ctx, commands[0])
		return
	}
	pipe := p.store.rdb.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, c := range commands {
			c.notSent(err)
		}
	}
}

// verbs are the verbs of the scripts.
var verbs = [...]any{bucket.Take: "take", bucket.Charge: "charge", bucket.Give: "give", bucket.Return: "return",
	bucket.Block: "block", bucket.Reset: "reset"}

// encode writes the command as script.lua, decide.lua and cross_slot.lua document it.
func (c *command) encode(ctx context.Context, s *Store, coalescing *coalescing, bySHA bool) {
	c.hook = s.hook
	c.firstArgs, c.afterASK = 0, false
	g := c.groups[0]
	number := scriptFor(g.Buckets)
	script := &s.scripts[number]
	crossSlot := len(c.groups) > 1 && coalescing.crossSlot
	if crossSlot {
		script = &s.nodeScripts[number]
	}
	call := script.bySource
	if bySHA {
		call = script.bySHA
	}
	c.args = append(c.args[:0], call[0], call[1])
	switch {
	case crossSlot:
		c.encodeEach(c.groups[:1], c.groups[1:])
	case len(c.groups) > 1:
		c.encodeEach(c.groups, nil)
	default:
		keys := len(g.Buckets)
		if g.Op.Records == bucket.WithRecords {
			keys += bucket.Counted(g.Buckets)
		}
		keys += turns(g.Call)
		if number == Tenants {
			keys++
		}
		c.args = append(c.args, keys)
		c.encodeOne(g)
		switch {
		case number == Lease:
			c.encodeLease(g)
		case number == Tenants:
			c.encodeTenants(g)
		case number >= WithBanOrSlots:
			c.encodeBanAndSlots(g, s.process)
		}
	}
	if len(c.groups) == 1 && len(g.Buckets) == 1 && number == Tokens {
		// Until a reply comes, the value is invalid: a hook of the client may drop a pipeline
		// without setting its commands' errors.
		cmd := redis.NewIntCmd(ctx, c.args...)
		cmd.SetVal(-1)
		c.Cmder = cmd
	} else {
		c.Cmder = redis.NewIntSliceCmd(ctx, c.args...)
	}
	c.SetStepCount(1) // without it, a cluster client sends COMMAND
}

// encodeOne appends a group's keys, its operation and its buckets.
func (c *command) encodeOne(g *dispatch.Group) {
	second := g.Charges
	for i := range g.Names {
		if g.Buckets[i].Kind != bucket.Tenants {
			c.args = append(c.args, &g.Names[i])
		}
	}
	for i := len(g.Buckets) - turns(g.Call); i < len(g.Buckets); i++ {
		name := append(slices.Clone(g.Names[i]), turnsSuffix...)
		name = strconv.AppendInt(name, g.Buckets[i].Capacity, 10)
		c.args = append(c.args, &name)
	}
	if g.Op.Records == bucket.WithRecords {
		second = int64(bucket.WithRecords)
		c.encodeRecords(g, bucket.Counted(g.Buckets))
	}
	if isShared(g.Buckets) {
		c.encodeHeld(g)
	}
	counted := bucket.Counted(g.Buckets)
	n, each := g.Op.N, g.Op.Each[:min(len(g.Op.Each), counted)]
	switch {
	case len(each) == 1: // beside slots
		n, each = each[0], nil
	case len(each) > 1:
		n = 0
	}
	c.args = append(c.args, verbs[g.Op.Verb], n, second)
	for i := range g.Buckets[:counted] {
		c.encodeBucket(&g.Buckets[i])
		if floor := g.Buckets[i].Floor; floor > 0 && g.Op.Verb != bucket.Take {
			c.args[len(c.args)-1] = g.Buckets[i].Capacity + floor
		}
	}
	for i := range each {
		c.args = append(c.args, each[i])
	}
	for i := range g.Op.Claims {
		c.args = append(c.args, g.Op.Claims[i].Mark)
	}
	if g.Op.Records == bucket.NoRecords {
		return
	}
	for i := range g.Op.Claims {
		claim := &g.Op.Claims[i]
		c.args = append(c.args, claim.Sure, min(claim.Behind, bucket.MaxUnits), claim.Age, claim.Made, claim.Resets)
	}
}

// turnsSuffix and the number of slots are appended to the name of slots, to name the processes that wait
// for one, in order. A process that may hold more slots does not wait for one that may hold fewer.
const turnsSuffix = ":turns:"

// turns returns how many buckets of a call, all slots, have turns of processes that wait.
func turns(c *dispatch.Call) (n int) {
	for n < len(c.Buckets) && c.Op.Waits > 0 && c.Buckets[len(c.Buckets)-n-1].Kind == bucket.Slots {
		n++
	}
	return n
}

// recordSuffix is appended to a bucket's name to name its record.
const recordSuffix = ":back"

// encodeRecords appends the names of the buckets' records.
func (c *command) encodeRecords(g *dispatch.Group, counted int) {
	for i := range g.Names[:counted] {
		record := append(slices.Clone(g.Names[i]), recordSuffix...)
		c.args = append(c.args, &record)
	}
}

// encodeBanAndSlots appends a ban and slots as arguments of guards.lua.
func (c *command) encodeBanAndSlots(g *dispatch.Group, process string) {
	counted := bucket.Counted(g.Buckets)
	slots := counted
	kind := "slots"
	if ban := &g.Buckets[slots]; ban.Kind == bucket.Ban {
		ownLimits, ownSlots := ownOf(g, counted, slots)
		if kind, slots = "both", slots+1; slots == len(g.Buckets) {
			kind = "ban"
		}
		c.args = append(c.args, kind, ban.Cost, ban.Capacity, int(g.Op.Bans), ownLimits, ownSlots)
	} else {
		c.args = append(c.args, kind)
	}
	if slots < len(g.Buckets) {
		c.args = append(c.args, process, g.Op.Waits)
	}
	for i := slots; i < len(g.Buckets); i++ {
		newest, attempts := g.Attempts(i)
		c.args = append(c.args, g.Buckets[i].Capacity, newest.Ended, newest.Held, attempts)
	}
	c.args = append(c.args, counted)
}

// ownOf returns how many of the first limits of a group have the key of the ban, and whether the first
// slots, which follow the ban, have: 1 or 0.
func ownOf(g *dispatch.Group, counted, ban int) (limits, slots int) {
	key := g.KeyOf(ban)
	for limits < counted && bytes.Equal(g.KeyOf(limits), key) {
		limits++
	}
	if ban+1 < len(g.Buckets) && bytes.Equal(g.KeyOf(ban+1), key) {
		slots = 1
	}
	return limits, slots
}

// encodeLease appends what is taken ahead as arguments of lease.lua.
func (c *command) encodeLease(g *dispatch.Group) {
	lease := &g.Buckets[len(g.Buckets)-1]
	c.args = append(c.args, lease.Drain, lease.Cost, lease.Capacity, g.Op.Ahead, g.Op.Held)
}

// encodeBucket appends a bucket as arguments of a script.
func (c *command) encodeBucket(b *bucket.Bucket) {
	c.args = append(c.args, b.Args[:]...)
	if b.Ends != 0 {
		c.args[len(c.args)-len(b.Args)] = b.Left(time.Now().UnixMilli())
	}
}

// encodeEach appends every group's key, their common limit, and each group's charges unless all are
// 1. The undeclared keys come last.
func (c *command) encodeEach(declared, others []*dispatch.Group) {
	c.args = append(c.args, len(declared))
	for _, g := range declared {
		c.args = append(c.args, &g.Names[0])
	}
	once := int64(1)
	for _, g := range c.groups {
		if g.Charges != 1 {
			once = 0
		}
	}
	g := c.groups[0]
	c.args = append(c.args, "each", g.Op.N, once)
	c.encodeBucket(&g.Buckets[0])
	first := len(c.args)
	if once == 0 {
		first++
		for _, g := range c.groups {
			c.args = append(c.args, g.Charges)
		}
	}
	if len(others) == 0 {
		return
	}
	c.firstArgs = first
	for _, g := range others {
		c.args = append(c.args, &g.Names[0])
	}
}
