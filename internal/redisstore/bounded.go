package redisstore

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"strings"
	"time"

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

// sender sends commands.
type sender interface {
	processor
	Pipeline() redis.Pipeliner
}

// newSender returns what sends the commands of a client. For a client of one server that is a bounded copy, behind the
// hooks that the application has added so far. The client stays as it is: [redis.Conn] has its own list of hooks, and
// takes no connection before it sends something itself.
func newSender(rdb redis.UniversalClient, timeout time.Duration) sender {
	one, ok := rdb.(*redis.Client)
	if !ok || one == nil {
		return rdb
	}
	bounded := newBounded(one, timeout)
	if bounded == one {
		return rdb
	}
	conn := one.Conn()
	conn.AddHook(boundedHook{bounded})
	return conn
}

// boundedHook is the last hook. It hands all commands to a bounded copy of the client.
type boundedHook struct{ copy *redis.Client }

// DialHook implements [redis.Hook].
func (boundedHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h boundedHook) ProcessHook(redis.ProcessHook) redis.ProcessHook { return h.copy.Process }

// ProcessPipelineHook implements [redis.Hook].
func (h boundedHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		pipe := h.copy.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
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

// goRedis is the prefix of go-redis' function names.
const goRedis = "github.com/redis/go-redis/v9."

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
