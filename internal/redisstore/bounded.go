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

// newBounded returns a copy of a client that uses the same connections. The copy's calls end with
// their context, and each read or write ends within the timeout. The copy has none of the client's
// hooks. If the client sets no deadlines on its connections, newBounded returns the client, because
// its connections may not support deadlines.
//
// The copy has its own options. go-redis offers no other way to make calls on an existing pool end
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

// sender sends a store's commands. On a single server, the client's last hook hands them to a
// bounded copy of the client.
type sender struct {
	rdb    redis.UniversalClient
	copy   *redis.Client // nil if the client itself sends commands
	log    *slog.Logger
	used   atomic.Pointer[clientUse] // nil before the first command
	mu     sync.Mutex                // guards closed
	closed bool
}

// route says which hook hands a command to which copy. The zero route is the client itself.
type route struct {
	hook *boundedHook
	copy *redis.Client
}

func (s *sender) init(rdb redis.UniversalClient, timeout time.Duration, log *slog.Logger) {
	s.rdb, s.log = rdb, log
	if one, ok := rdb.(*redis.Client); ok && one != nil {
		if bounded := newBounded(one, timeout); bounded != one {
			s.copy = bounded
		}
	}
}

// route returns the route for a command. It adds a hook to the client with the first command of any
// limiter, and again after the application has added a hook.
func (s *sender) route() route {
	used := s.used.Load()
	if used == nil {
		used = s.register()
	}
	if s.copy == nil {
		return route{}
	}
	return route{used.lastHook(s.rdb.(*redis.Client)), s.copy}
}

// register counts the limiter as a user of the client.
func (s *sender) register() *clientUse {
	s.mu.Lock()
	used := s.used.Load()
	warn := false
	if used == nil {
		used = clientUseFor(s.rdb)
		if !s.closed {
			warn = used.count(1)
		}
		s.used.Store(used)
	}
	s.mu.Unlock()
	if warn {
		s.log.Warn("ginlimit: 100 limiters use one Redis client; make one limiter and share it")
	}
	return used
}

// close stops counting the limiter.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.used.Load(); used != nil && !s.closed {
		used.count(-1)
	}
	s.closed = true
}

// maxLimiters open limiters on one client cause a warning.
const maxLimiters = 100

// clientUse is what the limiters of one client share. It does not keep the client alive.
type clientUse struct {
	last atomic.Pointer[boundedHook] // nil before the first hook

	mu       sync.Mutex // guards the fields below; held while a hook is added
	limiters int
	warned   bool
}

// clientUses holds the process's clients by weak pointer. It is package state because limiters of
// one client are created independently and a client has no field for it.
var clientUses = struct {
	mu sync.Mutex
	by map[any]*clientUse
}{by: map[any]*clientUse{}}

// clientUseFor returns the use of a client. A wrapped client gets a new one each time.
func clientUseFor(rdb redis.UniversalClient) *clientUse {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return pointerUse(rdb)
	case *redis.ClusterClient:
		return pointerUse(rdb)
	case *redis.Ring:
		return pointerUse(rdb)
	}
	return &clientUse{}
}

func pointerUse[T any](rdb *T) *clientUse {
	key := any(weak.Make(rdb))
	clientUses.mu.Lock()
	defer clientUses.mu.Unlock()
	used := clientUses.by[key]
	if used == nil {
		used = &clientUse{}
		clientUses.by[key] = used
		runtime.AddCleanup(rdb, func(key any) {
			clientUses.mu.Lock()
			defer clientUses.mu.Unlock()
			delete(clientUses.by, key)
		}, key)
	}
	return used
}

// count adds n limiters, and reports once that there are too many.
func (u *clientUse) count(n int) (warn bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.limiters += n
	warn = u.limiters >= maxLimiters && !u.warned
	u.warned = u.warned || warn
	return warn
}

// lastHook returns the client's last hook, and adds one if the application's hook is last.
func (u *clientUse) lastHook(rdb *redis.Client) *boundedHook {
	if last := u.last.Load(); last != nil && !last.covered.Load() {
		return last
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	last := u.last.Load()
	if last == nil || last.covered.Load() {
		last = &boundedHook{}
		rdb.AddHook(last)
		u.last.Store(last)
	}
	return last
}

// boundedHook is a client's last hook. It hands commands that name it to their bounded copy, after
// the application's hooks have run.
type boundedHook struct {
	// following holds the code addresses of the functions that follow the last hook, for commands,
	// pipelines and transactions. AddHook passes them before the hook is used.
	following []uintptr
	covered   atomic.Bool // the application has added a hook since
}

// goRedis is the prefix of go-redis' function names. It excludes the modules that contain hooks.
const goRedis = "github.com/redis/go-redis/v9."

// maxFollowing is how many functions AddHook wraps, without the dialer.
const maxFollowing = 3

// noteNext notes what follows the hook: a function of go-redis or a hook added later. The client
// calls it whenever a hook is added. It passes the same functions for each connection and
// transaction, and other functions of go-redis for automatic pipelines.
func (h *boundedHook) noteNext(next any) {
	code := reflect.ValueOf(next).Pointer()
	switch {
	case len(h.following) < maxFollowing:
		h.following = append(h.following, code)
	case !slices.Contains(h.following, code) && !strings.HasPrefix(runtime.FuncForPC(code).Name(), goRedis):
		h.covered.Store(true)
	}
}

// DialHook implements [redis.Hook].
func (*boundedHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h *boundedHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	h.noteNext(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if bounded := h.boundedCopy(cmd); bounded != nil {
			return bounded.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h *boundedHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	h.noteNext(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var bounded *redis.Client
		if len(cmds) > 0 {
			bounded = h.boundedCopy(cmds[0])
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

// boundedCopy returns the copy that takes over a command after this hook, or nil.
func (h *boundedHook) boundedCopy(cmd redis.Cmder) *redis.Client {
	if c, ok := cmd.(*command); ok && c.route.hook == h {
		return c.route.copy
	}
	return nil
}

// endsWithContext reports whether every call of a client with these options ends when its context
// does. It cannot see hooks. A negative timeout sets no deadline on the connection, and go-redis
// runs the other functions in the caller's goroutine.
func endsWithContext(o *redis.Options) bool {
	return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 && o.OnConnect == nil &&
		o.Limiter == nil &&
		o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil &&
		(dialsItself(o) || isMarked(o.Dialer))
}

// Dialer connects to a server, as the Dialer of [redis.Options] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// KeepsDeadlines marks a Dialer that ends with its context and returns connections that support
// deadlines. Callers may then send their calls inline. Tests mark the Dialers of in-process
// servers.
//
//go:noinline
func KeepsDeadlines(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return dial(ctx, network, addr) }
}

// isMarked reports whether [KeepsDeadlines] has marked a Dialer.
func isMarked(dial Dialer) bool {
	return reflect.ValueOf(dial).Pointer() == reflect.ValueOf(KeepsDeadlines(nil)).Pointer()
}

// dialsItself reports whether a client with these options uses go-redis' own Dialer.
func dialsItself(o *redis.Options) bool {
	dialer := runtime.FuncForPC(reflect.ValueOf(o.Dialer).Pointer()).Name()
	return strings.HasPrefix(dialer, goRedis) && strings.HasSuffix(dialer, ".NewDialer.func1")
}
