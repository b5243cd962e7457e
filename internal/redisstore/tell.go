package redisstore

import (
	"context"
	"errors"
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

// Tell tells Redis which slots this process holds. The error says that a server did not answer. One that refuses, as for a key of
// another type, knows of no slots there.
func (s *Store) Tell(ctx context.Context, updates []inflight.Update) error {
	ctx, cancel := context.WithTimeout(ctx, max(tellTimeout, s.nodes.timeout))
	defer cancel()
	each := 1 // of several servers, each key may be on another one
	if s.Together() {
		each = len(updates)
	}
	var commands []*command
	for part := range slices.Chunk(updates, each) {
		commands = append(commands, s.tell(part))
	}
	_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (struct{}, error) { return struct{}{}, s.tellAll(ctx, commands) })
	return err
}

// tellAll has commands done: by the script's SHA, and with its source where Redis does not have it.
func (s *Store) tellAll(ctx context.Context, commands []*command) error {
	x := &exchange{store: s}
	for _, bySHA := range []bool{true, false} {
		for _, c := range commands {
			c.encodeTell(ctx, s, bySHA)
		}
		x.exec(ctx, commands)
		var missing []*command
		for _, c := range commands {
			switch err := c.Err(); {
			case err != nil && bySHA && redis.HasErrorPrefix(err, "NOSCRIPT"):
				missing = append(missing, c)
			case err != nil && !IsReply(err):
				return err
			case err == nil && c.Cmder.(*redis.IntCmd).Val() < 0:
				return errors.New("the command was not sent")
			}
		}
		if commands = missing; commands == nil {
			break
		}
	}
	return nil
}

// encodeTell writes the command as tell.lua documents it.
func (c *command) encodeTell(ctx context.Context, s *Store, bySHA bool) {
	c.bounded = s.carriers.bounded()
	call := s.scripts[Tell].bySource
	if bySHA {
		call = s.scripts[Tell].bySHA
	}
	c.args = append(append(c.args[:0], call[0], call[1]), c.told...)
	cmd := redis.NewIntCmd(ctx, c.args...)
	cmd.SetVal(-1) // no answer yet: a hook of the client may keep a pipeline from Redis
	c.Cmder = cmd
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
