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
	each := 1 // with several servers, keys may be on different ones
	if s.Together() {
		each = maxKeys
	}
	var commands []*command
	reported = make([]bool, len(updates))
	for from := 0; from < len(updates); from += each {
		to := min(from+each, len(updates))
		c := &command{updates: updates[from:to], reported: reported[from:to]}
		if !s.nodes.dispatcher(c.slots(s)).Stats().Open {
			commands = append(commands, c)
		}
	}
	if redirected := s.report(ctx, commands, followNone); redirected != nil {
		s.report(ctx, redirected, followOne)
	}
	return reported
}

// report sends reports, and returns those that a cluster redirects. A command's redirection number most
// ends it.
func (s *Store) report(ctx context.Context, commands []*command, most int32) (redirected []*command) {
	_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (struct{}, error) {
		s.call(ctx, commands, most)
		return struct{}{}, nil
	})
	if err != nil {
		return nil // the commands may still be written to
	}
	for _, c := range commands {
		s.nodes.noteStale(ctx, c.slots(s), c.Err())
		switch reply, err := c.reply(), c.Err(); {
		case err == nil && reply != nil:
			wire.DecodeReport(c.reported, reply)
		case most == followNone && s.nodes.refresh != nil && isRedirection(err):
			redirected = append(redirected, c)
		case err != nil && IsCommandError(err):
			s.logErrorReply(err)
		}
	}
	return redirected
}

// slots returns the name of the first slots of a report.
func (c *command) slots(s *Store) *dispatch.Name { return wire.SlotsName(s.prefix, c.updates[0].Key) }
