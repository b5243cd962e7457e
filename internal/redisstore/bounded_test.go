package redisstore

import (
	"context"
	"net"
	"testing"
	"time"

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

// hookCalls is a hook of a client that notes what passes it, and sends nothing if it is the last.
type hookCalls struct {
	seen []redis.Cmder
	last bool
}

func (h *hookCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hookCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.seen = append(h.seen, cmd)
		if h.last {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (h *hookCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.seen = append(h.seen, cmds...)
		if h.last {
			return nil
		}
		return next(ctx, cmds)
	}
}

// TestWhatIsAssumedOfGoRedis has a line for all that a bounded hook takes for granted.
func TestWhatIsAssumedOfGoRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	first, last := &hookCalls{}, &hookCalls{last: true}
	rdb.AddHook(first)
	rdb.AddHook(last)
	cmd, ctx := &command{Cmder: redis.NewStatusCmd(t.Context(), "ping")}, t.Context()
	require.NoError(t, rdb.Process(ctx, cmd))
	pipe := rdb.Pipeline()
	require.NoError(t, pipe.Process(ctx, cmd))
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	want := []redis.Cmder{cmd, cmd}
	require.Equal(t, want, first.seen, "a hook sees the command that the client was given, alone and in a pipeline")
	require.Equal(t, want, last.seen, "a hook that is added later comes after those before")
	require.Error(t, rdb.WithTimeout(time.Second).Ping(ctx).Err())
	require.Len(t, last.seen, 2, "a copy has none of the hooks")
}

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}
func (limiter) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return nil, nil, nil
}
