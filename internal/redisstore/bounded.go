package redisstore

import (
	"context"
	"log/slog"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// newBounded returns a copy of a client on the same connections, whose calls end with their
// context, and whose reads and writes each end within the timeout. It has none of the client's
// hooks. A client that is told to set no deadlines on its connections is returned itself: they may
// know none.
//
// The copy's options are its own. go-redis has no other way to have calls on an existing pool end
// with their context.
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

// carriers are what carries a store's commands: the bounded copy of the client of a single server,
// to which the last hook of that client hands them.
type carriers struct {
	rdb   redis.UniversalClient
	copy  *redis.Client // nil if nothing but the client itself carries them
	log   *slog.Logger
	used  atomic.Pointer[usedClient] // nil before the first command
	mu    sync.Mutex                 // guards ended
	ended bool
}

// route is how a client carries a command: its hook hands it to a copy. The zero route is the
// client itself.
type route struct {
	hook *carrier
	copy *redis.Client
}

func (c *carriers) init(rdb redis.UniversalClient, timeout time.Duration, log *slog.Logger) {
	c.rdb, c.log = rdb, log
	if one, ok := rdb.(*redis.Client); ok && one != nil {
		if bounded := newBounded(one, timeout); bounded != one {
			c.copy = bounded
		}
	}
}

// bounded returns how a command is carried now. It adds a hook to the client with the first command
// of all its limiters, and again if the application has added one since.
func (c *carriers) bounded() route {
	used := c.used.Load()
	if used == nil {
		used = c.begin()
	}
	if c.copy == nil {
		return route{}
	}
	return route{used.lastHook(c.rdb.(*redis.Client)), c.copy}
}

// begin counts the limiter as one that uses the client.
func (c *carriers) begin() *usedClient {
	c.mu.Lock()
	used := c.used.Load()
	warn := false
	if used == nil {
		used = useOf(c.rdb)
		if !c.ended {
			warn = used.count(1)
		}
		c.used.Store(used)
	}
	c.mu.Unlock()
	if warn {
		c.log.Warn("ginlimit: 100 limiters use one Redis client; make one limiter and share it")
	}
	return used
}

// end counts the limiter no more.
func (c *carriers) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if used := c.used.Load(); used != nil && !c.ended {
		used.count(-1)
	}
	c.ended = true
}

// maxLimiters is how many open limiters of a client are worth a warning.
const maxLimiters = 100

// usedClient is what the limiters of a client have in common. It does not keep the client alive.
type usedClient struct {
	last atomic.Pointer[carrier] // the last hook; nil if there is none

	mu       sync.Mutex // guards what follows, and is held while a hook is added
	limiters int
	warned   bool
}

// usedClients are those of this process, by weak pointers to the clients. Limiters of a client must
// know of each other though they are made apart, and a client has no room for a note.
var usedClients = struct {
	mu sync.Mutex
	by map[any]*usedClient
}{by: map[any]*usedClient{}}

// useOf returns what is known of a client. What wraps a client is one of its own each time.
func useOf(rdb redis.UniversalClient) *usedClient {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return useOfPointer(rdb)
	case *redis.ClusterClient:
		return useOfPointer(rdb)
	case *redis.Ring:
		return useOfPointer(rdb)
	}
	return &usedClient{}
}

func useOfPointer[T any](rdb *T) *usedClient {
	key := any(weak.Make(rdb))
	usedClients.mu.Lock()
	defer usedClients.mu.Unlock()
	used := usedClients.by[key]
	if used == nil {
		used = &usedClient{}
		usedClients.by[key] = used
		runtime.AddCleanup(rdb, func(key any) {
			usedClients.mu.Lock()
			defer usedClients.mu.Unlock()
			delete(usedClients.by, key)
		}, key)
	}
	return used
}

// count adds limiters, and reports whether there are so many that a warning is due, once.
func (u *usedClient) count(n int) (warn bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.limiters += n
	warn = u.limiters >= maxLimiters && !u.warned
	u.warned = u.warned || warn
	return warn
}

// lastHook returns the hook that is the client's last. It adds one if there is none.
func (u *usedClient) lastHook(rdb *redis.Client) *carrier {
	if last := u.last.Load(); last != nil && !last.passed.Load() {
		return last
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	last := u.last.Load()
	if last == nil || last.passed.Load() {
		last = &carrier{}
		rdb.AddHook(last)
		u.last.Store(last)
	}
	return last
}

// carrier is the last hook of a client, after those of the application: it hands the commands that
// name it to the copy that they name.
type carrier struct {
	// ends are the functions that follow the last hook of a client, for commands, pipelines and
	// transactions, by their code. AddHook names them before anyone else sees the carrier.
	ends   []uintptr
	passed atomic.Bool // the application has added a hook since
}

// goRedis begins the names of go-redis' functions, but for those of its modules with hooks.
const goRedis = "github.com/redis/go-redis/v9."

// maxEnds is how many functions AddHook has a hook wrap, without the dialer.
const maxEnds = 3

// follow notes what follows the hook: a function of go-redis, or a hook that was added since. The
// client calls it whenever a hook is added, and with the same functions for each connection and
// transaction; for automatic pipelines with others of its own.
func (h *carrier) follow(next any) {
	code := reflect.ValueOf(next).Pointer()
	switch {
	case len(h.ends) < maxEnds:
		h.ends = append(h.ends, code)
	case !slices.Contains(h.ends, code) && !strings.HasPrefix(runtime.FuncForPC(code).Name(), goRedis):
		h.passed.Store(true)
	}
}

// DialHook implements [redis.Hook].
func (*carrier) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h *carrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	h.follow(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if bounded := h.copyOf(cmd); bounded != nil {
			return bounded.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h *carrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	h.follow(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var bounded *redis.Client
		if len(cmds) > 0 {
			bounded = h.copyOf(cmds[0])
		}
		if bounded == nil {
			return next(ctx, cmds)
		}
		pipe := bounded.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}

// copyOf returns what carries a command after this hook, or nil if that is nothing but the client.
func (h *carrier) copyOf(cmd redis.Cmder) *redis.Client {
	if c, ok := cmd.(*command); ok && c.bounded.hook == h {
		return c.bounded.copy
	}
	return nil
}

// endsWithContext reports whether every call of a client with such options ends when its context
// does. Hooks cannot be seen. A negative timeout sets no deadline on the connection, and go-redis
// runs the other functions in the goroutine of the call.
func endsWithContext(o *redis.Options) bool {
	return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 && o.OnConnect == nil && o.Limiter == nil &&
		o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil &&
		(dialsItself(o) || isMarked(o.Dialer))
}

// Dialer connects to a server, as the Dialer of [redis.Options] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// KeepsDeadlines marks a Dialer that ends with its context and whose connections keep deadlines.
// Callers may then send their calls themselves. Tests mark the Dialers of servers in their process.
//
//go:noinline
func KeepsDeadlines(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return dial(ctx, network, addr) }
}

// isMarked reports whether [KeepsDeadlines] has marked a Dialer.
func isMarked(dial Dialer) bool {
	return reflect.ValueOf(dial).Pointer() == reflect.ValueOf(KeepsDeadlines(nil)).Pointer()
}

// dialsItself reports whether a client with such options connects to its address by go-redis' own
// Dialer.
func dialsItself(o *redis.Options) bool {
	dialer := runtime.FuncForPC(reflect.ValueOf(o.Dialer).Pointer()).Name()
	return strings.HasPrefix(dialer, goRedis) && strings.HasSuffix(dialer, ".NewDialer.func1")
}
