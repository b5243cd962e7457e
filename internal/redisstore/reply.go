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
	counted, more := guarded(c.calls[0].Buckets)
	size := 5 // integers that a script replies for a limit's bucket
	if of := scriptOf(c.calls[0].Buckets) % Guarded; of == int(bucket.Token) {
		size = 1
	}
	if got := c.length(); got == counted+more && len(c.calls) == 1 {
		size = 1 // by several.lua
	}
	ofCall := size*counted + more
	done := len(c.calls)
	if c.asked {
		done = 1
	}
	reply, err := c.reply(ofCall * done)
	if len(c.calls) > 1 && IsRefusal(err) {
		err = errRetryAlone
	}
	for i, m := range c.calls {
		switch {
		case err != nil:
			m.Err = err
		case i >= done, len(c.calls) > 1 && reply[i*ofCall] == -1:
			m.Err = errRetryAlone
		default:
			m.Err = decodeStates(m, reply[i*ofCall:(i+1)*ofCall], counted, size)
		}
	}
}

// guarded returns how many of the buckets are those of limits, and how many integers guards.lua replies for the others.
func guarded(buckets []bucket.Bucket) (counted, more int) {
	counted = bucket.Counted(buckets)
	for i := range buckets[counted:] {
		if more++; buckets[counted+i].Kind == bucket.Ban {
			more++
		}
	}
	return counted, more
}

// length returns how many integers the reply has.
func (c *command) length() int {
	if cmd, ok := c.Cmder.(*redis.IntSliceCmd); ok {
		return len(cmd.Val())
	}
	return 1
}

// reply returns the integers in the reply, of which there must be so many.
func (c *command) reply(want int) ([]int64, error) {
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
		if len(cmd.Val()) == want {
			return cmd.Val(), nil
		}
		return nil, fmt.Errorf("the script replies %d integers, not %d", len(cmd.Val()), want)
	}
	return nil, errors.New("the command is of another type")
}

// notSent gives the command the error of a pipeline, if it has neither an error nor a value: a hook of the client may
// keep the pipeline from Redis.
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
func decodeStates(m *dispatch.Merged, reply []int64, counted, size int) error {
	for _, n := range reply {
		if n < 0 || n > bucket.MaxUnits {
			return fmt.Errorf("the script replies %d", n)
		}
	}
	m.Found = m.Found[:0]
	for range counted {
		s := bucket.State{Level: reply[0]}
		if size > 1 {
			s.Soon, s.Wait, s.Reset, s.Mark = reply[1], reply[2], reply[3], reply[4]
		}
		m.Found, reply = append(m.Found, s), reply[size:]
	}
	for i := range m.Buckets[counted:] {
		s := bucket.State{Level: reply[0]}
		if m.Buckets[counted+i].Kind == bucket.Ban {
			s.Wait, reply = reply[1], reply[1:]
		}
		m.Found, reply = append(m.Found, s), reply[1:]
	}
	if size == 1 {
		tellCalendars(m)
	}
	return nil
}

// tellCalendars completes the states of calendar periods that are not blocked, of which several.lua tells only the tokens taken.
func tellCalendars(m *dispatch.Merged) {
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
