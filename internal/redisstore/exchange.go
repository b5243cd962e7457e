package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

const (
	// maxKeys is how many keys of different clients go into one call of the script. A call of more
	// costs each of them no less, and keeps Redis from its other clients for longer.
	maxKeys = 64
	// maxOpen is how many calls of different limits are looked through for one of the same limit.
	maxOpen = 8
)

// pipeline is the commands of one batch. It belongs to the goroutine that sends it. Its memory is
// used again.
type pipeline struct {
	store    *Store
	sharing  *sharing // of the commands of several calls
	commands []*command
	spare    []*command
	alone    []*dispatch.Group
}

// sharing is how the calls of one server share commands.
type sharing struct {
	// crossSlot says that the server is a node of a cluster. The keys of a command may be in
	// several hash slots, but only the first is declared. The node leaves alone those that it does
	// not have.
	crossSlot bool
	// has reports whether the server has a key now, if that may have changed since the call was
	// queued; the server itself does not know.
	has func(key *dispatch.Name) bool
}

// command is what a client sends for one merged call or for several. go-redis does not send it
// again, as Redis may have made the charge though no reply came in time; it follows a redirection
// all the same.
type command struct {
	redis.Cmder       // *redis.IntCmd for one token bucket, else *redis.IntSliceCmd
	bounded     route // how the client that it is given to carries it
	args        []any
	reported    []any // what it reports of slots; nil if it decides
	from        int   // the first of the updates that it reports
	calls       []*dispatch.Group
	single      [1]int64 // the reply of an IntCmd
	first       int      // of several hash slots: how many args are those of the first key alone; else 0
	asked       bool     // it goes on with its first key alone
}

// NoRetry implements [redis.Cmder].
func (*command) NoRetry() bool { return true }

// A client that would not ask, as those before 9.19 do not, does not compile.
var _ = redis.Cmder.NoRetry

// SetErr implements [redis.Cmder]. The client does so before it follows a redirection. After ASK it
// does not take the other keys along: the node that imports the first one's hash slot would make
// them anew if it imports theirs, though they have not arrived yet.
func (c *command) SetErr(err error) {
	if c.first > 0 && redis.HasErrorPrefix(err, "ASK") {
		c.asked = true
	}
	c.Cmder.SetErr(err)
}

// Args implements [redis.Cmder].
func (c *command) Args() []any {
	if c.asked {
		return c.args[:c.first]
	}
	return c.Cmder.Args()
}

// plan makes the commands of merged calls. Those that take from a single bucket of the same limit
// become one, unless sharing is nil; but each key goes only once before what is to be done to it
// alone, in the order in which it was asked for.
func (x *pipeline) plan(calls []*dispatch.Group, sharing *sharing) {
	x.reset()
	x.sharing = sharing
	for _, m := range calls {
		if sharing != nil && m.First && m.Op.Verb == bucket.Take && m.Charges > 0 && len(m.Buckets) == 1 && m.Buckets[0].IsLimit() &&
			(sharing.has == nil || sharing.has(&m.Names[0])) {
			x.share(m)
		} else {
			x.alone = append(x.alone, m)
		}
	}
	for _, m := range x.alone {
		x.add(m)
	}
}

// share adds the call to a command of its limit, or to a new one.
func (x *pipeline) share(m *dispatch.Group) {
	for _, c := range x.commands[max(0, len(x.commands)-maxOpen):] {
		first := c.calls[0]
		if len(c.calls) < maxKeys && first.Op.N == m.Op.N && bucket.Same(first.Buckets, m.Buckets) {
			c.calls = append(c.calls, m)
			return
		}
	}
	x.add(m)
}

// add adds a command of one call.
func (x *pipeline) add(m *dispatch.Group) {
	var c *command
	if n := len(x.spare); n > 0 {
		c, x.spare = x.spare[n-1], x.spare[:n-1]
	} else {
		c = new(command)
	}
	c.calls = append(c.calls, m)
	x.commands = append(x.commands, c)
}

// reset makes all commands spare.
func (x *pipeline) reset() {
	for _, c := range x.commands {
		c.Cmder, c.first, c.asked = nil, 0, false
		clear(c.args)
		clear(c.calls)
		c.args, c.calls = c.args[:0], c.calls[:0]
	}
	x.spare = append(x.spare, x.commands...)
	clear(x.commands)
	clear(x.alone)
	x.commands, x.alone, x.sharing = x.commands[:0], x.alone[:0], nil
}

// run has the commands done: by the script's SHA, and with its source where Redis does not have it.
// It reports whether Redis denied a command of several calls, as it does if their keys are in
// different hash slots, or the user may not use MGET, or the server knows no scripts of several
// hash slots.
func (x *pipeline) run(ctx context.Context) (refused bool) {
	for _, c := range x.commands {
		c.encode(ctx, x.store, x.sharing, true)
	}
	x.exec(ctx, x.commands)
	var missing []*command
	for _, c := range x.commands {
		if err := c.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.encode(ctx, x.store, x.sharing, false)
			missing = append(missing, c)
		}
	}
	if missing != nil {
		x.exec(ctx, missing)
	}
	for _, c := range x.commands {
		c.decode()
		refused = refused || c.calls[0].Err == errRetryAlone && c.Err() != nil
	}
	return refused
}

// exec sends commands and reads their replies. What goes wrong is the commands' error.
func (x *pipeline) exec(ctx context.Context, commands []*command) {
	if len(commands) == 1 {
		_ = x.store.rdb.Process(ctx, commands[0])
		return
	}
	pipe := x.store.rdb.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, c := range commands {
			c.notSent(err)
		}
	}
}

// The verbs of the scripts.
var verbs = [...]any{bucket.Take: "take", bucket.Charge: "charge", bucket.Give: "give", bucket.Return: "return", bucket.Block: "block", bucket.Reset: "reset"}

// encode writes the command as script.lua, decide.lua and cross_slot.lua document it.
func (c *command) encode(ctx context.Context, s *Store, sharing *sharing, bySHA bool) {
	c.bounded = s.carriers.bounded()
	c.first, c.asked = 0, false
	m := c.calls[0]
	of := scriptOf(m.Buckets)
	script := &s.scripts[of]
	crossSlot := len(c.calls) > 1 && sharing.crossSlot
	if crossSlot {
		script = &s.ofNode[of]
	}
	call := script.bySource
	if bySHA {
		call = script.bySHA
	}
	c.args = append(c.args[:0], call[0], call[1])
	switch {
	case crossSlot:
		c.encodeEach(c.calls[:1], c.calls[1:])
	case len(c.calls) > 1:
		c.encodeEach(c.calls, nil)
	default:
		keys := len(m.Buckets)
		if m.Op.Records == bucket.WithRecords {
			keys += bucket.Counted(m.Buckets)
		}
		c.args = append(c.args, keys)
		c.encodeOne(m)
		if of >= WithBanOrSlots {
			c.encodeGuards(m, s.process)
		}
	}
	if len(c.calls) == 1 && len(m.Buckets) == 1 && of == Tokens {
		// A value that is no answer until there is one: a hook of the client may keep a pipeline
		// from Redis without an error in its commands.
		cmd := redis.NewIntCmd(ctx, c.args...)
		cmd.SetVal(-1)
		c.Cmder = cmd
	} else {
		c.Cmder = redis.NewIntSliceCmd(ctx, c.args...)
	}
	c.SetStepCount(1) // known, or a cluster client looks it up with COMMAND
}

// encodeOne appends the keys of a call's buckets, what is to be done to them, and the buckets.
func (c *command) encodeOne(m *dispatch.Group) {
	records, second := m.Op.Records, m.Charges
	if records != bucket.RecordsOnly {
		for i := range m.Names {
			c.args = append(c.args, &m.Names[i])
		}
	}
	if records == bucket.WithRecords || records == bucket.RecordsOnly {
		c.encodeRecords(m, bucket.Counted(m.Buckets))
	}
	if records != bucket.NoRecords {
		second = int64(records)
	}
	c.args = append(c.args, verbs[m.Op.Verb], m.Op.N, second)
	for i := range m.Buckets[:bucket.Counted(m.Buckets)] {
		c.encodeBucket(&m.Buckets[i])
		if floor := m.Buckets[i].Floor; floor > 0 && m.Op.Verb != bucket.Take {
			c.args[len(c.args)-1] = m.Buckets[i].Capacity + floor
		}
	}
	for i := range m.Op.Claims {
		c.args = append(c.args, m.Op.Claims[i].Mark)
	}
	if m.Op.Records == bucket.NoRecords {
		return
	}
	for i := range m.Op.Claims {
		claim := &m.Op.Claims[i]
		c.args = append(c.args, claim.Sure, min(claim.Behind, bucket.MaxUnits), claim.Age, claim.Made, claim.Resets, claim.Known)
	}
}

// recordSuffix follows the name of a bucket in the name of its record.
const recordSuffix = ":back"

// encodeRecords appends the names of the records of limits' buckets.
func (c *command) encodeRecords(m *dispatch.Group, counted int) {
	for i := range m.Names[:counted] {
		record := append(slices.Clone(m.Names[i]), recordSuffix...)
		c.args = append(c.args, &record)
	}
}

// encodeGuards appends a ban and slots as arguments of guards.lua.
func (c *command) encodeGuards(m *dispatch.Group, process string) {
	counted := bucket.Counted(m.Buckets)
	guards := m.Buckets[counted:]
	kind := "slots"
	switch {
	case len(guards) > 1:
		kind = "both"
	case guards[0].Kind == bucket.Ban:
		kind = "ban"
	}
	c.args = append(c.args, kind)
	for i := range guards {
		if guards[i].Kind == bucket.Ban {
			c.args = append(c.args, guards[i].Cost, guards[i].Capacity, int(m.Op.Bans))
			continue
		}
		newest, attempts := m.Attempts()
		c.args = append(c.args, guards[i].Capacity, process, newest.Ended, newest.Held, attempts)
	}
	c.args = append(c.args, counted)
}

// encodeBucket appends a bucket as arguments of a script.
func (c *command) encodeBucket(b *bucket.Bucket) {
	c.args = append(c.args, b.Args[:]...)
	if b.Ends != 0 {
		c.args[len(c.args)-len(b.Args)] = b.Left(time.Now().UnixMilli())
	}
}

// encodeEach appends the key of every call, the limit that they have in common, and how often each
// is to be charged unless all are charged once. The keys of those that are not declared come last.
func (c *command) encodeEach(declared, others []*dispatch.Group) {
	c.args = append(c.args, len(declared))
	for _, m := range declared {
		c.args = append(c.args, &m.Names[0])
	}
	once := int64(1)
	for _, m := range c.calls {
		if m.Charges != 1 {
			once = 0
		}
	}
	m := c.calls[0]
	c.args = append(c.args, "each", m.Op.N, once)
	c.encodeBucket(&m.Buckets[0])
	first := len(c.args)
	if once == 0 {
		first++
		for _, m := range c.calls {
			c.args = append(c.args, m.Charges)
		}
	}
	if len(others) == 0 {
		return
	}
	c.first = first
	for _, m := range others {
		c.args = append(c.args, &m.Names[0])
	}
}
