package ginlimit

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// command is a command that go-redis does not send again, so that no charge is made twice: a reply that
// does not come in time may be late, not lost. It follows a redirection all the same.
type command struct {
	redis.Cmder // *redis.IntCmd for one bucket, *redis.IntSliceCmd for several
	args        []any
}

// NoRetry implements [redis.Cmder].
func (*command) NoRetry() bool { return true }

// How the script is called.
var (
	bySHA    = [...]any{"evalsha", script.Hash()}
	bySource = [...]any{"eval", scriptSource}
)

// prepare makes the command of an errand: the script called so, or DEL.
func (c *command) prepare(ctx context.Context, e *errand, call [2]any) {
	c.args = c.args[:0]
	if e.op == opReset {
		c.args = append(c.args, "del")
	} else {
		c.args = append(c.args, call[0], call[1], len(e.buckets))
	}
	defer func() { c.SetStepCount(1) }() // known, or a cluster client asks for it with COMMAND
	for i := range e.names {
		if e.op == opReset {
			c.args = append(c.args, e.names[i])
		} else {
			c.args = append(c.args, &e.names[i])
		}
	}
	switch e.op {
	case opReset:
		c.Cmder = unanswered(ctx, c.args)
		return
	case opBlock:
		c.args = append(c.args, 0)
	default:
		c.args = append(c.args, e.charges)
	}
	for i := range e.buckets {
		b := &e.buckets[i]
		switch {
		case e.op == opBlock:
			c.args = append(c.args, b.drain, e.ask.levels[i], b.capacity)
		case e.n == 1 || e.charges <= 0:
			c.args = append(c.args, b.args[:]...)
		default:
			c.args = append(c.args, b.drain, b.charge(e.n), b.capacity)
		}
	}
	if e.op == opBlock {
		c.args = append(c.args, "block")
	}
	if len(e.buckets) == 1 {
		c.Cmder = unanswered(ctx, c.args)
	} else {
		c.Cmder = redis.NewIntSliceCmd(ctx, c.args...)
	}
}

// unanswered returns a command whose value is no answer until there is one: a hook of the client may
// keep a pipeline from Redis without an error in its commands.
func unanswered(ctx context.Context, args []any) *redis.IntCmd {
	cmd := redis.NewIntCmd(ctx, args...)
	cmd.SetVal(-1)
	return cmd
}

// levels reads the reply of script.lua into the errand: one integer per bucket, not in a list if there
// is one only.
func (c *command) levels(e *errand) error {
	if err := c.Err(); err != nil {
		return err
	}
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if e.op == opReset && cmd.Val() >= 0 {
			return nil // how many keys there were
		}
		e.levels[0] = cmd.Val()
	case *redis.IntSliceCmd:
		if len(cmd.Val()) != len(e.levels) {
			return fmt.Errorf("the script replies %d levels for %d buckets", len(cmd.Val()), len(e.levels))
		}
		copy(e.levels, cmd.Val())
	}
	for _, level := range e.levels {
		if level < 0 || level > maxUnits {
			return fmt.Errorf("the script replies a level of %d", level)
		}
	}
	return nil
}
