package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// reportTimeout is the least time allowed for a report of slots.
const reportTimeout = 900 * time.Millisecond

// Report reports to Redis which slots this process holds, and returns which updates arrived. It
// skips servers whose circuit breaker is open.
func (s *Store) Report(ctx context.Context, updates []inflight.Update) (reported []bool) {
	ctx, cancel := context.WithTimeout(ctx, max(reportTimeout, s.Timeout))
	defer cancel()
	reported = make([]bool, len(updates))
	refused, alone, redirected := s.report(ctx, s.reports(updates), followNone, reported)
	_, _, more := s.report(ctx, alone, followNone, reported)
	if refused && slices.ContainsFunc(alone, func(c *command) bool { return reported[c.places[0]] }) {
		s.Separate() // refused together, accepted alone
	}
	s.report(ctx, append(redirected, more...), followOne, reported) // apart, as their servers may not answer
	return reported
}

// reports returns the commands that report updates, each of keys of one server.
func (s *Store) reports(updates []inflight.Update) (commands []*command) {
	last, open := map[*dispatch.Dispatcher]*command{}, map[*dispatch.Dispatcher]bool{}
	for i := range updates {
		d := s.nodes.dispatcher(wire.SlotsName(s.prefix, updates[i].Key))
		c, known := last[d]
		if !known {
			open[d] = d.Stats().Open
		}
		if open[d] {
			last[d] = nil
			continue
		}
		crossSlot := s.nodes.refresh != nil && d != s.nodes.unrouted && s.mayCoalesce()
		if c == nil || len(c.updates) == maxKeys || !crossSlot && !s.Together() {
			c = &command{script: wire.Report}
			last[d], commands = c, append(commands, c)
		}
		c.updates, c.places = append(c.updates, updates[i]), append(c.places, i)
		c.crossSlot = crossSlot && len(c.updates) > 1
	}
	return commands
}

// report sends reports and notes which updates arrived. It returns a command for each update of those that a node
// refuses as it may not have all keys, whether one was refused for another reason, and the commands that a cluster
// redirects. A command's redirection number last ends it.
func (s *Store) report(ctx context.Context, commands []*command, last int32, reported []bool) (refused bool,
	alone, redirected []*command) {
	if len(commands) == 0 {
		return false, nil, nil
	}
	_, err := goroutine.Bounded(ctx, goroutine.EndGrace, func() (struct{}, error) {
		s.exec(ctx, commands, true, last)
		return struct{}{}, nil
	})
	if err != nil {
		return false, nil, nil // the commands may still be written to
	}
	for _, c := range commands {
		s.nodes.noteStale(ctx, c.slots(s), c.Err())
		reply, err := c.reply(), c.Err()
		arrived := make([]bool, len(c.updates))
		moved := last == followNone && s.nodes.refresh != nil && isRedirection(err)
		switch {
		case err == nil && reply != nil:
			if wire.DecodeReport(arrived, reply); c.afterASK {
				clear(arrived[1:])
			}
		case moved && !c.crossSlot:
			redirected = append(redirected, c)
		case err == nil || !IsCommandError(err):
			continue
		case c.crossSlot:
			refused = refused || RefusesKeys(err) || redis.HasErrorPrefix(err, "NOPERM")
		default:
			s.logErrorReply(err)
		}
		for i, place := range c.places {
			if reported[place] = arrived[i]; !arrived[i] && c.crossSlot {
				alone = append(alone, &command{script: wire.Report, updates: c.updates[i : i+1], places: c.places[i : i+1]})
			}
		}
	}
	return refused, alone, redirected
}

// slots returns the name of the first slots of a report.
func (c *command) slots(s *Store) *dispatch.Name { return wire.SlotsName(s.prefix, c.updates[0].Key) }
