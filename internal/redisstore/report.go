package redisstore

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
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
	commands := s.reports(updates)
	arrived, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() ([]bool, error) {
		arrived := make([]bool, len(updates))
		s.call(ctx, commands)
		refused, alone := s.readReports(ctx, commands, arrived)
		s.call(ctx, alone)
		if _, left := s.readReports(ctx, alone, arrived); refused && len(left) < len(alone) {
			s.Separate() // refused together, accepted alone
		}
		return arrived, nil
	})
	if err != nil { // it may still be written to
		return make([]bool, len(updates))
	}
	return arrived
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
			c = new(command)
			last[d], commands = c, append(commands, c)
		}
		c.updates, c.places = append(c.updates, updates[i]), append(c.places, i)
		c.crossSlot = crossSlot && len(c.updates) > 1
	}
	return commands
}

// readReports notes which updates arrived. It returns a command for each of those whose keys a cluster's node may not
// have, and whether it refused a command for several keys.
func (s *Store) readReports(ctx context.Context, commands []*command, arrived []bool) (refused bool, alone []*command) {
	for _, c := range commands {
		s.nodes.noteStale(ctx, c.slots(s), c.Err())
		reply, err := c.reply(), c.Err()
		reported := make([]bool, len(c.updates))
		switch {
		case err == nil && reply != nil:
			if wire.DecodeReport(reported, reply); c.afterASK {
				clear(reported[1:])
			}
		case err == nil || !IsCommandError(err):
			continue
		case c.crossSlot:
			refused = true
		default:
			s.logErrorReply(err)
		}
		for i, place := range c.places {
			if arrived[place] = reported[i]; !reported[i] && c.crossSlot {
				alone = append(alone, &command{updates: c.updates[i : i+1], places: c.places[i : i+1]})
			}
		}
	}
	return refused, alone
}

// slots returns the name of the first slots of a report.
func (c *command) slots(s *Store) *dispatch.Name { return wire.SlotsName(s.prefix, c.updates[0].Key) }
