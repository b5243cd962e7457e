package redisstore

import (
	"context"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// newBounded returns a copy of a client on the same connections, whose calls end with their context, and whose reads and
// writes each end within the timeout. It has none of the client's hooks. A client that is told to set no deadlines on its
// connections is returned itself: they may know none.
//
// The copy's options are its own. go-redis has no other way to have calls on an existing pool end with their context.
func newBounded(rdb *redis.Client, timeout time.Duration) *redis.Client {
	opts := rdb.Options()
	if opts.ReadTimeout < 0 || opts.WriteTimeout < 0 {
		return rdb
	}
	for _, own := range []time.Duration{opts.ReadTimeout, opts.WriteTimeout} {
		if own > 0 {
			timeout = min(timeout, own)
		}
	}
	bounded := rdb.WithTimeout(timeout)
	if bounded.Options() != opts {
		bounded.Options().ContextTimeoutEnabled = true
	}
	return bounded
}

// carriers are what carries a store's commands: the bounded copy of the client of a single server, as its last hook.
type carriers struct {
	rdb     *redis.Client // nil if nothing but the client itself carries them
	timeout time.Duration
	last    atomic.Pointer[carrier]
	mu      sync.Mutex // is held while another one is installed
}

func (c *carriers) init(rdb redis.UniversalClient, timeout time.Duration) {
	one, ok := rdb.(*redis.Client)
	if ok && one != nil && newBounded(one, timeout) != one {
		c.rdb, c.timeout = one, timeout
	}
}

// bounded returns the copy that carries a command now, or nil. It adds a hook to the client with the first command, and again if
// the application has added one since.
func (c *carriers) bounded() *redis.Client {
	if c.rdb == nil {
		return nil
	}
	if last := c.last.Load(); last != nil && !last.passed.Load() {
		return last.bounded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.last.Load(); last != nil && !last.passed.Load() {
		return last.bounded
	}
	next := &carrier{bounded: newBounded(c.rdb, c.timeout)}
	installing.Add(1)
	c.rdb.AddHook(next)
	installing.Add(-1)
	c.last.Store(next)
	return next.bounded
}

// installing is how many carriers are being added to clients. Those of other stores need not come after these.
var installing atomic.Int32

// carrier is the last hook of a client, after those of the application: it hands the commands that name the bounded copy to
// that.
type carrier struct {
	bounded *redis.Client
	passed  atomic.Bool // the application has added a hook since
}

// DialHook implements [redis.Hook].
func (*carrier) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook]. The client calls it whenever a hook is added.
func (h *carrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if installing.Load() == 0 {
		h.passed.Store(true)
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.carries(cmd) {
			return h.bounded.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h *carrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) == 0 || !h.carries(cmds[0]) {
			return next(ctx, cmds)
		}
		pipe := h.bounded.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}

func (h *carrier) carries(cmd redis.Cmder) bool {
	c, ok := cmd.(*command)
	return ok && c.bounded == h.bounded
}

// endsWithContext reports whether every call of a client with such options ends when its context does, but for its hooks,
// which nobody can see. A negative timeout sets no deadline on the connection, a connection of the application's own Dialer
// may know none unless that Dialer is trusted, and go-redis runs the other functions in the goroutine of the call.
func endsWithContext(o *redis.Options, trustDialer bool) bool {
	dialer := runtime.FuncForPC(reflect.ValueOf(o.Dialer).Pointer()).Name()
	return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 && o.OnConnect == nil && o.Limiter == nil &&
		o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil &&
		(trustDialer || strings.HasPrefix(dialer, "github.com/redis/go-redis/v9.") && strings.HasSuffix(dialer, ".NewDialer.func1"))
}
