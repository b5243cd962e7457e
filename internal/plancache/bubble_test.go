package plancache

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// bubble is a Redis in a bubble of testing/synctest. It has the clock of the bubble.
type bubble struct {
	t    *testing.T
	mini *miniredis.Miniredis
	late atomic.Bool                     // every reply is later than any timeout
	sent atomic.Int64                    // calls
	ctx  atomic.Pointer[context.Context] // of the last pipeline
}

// inBubble runs a test in a bubble with a Redis.
func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, mini: miniredis.NewMiniRedis()}
		t.Cleanup(b.mini.Close)
		b.mini.ClockTTL(true)
		defer time.Sleep(2 * time.Minute) // until calls that are late have ended
		test(t, b)
	})
}

// DialHook implements [redis.Hook].
func (b *bubble) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (b *bubble) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { b.call(); return next(ctx, cmd) }
}

// ProcessPipelineHook implements [redis.Hook].
func (b *bubble) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.ctx.Store(&ctx)
		b.call()
		return next(ctx, cmds)
	}
}

func (b *bubble) call() {
	b.sent.Add(1)
	if b.late.Load() {
		time.Sleep(250 * time.Millisecond)
	}
}

const (
	life    = time.Hour
	timeout = 50 * time.Millisecond
)

var (
	errUnknown = errors.New("unknown client")
	errFailed  = errors.New("no plan")
	errForeign = errors.New("foreign")
)

type source = func(ctx context.Context, client string) (string, error)

// newCache returns the cache of a process that knows no plan yet.
func newCache(t testing.TB, rdb redis.UniversalClient, source source) *Cache[string] {
	t.Helper()
	return New(Config[string]{
		Source:  source,
		Key:     func(client string) string { return "plan:{" + client + "}" },
		Marshal: func(plan string) string { return "plan " + plan },
		Unmarshal: func(text string) (string, error) {
			plan, ok := strings.CutPrefix(text, "plan ")
			if !ok {
				return "", errForeign
			}
			return plan, nil
		},
		Unknown: errUnknown,
		Failed:  func(err error) error { return errors.Join(errFailed, err) },
		Reason:  func(error) string { return "" },
		Life:    life, Timeout: timeout,
		Redis: redisstore.NewAnswers(rdb), Log: slog.New(slog.DiscardHandler),
	})
}

// process returns a cache on the Redis of the bubble.
func (b *bubble) process(source source) *Cache[string] {
	b.t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) { return b.mini.Dial() }
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: dial})
	rdb.AddHook(b)
	b.t.Cleanup(func() { _ = rdb.Close() })
	return newCache(b.t, rdb, source)
}

// fixed is a source that has the same plan for everybody.
func fixed(plan string) source {
	return func(context.Context, string) (string, error) { return plan, nil }
}

// database is a source that a test changes.
type database struct {
	plan    atomic.Pointer[string]
	err     atomic.Pointer[error]
	takes   atomic.Int64 // nanoseconds
	queried atomic.Int64
}

func (d *database) set(plan string, err error) {
	d.plan.Store(&plan)
	d.err.Store(&err)
}

func (d *database) query(ctx context.Context, _ string) (string, error) {
	d.queried.Add(1)
	plan, err := *d.plan.Load(), *d.err.Load()
	select {
	case <-time.After(time.Duration(d.takes.Load())):
		return plan, err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func newDatabase(plan string) *database {
	d := &database{}
	d.set(plan, nil)
	return d
}

// has requires that a process has a plan for a client.
func has(t *testing.T, c *Cache[string], client, want string) {
	t.Helper()
	plan, err := c.Get(t.Context(), client)
	require.NoError(t, err)
	require.Equal(t, want, plan)
}

// fails requires that a process has no plan for a client, because of an error.
func fails(t *testing.T, c *Cache[string], client string, want error) {
	t.Helper()
	plan, err := c.Get(t.Context(), client)
	require.ErrorIs(t, err, want)
	require.Empty(t, plan)
}
