//go:build integration

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The dispatcher behind hooks of the client, which hold calls up, refuse them, or fail.

func TestHooksSeeEveryCall(t *testing.T) {
	t.Parallel()
	for name, rdb := range testkit.Clients(t, testkit.StartRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			rdb.AddHook(testkit.EveryScript(func(send func() error) error { calls++; return send() }))
			limiter := testkit.NewLimiter(t, rdb)
			for range 10 {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(100))
				require.NoError(t, err)
			}
			require.Equal(t, 10, calls)
		})
	}
}

// TestALimiterMayBeMadeLate: it adds a hook to the client while the application's commands are in flight. The race
// detector finds clients that cannot bear it; those before 9.22 cannot.
func TestALimiterMayBeMadeLate(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	var others sync.WaitGroup
	decided := make(chan struct{})
	for range 4 {
		others.Go(func() {
			for {
				assert.NoError(t, rdb.Ping(t.Context()).Err())
				select {
				case <-decided:
					return
				default:
				}
			}
		})
	}
	_, err := testkit.NewLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(100))
	close(decided)
	others.Wait()
	require.NoError(t, err)
}

// TestChangeEndsADenialOnItsWay resets a key while a denial that Redis has made is on its way: it is not
// remembered.
func TestChangeEndsADenialOnItsWay(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	decided, gate := make(chan struct{}), make(chan struct{})
	var next atomic.Bool
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		err := send()
		if next.Swap(false) {
			close(decided)
			<-gate
		}
		return err
	}))
	limiter, limit := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), ginlimit.PerDay(1)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	next.Store(true)
	var all sync.WaitGroup
	all.Go(func() {
		r, err := limiter.Allow(t.Context(), "k", limit)
		assert.NoError(t, err)
		assert.False(t, r.Allowed)
	})
	<-decided
	require.NoError(t, limiter.Reset(t.Context(), "k", limit))
	close(gate)
	all.Wait()
	r, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// TestEndOfAGoroutineLeavesNobodyWaiting has a hook end the goroutine that sends a batch, as t.FailNow does.
func TestEndOfAGoroutineLeavesNobodyWaiting(t *testing.T) {
	t.Parallel()
	for name, rdb := range testkit.Clients(t, testkit.StartRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held := hold(rdb)
			var ends atomic.Int64
			rdb.AddHook(testkit.EveryScript(func(send func() error) error {
				err := send()
				if ends.Add(-1) >= 0 {
					runtime.Goexit()
				}
				return err
			}))
			limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(100)
			_, err := limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			held.next(2)
			ends.Store(2)
			var all sync.WaitGroup
			ask := func(i int) {
				all.Go(func() {
					last := 100
					for range 20 {
						r, err := limiter.Allow(context.Background(), fmt.Sprint("client ", i), limit)
						if err != nil {
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
							continue
						}
						assert.Less(t, r.Remaining, last, "an answer of another decision")
						last = r.Remaining
					}
				})
			}
			ask(0)
			held.await(t, 1)
			ask(1)
			held.await(t, 2)
			for i := range 6 {
				ask(2 + i)
			}
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return limiter.Stats().Queued == 6 }))
			held.release()
			all.Wait()
		})
	}
}

// panicHook is a client's hook with a fault.
type panicHook struct{}

// refusingHook is a client's hook that keeps pipelines from Redis, like a circuit breaker.
type refusingHook struct{ panicHook }

func TestPipelineThatIsNotSentAllowsNothing(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	rdb.AddHook(refusingHook{})
	limiter, limit := testkit.NewLimiter(t, rdb), ginlimit.PerDay(1)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 50 {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if err == nil && r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, allowed.Load(), int64(1))
}

func TestPanicOfTheClientIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	rdb.AddHook(panicHook{})
	_, err := testkit.NewLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
}

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("fault") }
}

func (panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (refusingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (refusingHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errors.New("the circuit is open") }
}
