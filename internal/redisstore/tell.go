package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
)

// tellTimeout is how long Redis may take to be told of slots, or a timeout where that is longer.
const tellTimeout = 900 * time.Millisecond

// slotsID ends the keys of slots.
var slotsID = func() string { b := bucket.NewSlots(1); return b.ID }()

// Tell tells Redis which slots this process holds, and returns of which updates it could.
// A server whose circuit breaker is open is not asked.
func (s *Store) Tell(ctx context.Context, updates []inflight.Update) (told []bool) {
	ctx, cancel := context.WithTimeout(ctx, max(tellTimeout, s.nodes.timeout))
	defer cancel()
	each := 1 // of several servers, each key may be on another one
	if s.Together() {
		each = len(updates)
	}
	var commands []*command
	told = make([]bool, len(updates))
	for from := 0; from < len(updates); from += each {
		c := s.tell(updates[from : from+each])
		if c.from = from; s.nodes.dispatcher(c.told[1].(*dispatch.Name)).Stats().Open {
			continue
		}
		commands = append(commands, c)
	}
	_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (struct{}, error) {
		s.tellAll(ctx, commands)
		return struct{}{}, nil
	})
	if err != nil {
		return told // the commands may still be written to
	}
	for _, c := range commands {
		switch err := c.Err(); {
		case err == nil && c.Cmder.(*redis.IntSliceCmd).Val() != nil:
			part := told[c.from : c.from+c.told[0].(int)]
			for i := range part {
				part[i] = true
			}
			for _, failed := range c.Cmder.(*redis.IntSliceCmd).Val() {
				if 0 < failed && failed <= int64(len(part)) {
					part[failed-1] = false
				}
			}
		case err != nil && IsReply(err):
			s.logRefusal(err)
		}
	}
	return told
}

// tellAll has commands done: by the script's SHA, and with its source where Redis does not have it.
func (s *Store) tellAll(ctx context.Context, commands []*command) {
	x := &exchange{store: s}
	for _, bySHA := range []bool{true, false} {
		if len(commands) == 0 {
			return
		}
		for _, c := range commands {
			c.encodeTell(ctx, s, bySHA)
		}
		x.exec(ctx, commands)
		commands = slices.DeleteFunc(slices.Clone(commands), func(c *command) bool {
			return c.Err() == nil || !redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
		})
	}
}

// encodeTell writes the command as tell.lua documents it.
func (c *command) encodeTell(ctx context.Context, s *Store, bySHA bool) {
	c.bounded = s.carriers.bounded()
	call := s.scripts[Tell].bySource
	if bySHA {
		call = s.scripts[Tell].bySHA
	}
	c.args = append(append(c.args[:0], call[0], call[1]), c.told...)
	c.Cmder = redis.NewIntSliceCmd(ctx, c.args...) // without a value there is no answer: a hook of the client may keep a pipeline from Redis
	c.SetStepCount(1)
}

// tell returns a command that tells of some keys, to be encoded.
func (s *Store) tell(updates []inflight.Update) *command {
	c := &command{told: make([]any, 0, 4*len(updates)+2)}
	c.told = append(c.told, len(updates))
	for i := range updates {
		name := s.appendName(nil, []byte(updates[i].Key), slotsID)
		c.told = append(c.told, &name)
	}
	c.told = append(c.told, s.process)
	for i := range updates {
		doubt := 0
		if updates[i].Doubt {
			doubt = 1
		}
		c.told = append(c.told, updates[i].Settled, updates[i].Held, doubt)
	}
	return c
}
