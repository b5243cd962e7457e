package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// decode reads the reply into the calls.
func (c *command) decode() {
	buckets := c.calls[0].Buckets
	reply, err := c.reply()
	whole := len(reply) > 0 && reply[0] == Whole && scriptOf(buckets)%WithBanOrSlots >= Single
	if whole {
		reply = reply[1:]
	}
	shape := shapeOf(buckets, whole)
	ofCall, done := shape.all+shape.guards, len(c.calls)
	if c.asked {
		done = 1
	}
	if err == nil && len(reply) != ofCall*done {
		err = fmt.Errorf("the script replies %d integers, not %d", len(reply), ofCall*done)
	}
	if len(c.calls) > 1 && IsErrorReply(err) {
		err = errRetryAlone
	}
	for i, m := range c.calls {
		switch {
		case err != nil:
			m.Err = err
		case i >= done, len(c.calls) > 1 && reply[i*ofCall] == -1:
			m.Err = errRetryAlone
		default:
			m.Err = decodeStates(m, reply[i*ofCall:(i+1)*ofCall], &shape)
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

// notSent gives the command the error of a pipeline, if it has neither an error nor a value: a hook
// of the client may keep the pipeline from Redis.
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

// decodeStates keeps what a script has replied about a call's buckets.
func decodeStates(m *dispatch.Group, reply []int64, shape *shape) error {
	for _, n := range reply {
		if n < 0 || n > bucket.MaxUnits {
			return fmt.Errorf("the script replies %d", n)
		}
	}
	m.Found = m.Found[:0]
	for i := range shape.limits {
		s, size := bucket.State{Level: reply[0]}, shape.sizeOf(&shape.limits[i])
		if size > 1 {
			s.Soon, s.Wait, s.Reset, s.Mark = reply[1], reply[2], reply[3], reply[4]
		}
		m.Found, reply = append(m.Found, s), reply[size:]
	}
	for i := range m.Buckets[len(shape.limits):] {
		s := bucket.State{Level: reply[0]}
		if m.Buckets[len(shape.limits)+i].Kind == bucket.Ban {
			s.Wait, reply = reply[1], reply[1:]
		}
		m.Found, reply = append(m.Found, s), reply[1:]
	}
	if shape.window == 1 {
		completeCalendars(m)
	}
	return nil
}

// completeCalendars completes the states of calendar periods that are not blocked, of which the
// script has replied only the tokens taken.
func completeCalendars(m *dispatch.Group) {
	charges, now := int64(-1), time.Now().UnixMilli()
	for i := range m.Buckets {
		b, s := &m.Buckets[i], &m.Found[i]
		if b.Ends == 0 {
			continue
		}
		if charges < 0 {
			charges = m.Charges
			for j := range m.Buckets {
				charges = m.Buckets[j].Fit(m.Found[j].Level, charges, m.Op.N)
			}
		}
		s.Reset = b.Left(now)
		s.Soon = s.Reset
		if s.Level+charges*m.Op.N+m.Op.N > b.Capacity && m.Op.N <= b.Capacity {
			s.Wait = s.Reset
		}
	}
}
