package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestEnginesShareAStoreIfTheirKeysAreTheSame, as far as is known.
func TestEnginesShareAStoreIfTheirKeysAreTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		here, there := local(t), local(t)
		client := b.client(t)
		one, same := b.start(t, client, engine.Config{}, 0), b.start(t, client, engine.Config{}, 0)
		other := b.redis(t)
		require.True(t, here.SharesStore(here))
		require.False(t, here.SharesStore(there))
		require.True(t, one.SharesStore(one))
		require.True(t, one.SharesStore(same))
		require.False(t, one.SharesStore(other))
		require.False(t, one.SharesStore(here))
		require.False(t, here.SharesStore(one))
		require.True(t, here.IsLocal())
		require.False(t, one.IsLocal())
	})
}

// TestKeysAreWhatTheTextSays: with a prefix, and hidden by a secret.
func TestKeysAreWhatTheTextSays(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		plain := b.redis(t)
		secret := b.start(t, b.client(t), engine.Config{Keys: clientkey.NewText([]byte("secret"))}, 64)
		one := ask("alice", setOf(perMinute(10)))
		one.Prefix = "api|"
		take(t, plain, 1, one)
		require.True(t, b.Mini.Exists("test:{api|alice}:m"))
		require.EqualValues(t, 9, take(t, secret, 1, one).Remaining)
		require.NotEqual(t, plain.Hash(&one.Subject), secret.Hash(&one.Subject))
		require.Equal(t, clientkey.Hash([]byte("api|alice")), plain.Hash(&one.Subject))
	})
}

// spanKey is the key of a value of a context.
type spanKey struct{}

// TestPingSaysWhetherRedisAnswersInTime, and a client that goes on longer reads no values of the
// caller's context.
func TestPingSaysWhetherRedisAnswersInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		require.NoError(t, local(t).Ping(t.Context()))
		rdb := b.Connect(t)
		var late atomic.Int64
		rdb.AddHook(pingHook(func(ctx context.Context) {
			ctx.Value(spanKey{})
			if d := time.Duration(late.Load()); d > 0 {
				time.Sleep(d)
				ctx.Value(spanKey{})
			}
		}))
		e := b.start(t, rdb, engine.Config{}, 0)
		values := &reader{Context: t.Context()}
		var ctx context.Context = values
		require.NoError(t, e.Ping(ctx))
		require.EqualValues(t, 1, values.reads.Load())

		late.Store(int64(time.Second))
		start := time.Now()
		err := e.Ping(ctx)
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.Equal(t, timeout, time.Since(start))
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 2, values.reads.Load(), "none after Ping has returned")

		ctx, cancel := context.WithTimeout(ctx, 10*ms)
		defer cancel()
		start = time.Now()
		err = e.Ping(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, engine.ErrUnavailable)
		require.Equal(t, 10*ms, time.Since(start))
		time.Sleep(2 * time.Second)
	})
}

// reader is a context that counts how often the span is read.
type reader struct {
	context.Context
	reads atomic.Int64
}

// Value implements [context.Context].
func (r *reader) Value(key any) any {
	if key == (spanKey{}) {
		r.reads.Add(1)
	}
	return r.Context.Value(key)
}

// pingHook is called before each ping of a client.
type pingHook func(context.Context)

// DialHook implements [redis.Hook].
func (pingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (pingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook].
func (h pingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "ping" {
			h(ctx)
		}
		return next(ctx, cmd)
	}
}

// TestUnavailableNamesTheCause, or the end of the caller's context.
func TestUnavailableNamesTheCause(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late := fmt.Errorf("read: %w", context.DeadlineExceeded)
	for text, row := range map[string]struct {
		ctx context.Context
		err error
		is  error
	}{
		"ginlimit: context canceled":                          {ended, io.EOF, context.Canceled},
		"ginlimit: unavailable: EOF":                          {t.Context(), io.EOF, io.EOF},
		"ginlimit: unavailable: no answer from Redis in time": {t.Context(), late, engine.ErrUnavailable},
		"ginlimit: unavailable: circuit breaker open":         {t.Context(), dispatch.ErrOpen, dispatch.ErrOpen},
	} {
		err := engine.Unavailable(row.ctx, row.err)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, row.is)
		require.Equal(t, row.ctx.Err() == nil, errors.Is(err, engine.ErrUnavailable))
	}
}

// TestCloseWaitsForDecisionsInFlight that may hold a slot, and makes no new ones meanwhile. It may
// be called twice.
func TestCloseWaitsForDecisionsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := acquiring("k", 1)
		take(t, other, 1, acquiring("warm", 1))
		b.Delay.Store(int64(30 * ms))
		var answers [1]engine.Answer
		done := goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, answers[:]) })
		start := time.Now()
		closed := goes(func() error { e.Close(); return nil })
		require.Empty(t, closed)
		require.True(t, errors.Is(e.Ready(t.Context()), engine.ErrClosed))
		<-closed
		require.Equal(t, 30*ms, time.Since(start))
		require.NoError(t, <-done)
		require.True(t, answers[0].HasSlot())
		e.Close()
		require.Equal(t, 30*ms, time.Since(start))
	})
}

// TestCloseWaitsForWhatIsGivenBack, for more than a second if the timeout is as long.
func TestCloseWaitsForWhatIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, struct{ redis.UniversalClient }{b.client(t)}, engine.Config{Timeout: time.Second}, 0)
		one, two, three := ask("one", setOf(perHour(10))), ask("two", setOf(perHour(10))), ask("three", setOf(perHour(1)))
		asks := []engine.Ask{one, two, three}
		take(t, e, 1, asks[2])
		b.Delay.Store(int64(300 * ms))
		done := goes(func() error { return takeN(t.Context(), e, 1, asks, make([]engine.Answer, 3)) })
		start := time.Now()
		e.Close()
		require.Equal(t, 600*ms, time.Since(start))
		require.NoError(t, <-done)
		b.Delay.Store(0)
		other := b.redis(t)
		require.EqualValues(t, 10, left(t, other, asks[0]))
		require.EqualValues(t, 10, left(t, other, asks[1]))
	})
}

// TestCloseDoesNotWaitForHooksThatHang longer than a second for decisions, and a second for the
// store.
func TestCloseDoesNotWaitForHooksThatHang(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rdb := b.ConnectInline(t)
		var hang atomic.Int64
		rdb.AddHook(testkit.EveryScript(func(send func() error) error {
			time.Sleep(time.Duration(hang.Load()))
			return send()
		}))
		e := b.start(t, rdb, engine.Config{}, 0)
		for range 3 {
			take(t, e, 1, ask("k", setOf(perMinute(10))))
		}
		hang.Store(int64(10 * time.Second))
		asks := []engine.Ask{acquiring("k", 9)} // which Close waits for
		done := goes(func() error { return takeN(t.Context(), e, 1, asks, make([]engine.Answer, 1)) })
		start := time.Now()
		e.Close()
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Empty(t, done)
		<-done
	})
}

// TestASlotOfACallWhoseHookPanicsIsFree, as Redis may have granted it: also if the hook ends the caller's goroutine.
func TestASlotOfACallWhoseHookPanicsIsFree(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("a hook") }, "goexit": runtime.Goexit} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			rdb := b.ConnectInline(t)
			var ends atomic.Bool
			rdb.AddHook(testkit.EveryScript(func(send func() error) error {
				err := send()
				if ends.Load() {
					end()
				}
				return err
			}))
			e, other := b.start(t, rdb, engine.Config{}, 0), b.redis(t)
			for range 3 {
				take(t, e, 1, ask("warm", setOf(perHour(1000))))
			}
			ends.Store(true)
			one := acquiring("k", 1)
			var caller sync.WaitGroup
			caller.Go(func() { _ = takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
			caller.Wait()
			ends.Store(false)
			time.Sleep(2 * time.Second)
			require.Zero(t, e.Stats().Slots)
			a := take(t, other, 1, one)
			require.True(t, a.HasSlot())
		})
	}
}

// TestAnAnswerThatIsLateIsNobodyElses: the call that it is for is not used again.
func TestAnAnswerThatIsLateIsNobodyElses(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(10)))
		take(t, e, 10, one)
		take(t, e, 1, two)
		b.Delay.Store(int64(100 * ms))
		require.ErrorIs(t, takeN(t.Context(), e, 3, []engine.Ask{one}, make([]engine.Answer, 1)), engine.ErrUnavailable)
		time.Sleep(20 * ms)
		b.Delay.Store(int64(40 * ms))
		start := time.Now()
		a := take(t, e, 3, two)
		require.Equal(t, 40*ms, time.Since(start))
		require.True(t, a.Allowed)
		require.EqualValues(t, 6, a.Remaining)
	})
}

// TestADroppedEngineAsksRedisNothingMore, though its breaker is open, a slot is not reported, and its client
// is closed.
func TestADroppedEngineAsksRedisNothingMore(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rdb := b.client(t)
		e := engine.NewRedis(engine.Config{Timeout: timeout}, rdb, 0, redisstore.Config{
			Prefix: "test", Log: slog.New(slog.DiscardHandler), Scripts: b.scripts, Process: "dropped",
		})
		one := acquiring("k", 2)
		held := take(t, e, 1, one)
		take(t, e, 1, one)
		b.outage(t, e)
		require.NoError(t, rdb.Close())
		release(e, one, held)
		time.Sleep(time.Minute)
		sent := b.Sent.Load()
		time.Sleep(time.Minute)
		require.Greater(t, b.Sent.Load(), sent)
		e.Drop()
		time.Sleep(time.Minute)
		sent = b.Sent.Load()
		time.Sleep(time.Hour)
		require.Equal(t, sent, b.Sent.Load())
	})
}
