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

// TestCallersSendOnlyWhatEndsWithTheirContext has a row for everything that may hold a call of the client up.
func TestCallersSendOnlyWhatEndsWithTheirContext(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.Options){
		"ReadTimeout":         func(o *redis.Options) { o.ReadTimeout = -2 },
		"WriteTimeout":        func(o *redis.Options) { o.WriteTimeout = -2 },
		"OnConnect":           func(o *redis.Options) { o.OnConnect = func(context.Context, *redis.Conn) error { return nil } },
		"Limiter":             func(o *redis.Options) { o.Limiter = limiter{} },
		"CredentialsProvider": func(o *redis.Options) { o.CredentialsProvider = func() (string, string) { return "", "" } },
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
		require.False(t, serverOf(bounded, false).Inline, name)
		require.Equal(t, name == "Dialer", serverOf(bounded, true).Inline, "%s, if the Dialer is trusted", name)
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
		require.Equal(t, []any{row.want, row.want, true}, []any{options.ReadTimeout, options.WriteTimeout, options.ContextTimeoutEnabled}, name)
		require.True(t, serverOf(options, false).Inline, name)
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

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}
func (limiter) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return nil, nil, nil
}
