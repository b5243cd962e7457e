package redisstore

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/wire"
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
	commands []*command // those behind the last one are used again
	single   []*dispatch.Group
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
// may have charged although no reply came in time. It still follows redirections, as far as
// [redirections] lets it.
type command struct {
	redis.Cmder     // *redis.IntCmd for one token bucket, else *redis.IntSliceCmd
	script      int // its number, for one client's keys
	args        []any
	groups      []*dispatch.Group
	updates     []inflight.Update // of a report of slots, instead of groups
	places      []int             // of the updates in their report
	crossSlot   bool              // its keys may be in several hash slots
	single      [1]int64          // the reply of an IntCmd
	firstArgs   int               // how many args the first key alone needs, of several groups
	afterASK    bool              // only its first key is left
}

// NoRetry implements [redis.Cmder].
func (*command) NoRetry() bool { return true }

// go-redis before 9.19 ignores NoRetry; with such a version this line does not compile.
var _ = redis.Cmder.NoRetry

// share makes the commands of groups, in an empty pipeline. Groups that take from a single bucket of the same limit
// share one. A group that may not share comes after them, in the order of the calls.
func (p *pipeline) share(groups []*dispatch.Group, how *coalescing) {
	for _, g := range groups {
		if g.First && g.Op.Verb == bucket.Take && g.Charges > 0 && g.Layout.Single &&
			(how.has == nil || how.has(&g.Names[0])) {
			p.coalesce(g, how.crossSlot)
		} else {
			p.single = append(p.single, g)
		}
	}
	p.add(p.single...)
}

// coalesce adds the group to a command of its limit, or to a new one.
func (p *pipeline) coalesce(g *dispatch.Group, crossSlot bool) {
	for _, c := range p.commands[max(0, len(p.commands)-maxLookback):] {
		first := c.groups[0]
		if len(c.groups) < maxKeys && first.Op.N == g.Op.N && bucket.Same(first.Buckets, g.Buckets) {
			c.groups, c.crossSlot = append(c.groups, g), crossSlot
			return
		}
	}
	p.add(g)
}

// add adds a command for each of some groups.
func (p *pipeline) add(groups ...*dispatch.Group) {
	for _, g := range groups {
		n := len(p.commands)
		if p.commands = slices.Grow(p.commands, 1)[:n+1]; p.commands[n] == nil {
			p.commands[n] = new(command)
		}
		c := p.commands[n]
		c.groups, c.script = append(c.groups, g), wire.For(g.Layout)
	}
}

// reset recycles all commands.
func (p *pipeline) reset() {
	for _, c := range p.commands {
		clear(c.args)
		clear(c.groups)
		*c = command{args: c.args[:0], groups: c.groups[:0]}
	}
	clear(p.single)
	p.commands, p.single = p.commands[:0], p.single[:0]
}

// refused reports whether Redis refused a command of several groups. Redis does so if the keys are in different
// hash slots, if the user may not use MGET, or if the server does not know cross-slot scripts.
func (p *pipeline) refused() bool {
	return slices.ContainsFunc(p.commands, func(c *command) bool {
		return c.groups[0].Err == wire.ErrRetrySingle && c.Err() != nil && !isRedirection(c.Err())
	})
}

// exec sends commands by their scripts' SHA, and again with the source where Redis lacks it. On a cluster, a
// command's redirection number last ends it. Failures become the commands' errors.
func (s *Store) exec(ctx context.Context, commands []*command, bySHA bool, last int32) {
	for _, c := range commands {
		c.encode(ctx, s, bySHA)
	}
	switch {
	case s.nodes.refresh != nil:
		s.execOnCluster(ctx, commands, last)
	case len(commands) == 1:
		_ = s.sender.Process(ctx, commands[0])
	default:
		execAll(ctx, s.sender, commands)
	}
	var missing []*command
	for _, c := range commands {
		if err := c.Err(); bySHA && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			missing = append(missing, c)
		}
	}
	if missing != nil {
		s.exec(ctx, missing, false, last)
	}
}

// sendable is a command, or one on a cluster.
type sendable interface {
	redis.Cmder
	notSent(err error)
}

// execAll sends several commands, or none.
func execAll[C sendable](ctx context.Context, rdb sender, commands []C) {
	pipe := rdb.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, c := range commands {
			c.notSent(err)
		}
	}
}

// encode writes the command: a report, what one group wants, or what several do.
func (c *command) encode(ctx context.Context, s *Store, bySHA bool) {
	c.firstArgs, c.afterASK = 0, false
	number := c.script
	if c.crossSlot {
		number = wire.ForNode(number)
	}
	c.args = s.Scripts.Call(c.args[:0], number, bySHA)
	switch {
	case c.updates != nil:
		c.args, c.firstArgs = wire.AppendReport(c.args, c.updates, s.prefix, s.Process, c.crossSlot)
	case len(c.groups) == 1:
		c.args = wire.AppendGroup(c.args, c.groups[0], s.Process)
	default:
		c.args, c.firstArgs = wire.AppendEach(c.args, c.groups, c.crossSlot)
	}
	if wire.IsInteger(c.groups) {
		// Until a reply comes, the value is invalid: a hook of the client may drop a pipeline
		// without setting its commands' errors.
		cmd := redis.NewIntCmd(ctx, c.args...)
		cmd.SetVal(-1)
		c.Cmder = cmd
	} else {
		c.Cmder = redis.NewIntSliceCmd(ctx, c.args...) // its value stays nil until a reply comes
	}
	c.SetStepCount(1) // without it, a cluster client sends COMMAND
}

// decode reads the reply into the groups, unless an error kept the command from being sent.
func (c *command) decode(err error) {
	if err == nil {
		err = c.Err()
	}
	if err == nil {
		err = wire.Decode(c.groups, c.script, c.reply(), c.afterASK)
	}
	if len(c.groups) > 1 && IsErrorReply(err) {
		err = wire.ErrRetrySingle
	}
	for i := 0; err != nil && i < len(c.groups); i++ {
		c.groups[i].Err = err
	}
}

// reply returns the integers in the reply, or nil if there is none.
func (c *command) reply() []int64 {
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if c.single[0] = cmd.Val(); c.single[0] >= 0 {
			return c.single[:]
		}
	case *redis.IntSliceCmd:
		return cmd.Val()
	}
	return nil
}

// notSent sets a pipeline's error on a command that has neither an error nor a reply: a hook of the
// client may have dropped the pipeline.
func (c *command) notSent(err error) {
	if c.Err() == nil && c.reply() == nil {
		c.SetErr(err)
	}
}
