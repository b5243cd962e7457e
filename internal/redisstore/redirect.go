package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// A cluster client follows a redirection within the call that was redirected. All other commands of
// a pipeline wait for that, and go-redis pauses for 8 ms or more first. The other server may be late
// or redirect the command back. None of that is the fault of the server that was asked.
//
// So a batch for a server ends with that server's answers, and a redirected call is sent again
// apart from the server's other calls. There, one redirection is followed.
const (
	followNone = 1 // the first redirection ends a command
	followOne  = 2 // the second does
)

// isRedirection reports whether a cluster client answers an error by asking another server.
func isRedirection(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsReadOnlyError(err)
}

// redirections is the context of commands of one call of a cluster client. When all are answered and
// one of them was redirected too often, it ends, so that the client does not follow that.
type redirections struct {
	context.Context
	last    int32 // the redirection of a command that ends it
	waiting atomic.Int32
	tooMany atomic.Bool
	ended   atomic.Bool
}

// clusterCommand is a command that a cluster client sends, and may redirect.
type clusterCommand struct {
	*command
	call       *redirections
	redirected int32 // how often
	answered   bool  // and not to be sent elsewhere
}

// execOnCluster sends commands. Their redirection number last ends them.
func (s *Store) execOnCluster(ctx context.Context, commands []*command, last int32) {
	r, all := &redirections{Context: ctx, last: last}, make([]*clusterCommand, len(commands))
	r.waiting.Store(int32(len(commands)))
	for i, c := range commands {
		all[i] = &clusterCommand{command: c, call: r}
	}
	if len(all) == 1 {
		_ = s.sender.Process(r, all[0])
	} else {
		execAll(r, s.sender, all)
	}
}

// SetErr implements [redis.Cmder]. The client calls it before it follows a redirection. After ASK,
// the command keeps only its first key. The importing node may also import the hash slots of the
// other keys, and would create keys there that have not arrived yet.
func (c *clusterCommand) SetErr(err error) {
	if !c.call.note(c, err) {
		return
	}
	if c.crossSlot && redis.HasErrorPrefix(err, "ASK") {
		c.afterASK = true
	}
	c.Cmder.SetErr(err)
}

// Args implements [redis.Cmder].
func (c *clusterCommand) Args() []any {
	if c.afterASK {
		return c.args[:c.firstArgs]
	}
	return c.Cmder.Args()
}

var closedChannel = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done implements [context.Context]. The channel is another one once the context has ended by itself:
// the client asks for it again before it waits.
func (r *redirections) Done() <-chan struct{} {
	if r.ended.Load() {
		return closedChannel
	}
	return r.Context.Done()
}

// Err implements [context.Context].
func (r *redirections) Err() error {
	if r.ended.Load() {
		return context.Canceled
	}
	return r.Context.Err()
}

// AfterFunc spares contexts that are derived from this one a goroutine.
func (r *redirections) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(r.Context, f) }

// note notes an error of a command, or its answer, and reports whether it is one of the server: after
// the end the client reports that end.
func (r *redirections) note(c *clusterCommand, err error) bool {
	if r.ended.Load() && errors.Is(err, context.Canceled) {
		return false
	}
	if isRedirection(err) {
		if c.redirected++; c.redirected < r.last {
			return true
		}
		r.tooMany.Store(true)
	}
	if !c.answered {
		c.answered = true
		if r.waiting.Add(-1) == 0 && r.tooMany.Load() {
			r.ended.Store(true)
		}
	}
	return true
}

// do is [Store.Do] for several servers.
func (n *nodes) do(ctx context.Context, c *dispatch.Call) error {
	start := time.Now()
	for {
		d := n.dispatcher(&c.Names[0])
		switch err := d.Do(ctx, c); {
		case err == dispatch.ErrRetired:
		case err == nil || d == n.unrouted || n.refresh == nil || c.Abandoned() || !isRedirection(err):
			return err
		default:
			return n.follow(ctx, c, start.Add(n.store.Timeout))
		}
	}
}

// follow sends a call again that was redirected, in what is left of its time.
func (n *nodes) follow(ctx context.Context, c *dispatch.Call, end time.Time) error {
	within, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	return n.unrouted.DoWithin(ctx, within, c)
}

// doAll has a server answer some of the calls, which began at start, and sets their errors.
func (n *nodes) doAll(ctx context.Context, d *dispatch.Dispatcher, calls []*dispatch.Call, of []int, errs []error,
	start time.Time) {
	some := make([]*dispatch.Call, len(of))
	for i, at := range of {
		some[i] = calls[at]
	}
	found := d.DoAll(ctx, some)
	if found[0] == dispatch.ErrRetired { // of all: nothing was sent, and what DoAll redirects it follows
		found, d = n.store.DoAll(ctx, some), n.unrouted
	}
	for i, err := range found {
		if c := some[i]; n.refresh != nil && d != n.unrouted && !c.Abandoned() && err != nil && isRedirection(err) {
			err = n.follow(ctx, c, start.Add(n.store.Timeout))
		}
		errs[of[i]] = err
	}
}
