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

// reportTimeout is the least time allowed for a report of slots.
const reportTimeout = 900 * time.Millisecond

// slotsID is the suffix of slots' keys.
var slotsID = func() string { b := bucket.NewSlots(1); return b.ID }()

// Report reports to Redis which slots this process holds, and returns which updates arrived. It
// skips servers whose circuit breaker is open.
func (s *Store) Report(ctx context.Context, updates []inflight.Update) (reported []bool) {
	ctx, cancel := context.WithTimeout(ctx, max(reportTimeout, s.nodes.timeout))
	defer cancel()
	each := 1 // with several servers, keys may be on different ones
	if s.Together() {
		each = maxKeys
	}
	var commands []*command
	reported = make([]bool, len(updates))
	for from := 0; from < len(updates); from += each {
		c := s.report(updates[from:min(from+each, len(updates))])
		if c.from = from; s.nodes.dispatcher(c.reported[1].(*dispatch.Name)).Stats().Open {
			continue
		}
		commands = append(commands, c)
	}
	_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (struct{}, error) {
		s.reportAll(ctx, commands)
		return struct{}{}, nil
	})
	if err != nil {
		return reported // the commands may still be written to
	}
	for _, c := range commands {
		s.nodes.noteStale(ctx, c.reported[1].(*dispatch.Name), c.Err())
		switch err := c.Err(); {
		case err == nil && c.Cmder.(*redis.IntSliceCmd).Val() != nil:
			part := reported[c.from : c.from+c.reported[0].(int)]
			for i := range part {
				part[i] = true
			}
			for _, failed := range c.Cmder.(*redis.IntSliceCmd).Val() {
				if 0 < failed && failed <= int64(len(part)) {
					part[failed-1] = false
				}
			}
		case err != nil && IsCommandError(err):
			s.logErrorReply(err)
		}
	}
	return reported
}

// reportAll sends commands by the script's SHA, and again with its source where Redis lacks it.
func (s *Store) reportAll(ctx context.Context, commands []*command) {
	p := &pipeline{store: s}
	for _, bySHA := range []bool{true, false} {
		if len(commands) == 0 {
			return
		}
		for _, c := range commands {
			c.encodeReport(ctx, s, bySHA)
		}
		p.exec(ctx, commands)
		commands = slices.DeleteFunc(slices.Clone(commands), func(c *command) bool {
			return c.Err() == nil || !redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
		})
	}
}

// encodeReport writes the command as report.lua documents it.
func (c *command) encodeReport(ctx context.Context, s *Store, bySHA bool) {
	c.hook = s.hook
	call := s.scripts[Report].bySource
	if bySHA {
		call = s.scripts[Report].bySHA
	}
	c.args = append(append(c.args[:0], call[0], call[1]), c.reported...)
	// The value stays nil if a hook of the client drops the pipeline.
	c.Cmder = redis.NewIntSliceCmd(ctx, c.args...)
	c.SetStepCount(1)
}

// report returns a command for some updates. encodeReport completes it.
func (s *Store) report(updates []inflight.Update) *command {
	c := &command{reported: make([]any, 0, 4*len(updates)+2)}
	c.reported = append(c.reported, len(updates))
	for i := range updates {
		name := s.appendName(nil, []byte(updates[i].Key), slotsID)
		c.reported = append(c.reported, &name)
	}
	c.reported = append(c.reported, s.process)
	for i := range updates {
		doubt := 0
		if updates[i].Doubt {
			doubt = 1
		}
		c.reported = append(c.reported, updates[i].Ended, updates[i].Held, doubt)
	}
	return c
}
