package ginlimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// command is what a client sends for one errand, or for several at once. go-redis does not send it again, so
// that no charge is made twice: a reply that does not come in time may be late, not lost. It follows a
// redirection all the same.
type command struct {
	redis.Cmder // *redis.IntCmd for one bucket, *redis.IntSliceCmd for several
	args        []any
	errands     []*errand
}

// NoRetry implements [redis.Cmder].
func (*command) NoRetry() bool { return true }

// keyName is a key in Redis, kept for its memory.
type keyName []byte

// MarshalBinary implements [encoding.BinaryMarshaler], by which go-redis writes it.
func (k *keyName) MarshalBinary() ([]byte, error) { return *k, nil }

// String implements [fmt.Stringer], by which a cluster client finds its slot.
func (k *keyName) String() string { return string(*k) }

const (
	// groupErrands is how many errands go into one call of the script. A call of more costs each of them no less,
	// and keeps Redis from its other clients for longer.
	groupErrands = 64
	// groupsOpen is how many different limits are looked through for those of an errand.
	groupsOpen = 8
)

// plan makes the commands of errands. Those that take from a single bucket by the same limit become one, if
// they may; but each key goes only once before what is to be done to it alone, in the order in which it was
// asked for.
func (b *batch) plan(errands []*errand, together bool) {
	b.forget()
	for _, e := range errands {
		if together && e.first && e.groups() {
			b.group(e)
		}
	}
	for _, e := range errands {
		if !e.planned {
			b.command(e)
		}
		e.planned = false
	}
}

// groups reports whether the errand may share a command with others.
func (e *errand) groups() bool { return e.op == opDecide && e.charges > 0 && len(e.buckets) == 1 }

// group adds the errand to a command of its limit, or to a new one.
func (b *batch) group(e *errand) {
	open := b.commands[max(0, len(b.commands)-groupsOpen):]
	for _, c := range open {
		first := c.errands[0]
		if len(c.errands) < groupErrands && first.n == e.n && sameLimits(first.buckets, e.buckets) {
			c.errands = append(c.errands, e)
			e.planned = true
			return
		}
	}
	b.command(e)
	e.planned = true
}

// command adds a command of one errand.
func (b *batch) command(e *errand) {
	var c *command
	if n := len(b.spareCommands); n > 0 {
		c, b.spareCommands = b.spareCommands[n-1], b.spareCommands[:n-1]
	} else {
		c = new(command)
	}
	c.errands = append(c.errands, e)
	b.commands = append(b.commands, c)
}

// forget makes all commands spare.
func (b *batch) forget() {
	for _, c := range b.commands {
		c.Cmder = nil
		clear(c.args)
		clear(c.errands)
		c.args, c.errands = c.args[:0], c.errands[:0]
	}
	b.spareCommands = append(b.spareCommands, b.commands...)
	clear(b.commands)
	b.commands = b.commands[:0]
}

// How the script is called.
var (
	bySHA    = [...]any{"evalsha", script.Hash()}
	bySource = [...]any{"eval", scriptSource}
)

// prepare writes the command: the script called so.
func (c *command) prepare(ctx context.Context, call [2]any) {
	e := c.errands[0]
	if len(c.errands) > 1 {
		c.args = c.each(append(c.args[:0], call[0], call[1], len(c.errands)))
	} else {
		c.args = e.alone(append(c.args[:0], call[0], call[1], len(e.buckets)))
	}
	if len(c.errands) == 1 && len(e.buckets) == 1 {
		// A value that is no answer until there is one: a hook of the client may keep a pipeline from
		// Redis without an error in its commands.
		cmd := redis.NewIntCmd(ctx, c.args...)
		cmd.SetVal(-1)
		c.Cmder = cmd
	} else {
		c.Cmder = redis.NewIntSliceCmd(ctx, c.args...)
	}
	c.SetStepCount(1) // known, or a cluster client asks for it with COMMAND
}

// alone appends the keys of the errand's buckets and what is to be done to each.
func (e *errand) alone(args []any) []any {
	for i := range e.names {
		args = append(args, &e.names[i])
	}
	if e.op == opDecide {
		args = append(args, e.charges)
	} else {
		args = append(args, 0)
	}
	for i := range e.buckets {
		if b := &e.buckets[i]; e.op == opBlock {
			args = append(args, b.drain, e.ask.levels[i], b.capacity)
		} else {
			args = b.appendArgs(args, e.charges, e.n)
		}
	}
	switch e.op {
	case opBlock:
		args = append(args, "block")
	case opReset:
		args = append(args, "reset")
	}
	return args
}

// appendArgs appends a bucket as script.lua takes it for charges of n tokens.
func (b *bucket) appendArgs(args []any, charges, n int64) []any {
	if n == 1 || charges <= 0 {
		return append(args, b.args[:]...)
	}
	return append(args, b.drain, b.charge(n), b.capacity)
}

// each appends the keys of all errands, their limit and how often each is to be charged.
func (c *command) each(args []any) []any {
	once := true
	for _, e := range c.errands {
		args = append(args, &e.names[0])
		once = once && e.charges == 1
	}
	e := c.errands[0]
	args = e.buckets[0].appendArgs(append(args, "each"), e.charges, e.n)
	if !once {
		for _, e := range c.errands {
			args = append(args, e.charges)
		}
	}
	return args
}

// errAskAlone says that nothing was done for an errand since it was not asked for alone.
var errAskAlone = errors.New("to be asked for alone")

// answer reads the reply of script.lua into the errands: one integer per bucket, not in a list if there is
// one only.
func (c *command) answer() {
	levels, err := c.reply()
	if len(c.errands) > 1 && c.Err() != nil && isRefusal(c.Err()) {
		err = errAskAlone
	}
	for i, e := range c.errands {
		switch {
		case err != nil:
			e.err = err
		case len(c.errands) > 1 && levels[i] == -1:
			e.err = errAskAlone
		case len(c.errands) > 1:
			e.err = e.found(levels[i : i+1])
		default:
			e.err = e.found(levels)
		}
	}
}

// reply returns the levels in the reply, of which there are as many as there are buckets.
func (c *command) reply() ([]int64, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	want := len(c.errands)
	if want == 1 {
		want = len(c.errands[0].buckets)
	}
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if cmd.Val() < 0 {
			return nil, fmt.Errorf("the reply is %d", cmd.Val())
		}
		return append(c.errands[0].levels[:0], cmd.Val()), nil
	case *redis.IntSliceCmd:
		if len(cmd.Val()) == want {
			return cmd.Val(), nil
		}
		return nil, fmt.Errorf("the script replies %d levels for %d buckets", len(cmd.Val()), want)
	}
	return nil, fmt.Errorf("the command is a %T", c.Cmder)
}

// notSent gives the command the error of a pipeline, if it has neither an error nor a value: a hook of the
// client may keep the pipeline from Redis.
func (c *command) notSent(err error) {
	if c.Err() != nil {
		return
	}
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if cmd.Val() < 0 {
			c.SetErr(err)
		}
	case *redis.IntSliceCmd:
		if cmd.Val() == nil {
			c.SetErr(err)
		}
	}
}

// found keeps the levels of the errand's buckets.
func (e *errand) found(levels []int64) error {
	for _, level := range levels {
		if level < 0 || level > maxUnits {
			return fmt.Errorf("the script replies a level of %d", level)
		}
	}
	e.levels = append(e.levels[:0], levels...)
	return nil
}
