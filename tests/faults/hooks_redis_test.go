//go:build integration

package faults_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The dispatcher behind hooks of the client, which hold calls up, refuse them, or fail.

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
	testkit.Must(limiter.Allow(t.Context(), "k", limit))
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
	require.True(t, testkit.Must(limiter.Allow(t.Context(), "k", limit)).Allowed)
}

// panicHook is a client's hook with a fault.
type panicHook struct{}

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
