package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// decode reads the reply into the groups.
func (c *command) decode() {
	buckets := c.groups[0].Buckets
	reply, err := c.reply()
	whole := len(reply) > 0 && reply[0] == Whole && listsAll(scriptFor(buckets))
	if whole {
		reply = reply[1:]
	}
	shape := newShape(buckets, whole)
	perGroup, done := shape.all+shape.banAndSlots, len(c.groups)
	if isShared(buckets) {
		perGroup = max(1, len(reply)) // see decodeTenants
	}
	if c.afterASK {
		done = 1
	}
	if err == nil && len(reply) != perGroup*done {
		err = fmt.Errorf("the script replies %d integers, not %d", len(reply), perGroup*done)
	}
	if len(c.groups) > 1 && IsErrorReply(err) {
		err = errRetrySingle
	}
	for i, g := range c.groups {
		switch {
		case err != nil:
			g.Err = err
		case i >= done, len(c.groups) > 1 && reply[i*perGroup] == -1:
			g.Err = errRetrySingle
		default:
			g.Err = decodeStates(g, reply[i*perGroup:(i+1)*perGroup], &shape)
		}
	}
}

// reply returns the integers in the reply.
func (c *command) reply() ([]int64, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	switch cmd := c.Cmder.(type) {
	case *redis.IntCmd:
		if cmd.Val() < 0 {
			return nil, fmt.Errorf("the reply is %d", cmd.Val())
		}
		c.single[0] = cmd.Val()
		return c.single[:], nil
	case *redis.IntSliceCmd:
		return cmd.Val(), nil
	}
	return nil, errors.New("the command is of another type")
}

// notSent sets a pipeline's error on a command that has neither an error nor a value: a hook of the
// client may have dropped the pipeline.
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

// decodeStates sets the states of a group's buckets from a reply.
func decodeStates(g *dispatch.Group, reply []int64, shape *shape) error {
	for _, n := range reply {
		if n < 0 || n > bucket.MaxUnits {
			return fmt.Errorf("the script replies %d", n)
		}
	}
	g.Found = g.Found[:0]
	for i := range shape.limits {
		s, size := bucket.State{Level: reply[0]}, shape.size(&shape.limits[i])
		if size > 1 {
			s.Soon, s.Wait, s.Reset, s.Mark = reply[1], reply[2], reply[3], reply[4]
		}
		g.Found, reply = append(g.Found, s), reply[size:]
	}
	if isShared(g.Buckets) {
		if g.Found = append(g.Found, bucket.State{}); g.Op.Verb == bucket.Take && !decodeTenants(g, reply) {
			return fmt.Errorf("the script replies %d integers about tenants", len(reply))
		}
		return nil
	}
	for i := range g.Buckets[len(shape.limits):] {
		s := bucket.State{Level: reply[0]}
		if g.Buckets[len(shape.limits)+i].Kind == bucket.Ban {
			s.Wait, reply = reply[1], reply[1:]
		} else if places := s.Level / placeUnit; places > 0 && g.Op.Waits > 0 {
			s.Level, s.Soon = s.Level-places*placeUnit, places
		}
		g.Found, reply = append(g.Found, s), reply[1:]
	}
	if shape.window == 1 {
		completeCalendars(g)
	}
	return nil
}

// placeUnit times the place of a process among those that wait is added to the slots in use: see
// guards.lua.
const placeUnit = 1 << 21

// completeCalendars completes the states of unblocked calendar periods. The script replies only the
// tokens taken.
func completeCalendars(g *dispatch.Group) {
	charges, now := int64(-1), time.Now().UnixMilli()
	for i := range g.Buckets {
		b, s := &g.Buckets[i], &g.Found[i]
		if b.Ends == 0 {
			continue
		}
		if charges < 0 {
			charges = g.Charges
			for j := range g.Buckets {
				charges = g.Buckets[j].Fits(g.Found[j], charges, g.Op.Tokens(j))
			}
		}
		s.Reset = b.Left(now)
		s.Soon = s.Reset
		if n := g.Op.Tokens(i); s.Level+charges*n+n > b.Capacity && n <= b.Capacity {
			s.Wait = s.Reset
		}
	}
}
