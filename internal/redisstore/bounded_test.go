package redisstore

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"
)

// TestCallersSendOnlyWhatEndsWithTheirContext has a row for everything that may hold a call of the
// client up.
func TestCallersSendOnlyWhatEndsWithTheirContext(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.Options){
		"ReadTimeout":  func(o *redis.Options) { o.ReadTimeout = -2 },
		"WriteTimeout": func(o *redis.Options) { o.WriteTimeout = -2 },
		"OnConnect": func(o *redis.Options) {
			o.OnConnect = func(context.Context,
				*redis.Conn) error {
				return nil
			}
		},
		"Limiter": func(o *redis.Options) { o.Limiter = limiter{} },
		"CredentialsProvider": func(o *redis.Options) {
			o.CredentialsProvider = func() (string, string) {
				return "",
					""
			}
		},
		"CredentialsProviderContext": func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", nil }
		},
		"StreamingCredentialsProvider": func(o *redis.Options) { o.StreamingCredentialsProvider = limiter{} },
		"Dialer": func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, nil }
		},
	} {
		options := redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}
		set(&options)
		rdb := redis.NewClient(&options)
		bounded := newBounded(rdb, time.Second).Options()
		require.False(t, describeServer(bounded).Inline, name)
		bounded.Dialer = KeepsDeadlines(bounded.Dialer)
		require.Equal(t, name == "Dialer", describeServer(bounded).Inline, "%s, if the Dialer is marked", name)
		require.NoError(t, rdb.Close())
	}
}

// TestCopyEndsWithItsContext: whatever timeouts the client has, and the client keeps its own.
func TestCopyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		read, write, want time.Duration
	}{
		"the defaults":      {0, 0, 50 * time.Millisecond},
		"longer ones":       {time.Second, time.Minute, 50 * time.Millisecond},
		"a shorter read":    {20 * time.Millisecond, time.Second, 20 * time.Millisecond},
		"a shorter write":   {time.Second, 30 * time.Millisecond, 30 * time.Millisecond},
		"none":              {-1, -1, 50 * time.Millisecond},
		"none for reads":    {-1, time.Second, 50 * time.Millisecond},
		"a shorter default": {10 * time.Millisecond, 0, 10 * time.Millisecond},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: row.read, WriteTimeout: row.write})
		before := *rdb.Options()
		options := newBounded(rdb, 50*time.Millisecond).Options()
		require.Equal(t, []any{row.want, row.want, true},
			[]any{options.ReadTimeout, options.WriteTimeout, options.ContextTimeoutEnabled}, name)
		require.True(t, describeServer(options).Inline, name)
		require.Equal(t, []any{before.ReadTimeout, before.WriteTimeout, false},
			[]any{rdb.Options().ReadTimeout, rdb.Options().WriteTimeout, rdb.Options().ContextTimeoutEnabled}, name)
		require.NoError(t, rdb.Close())
	}
}

// TestClientWithoutDeadlinesIsKept: its connections may know none.
func TestClientWithoutDeadlinesIsKept(t *testing.T) {
	t.Parallel()
	for _, options := range []redis.Options{{ReadTimeout: -2}, {WriteTimeout: -2}} {
		rdb := redis.NewClient(&options)
		require.Same(t, rdb, newBounded(rdb, time.Second))
		require.NoError(t, rdb.Close())
	}
}

// hookCalls is a hook of a client that notes what it wraps, and what passes it.
type hookCalls struct {
	wrapped []any // in order
	seen    []redis.Cmder
}

func (h *hookCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hookCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	h.wrapped = append(h.wrapped, next)
	return func(_ context.Context, cmd redis.Cmder) error { h.seen = append(h.seen, cmd); return nil }
}

func (h *hookCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	h.wrapped = append(h.wrapped, next)
	return func(_ context.Context, cmds []redis.Cmder) error { h.seen = append(h.seen, cmds...); return nil }
}

// codes returns what is wrapped, by its code.
func (h *hookCalls) codes() (codes []uintptr) {
	for _, f := range h.wrapped {
		codes = append(codes, reflect.ValueOf(f).Pointer())
	}
	h.wrapped = nil
	return codes
}

// TestWhatIsAssumedOfGoRedis has a line for all that the hook of the limiters takes for granted.
func TestWhatIsAssumedOfGoRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	first, last := &hookCalls{}, &hookCalls{}
	rdb.AddHook(last)
	ends := last.codes()
	require.Len(t, ends, maxFollowing, "AddHook has a hook wrap commands, pipelines and transactions, each once")
	for _, code := range ends {
		require.True(t, strings.HasPrefix(runtime.FuncForPC(code).Name(), goRedis),
			"what follows the last hook is go-redis itself")
	}
	rdb.AddHook(first)
	require.NotEqual(t, ends, last.codes(), "a hook that is added later comes after those before")
	require.Equal(t, ends, first.codes(), "so it is the last")
	first.wrapped, last.wrapped = nil, nil

	cmd, ctx := &command{Cmder: redis.NewStatusCmd(t.Context(), "ping")}, t.Context()
	require.NoError(t, rdb.Process(ctx, cmd))
	pipe := rdb.Pipeline()
	require.NoError(t, pipe.Process(ctx, cmd))
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	require.Equal(t, []redis.Cmder{cmd, cmd}, last.seen,
		"a hook sees the command that the client was given, alone and in a pipeline")

	conn := rdb.Conn()
	require.Equal(t, ends, first.codes(), "a connection has the hooks wrap the same functions")
	require.NoError(t, conn.Close())
	_ = rdb.Watch(ctx, func(*redis.Tx) error { return nil })
	require.Equal(t, ends, first.codes(), "and a transaction")

	first.seen, last.seen = nil, nil
	require.Error(t, rdb.WithTimeout(time.Second).Ping(ctx).Err())
	require.Empty(t, last.seen, "a copy has none of the hooks")
}

// TestLastHookNeedsNoNames: a program's functions may have none that are known, as an obfuscator
// changes them.
func TestLastHookNeedsNoNames(t *testing.T) {
	t.Parallel()
	var h boundedHook
	own := func(context.Context, redis.Cmder) error { return nil }
	for range maxFollowing + 1 {
		h.ProcessHook(own)
	}
	require.False(t, h.covered.Load())
	h.ProcessHook(func(context.Context, redis.Cmder) error { return nil })
	require.True(t, h.covered.Load())
}

// TestClientsAreNotKept by what is known of their limiters, though a copy of a client with a cache
// keeps the client itself.
func TestClientsAreNotKept(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]redis.Options{
		"plain": {}, "with a cache": {Protocol: 3, ClientSideCacheConfig: &redis.ClientSideCacheConfig{MaxEntries: 1}},
	} {
		key := func() any {
			rdb := redis.NewClient(&options)
			var c sender
			c.init(rdb, time.Second, nil)
			require.NotNil(t, c.route().hook)
			require.NoError(t, rdb.Close())
			return weak.Make(rdb)
		}()
		known := func() bool {
			clientUses.mu.Lock()
			defer clientUses.mu.Unlock()
			return clientUses.by[key] != nil
		}
		require.True(t, known(), name)
		for n := 0; known(); n++ {
			require.Less(t, n, 1_000, name)
			runtime.GC()
			runtime.Gosched()
		}
	}
}

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}
func (limiter) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return nil, nil, nil
}
