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
	redis.Cmder // *redis.IntCmd for one token bucket, else *redis.IntSliceCmd
	args        []any
	errands     []*errand
	single      [1]int64 // the reply of an IntCmd
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

// prepare writes the command: the script called by its SHA, or else with its source.
func (c *command) prepare(ctx context.Context, bySHA bool) {
	e := c.errands[0]
	algorithm := e.buckets[0].algorithm
	call := scripts[algorithm].bySource
	if bySHA {
		call = scripts[algorithm].bySHA
	}
	if len(c.errands) > 1 {
		c.args = c.each(append(c.args[:0], call[0], call[1], len(c.errands)))
	} else {
		c.args = e.alone(append(c.args[:0], call[0], call[1], len(e.buckets)))
	}
	if len(c.errands) == 1 && len(e.buckets) == 1 && algorithm == TokenBucket {
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
	if e.buckets[0].algorithm != TokenBucket {
		return e.appendWindows(args)
	}
	if e.op == opDecide {
		args = append(args, e.charges)
	} else {
		args = append(args, 0)
	}
	for i := range e.buckets {
		if b := &e.buckets[i]; e.op == opBlock {
			args = append(args, b.drain, e.ask.states[i].level, b.capacity)
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
	if e.buckets[0].algorithm != TokenBucket {
		return c.appendEachWindow(args)
	}
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

// answer reads the reply into the errands.
func (c *command) answer() {
	reply, err := c.reply()
	size := c.errands[0].buckets[0].replySize()
	if len(c.errands) > 1 && c.Err() != nil && isRefusal(c.Err()) {
		err = errAskAlone
	}
	for i, e := range c.errands {
		switch {
		case err != nil:
			e.err = err
		case len(c.errands) > 1 && reply[i*size] == -1:
			e.err = errAskAlone
		case len(c.errands) > 1:
			e.err = e.found(reply[i*size : (i+1)*size])
		default:
			e.err = e.found(reply)
		}
	}
}

// replySize returns how many integers a script replies for a bucket. script.lua replies a single one not in a list.
func (b *bucket) replySize() int {
	if b.algorithm == TokenBucket {
		return 1
	}
	return windowReply
}

// reply returns the integers in the reply, of which there are as many as the buckets need.
func (c *command) reply() ([]int64, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	want := len(c.errands)
	if want == 1 {
		want = len(c.errands[0].buckets)
	}
	want *= c.errands[0].buckets[0].replySize()
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if cmd.Val() < 0 {
			return nil, fmt.Errorf("the reply is %d", cmd.Val())
		}
		c.single[0] = cmd.Val()
		return c.single[:], nil
	case *redis.IntSliceCmd:
		if len(cmd.Val()) == want {
			return cmd.Val(), nil
		}
		return nil, fmt.Errorf("the script replies %d integers, not %d", len(cmd.Val()), want)
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

// found keeps what a script has replied about the errand's buckets.
func (e *errand) found(reply []int64) error {
	for _, n := range reply {
		if n < 0 || n > maxUnits {
			return fmt.Errorf("the script replies %d", n)
		}
	}
	e.states = e.states[:0]
	for size := e.buckets[0].replySize(); len(reply) > 0; reply = reply[size:] {
		s := state{level: reply[0]}
		if size == windowReply {
			s.soon, s.wait, s.reset = reply[1], reply[2], reply[3]
		}
		e.states = append(e.states, s)
	}
	return nil
}
