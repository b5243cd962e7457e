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

func inBubbleRun(t *testing.T, name string, test func(t *testing.T, b *bubble)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
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

// TestWhenTheSourceIsAsked, by the process' plan and Redis' plan.
func TestWhenTheSourceIsAsked(t *testing.T) {
	const key = "plan:{c}"
	never, past, future := -2*retention, -time.Minute, time.Minute
	redisHas := func(b *bubble) {
		_ = b.mini.Set(key, "short plan redis")
		b.mini.SetTTL(key, life)
	}
	redisFails := func(b *bubble) { b.mini.SetError("ERR down") }
	token := func(b *bubble) { _ = b.mini.Set(key+":token", "token") }
	nothing := func(*bubble) {}
	down := errors.New("down")
	for name, row := range map[string]struct {
		redis   func(*bubble)
		cached  plan[string]
		ends    time.Duration // of the cached plan
		err     error         // of the source
		want    plan[string]
		until   time.Duration
		queried bool
	}{
		"Redis has it": {redisHas, plan[string]{}, never, nil,
			plan[string]{value: "redis", stored: true}, recheck, false},
		"Redis has it, but missed an Invalidate": {redisHas, plan[string]{newer: true}, never, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis fails, the process has it": {redisFails, plan[string]{value: "known"}, future, nil,
			plan[string]{value: "known"}, recheck, false},
		"Redis fails, the process has it for a moment": {redisFails, plan[string]{value: "known"}, 1, nil,
			plan[string]{value: "known"}, 1, false},
		"Redis fails": {redisFails, plan[string]{}, never, nil, plan[string]{value: "source"}, recheck, true},
		"Redis fails, and missed an Invalidate": {redisFails, plan[string]{newer: true, invalid: true}, future, nil,
			plan[string]{value: "source", newer: true}, recheck, true},
		"Redis never stored it": {token, plan[string]{value: "known", token: "token"}, future, nil,
			plan[string]{value: "known", token: "token"}, recheck, false},
		"Redis never stored it, for a moment": {token, plan[string]{value: "known", token: "token"}, 1, nil,
			plan[string]{value: "known", token: "token"}, 1, false},
		"Redis never stored it, then an Invalidate": {token, plan[string]{value: "known", token: "older"}, future, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis has lost it": {token, plan[string]{value: "known", token: "token", stored: true}, future, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis gives no token": {func(b *bubble) { _, _ = b.mini.Push(key+":token", "x") },
			plan[string]{value: "known"}, future, nil, plan[string]{value: "known"}, recheck, false},
		"over, and the source fails": {nothing, plan[string]{value: "known"}, past, down,
			plan[string]{value: "known"}, recheck, false},
		"over": {nothing, plan[string]{value: "known"}, past, nil,
			plan[string]{value: "source", stored: true, retained: true}, recheck, true},
		"unknown before": {nothing, plan[string]{err: errUnknown}, past, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bubble) {
			c := b.process(func(context.Context, string) (string, error) { return "source", row.err })
			row.redis(b)
			cached := row.cached
			cached.ends = time.Now().Add(row.ends)
			got, queried := c.resolve(t.Context(), "c", key, &cached)
			require.Equal(t, row.queried, queried)
			require.Equal(t, row.until, time.Until(got.until))
			require.Empty(t, c.queries)
			if queried {
				require.Equal(t, life, time.Until(got.ends))
				got.token = ""
			}
			got.until, got.ends = time.Time{}, time.Time{}
			require.Equal(t, row.want, *got)
		})
	}
}
