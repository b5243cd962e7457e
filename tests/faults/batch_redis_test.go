//go:build integration

package faults_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Batches that hooks of the client hold up.

// heldCalls are the next calls of a client, which wait until they are let go.
type heldCalls struct {
	calls, came atomic.Int64
	gate        chan struct{}
	once        sync.Once
}

func hold(rdb *redis.Client) *heldCalls {
	h := &heldCalls{gate: make(chan struct{})}
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		if calls := h.calls.Load(); calls > 0 && h.came.Add(1) <= calls {
			<-h.gate
		}
		return send()
	}))
	return h
}

// next holds the next calls.
func (h *heldCalls) next(calls int64) { h.calls.Store(calls) }

// await returns when so many wait.
func (h *heldCalls) await(t *testing.T, calls int64) {
	t.Helper()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return h.came.Load() >= calls }))
}

func (h *heldCalls) release() { h.once.Do(func() { close(h.gate) }) }

// TestBatchDecidesInOrder has a batch of known asks, of different costs on the same keys, decided
// as in single file.
func TestBatchDecidesInOrder(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	held := hold(rdb)
	limiter, limit := testkit.NewLimiter(t, rdb), ginlimit.PerDay(1).WithBurst(10)
	other := limit.WithBurst(20)
	testkit.Must(limiter.Allow(t.Context(), "known to answer", limit))
	held.next(2)
	defer held.release()
	var all sync.WaitGroup
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "first", limit) })
	held.await(t, 1)
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "second", limit) })
	held.await(t, 2)
	asks := []struct {
		key       string
		n         int
		limit     ginlimit.Limit
		remaining int
	}{
		{"a", 1, limit, 9}, {"a", 1, limit, 8}, {"a", 2, limit, 6}, {"a", 1, limit, 5}, // the last one may not join the first
		{"b", 1, limit, 9}, {"b", 1, limit, 8}, {"b", 1, limit, 7}, // merged, and in a call with others that are not
		{"c", 1, limit, 9}, {"d", 3, limit, 7}, {"e", 3, limit, 7}, {"f", 1, other, 19}, {"g", 1, other, 18 + 1},
		{"b", 3, limit, 4}, {"c", 1, other, 18}, {"a", 0, limit, 5}, {"a", 5, limit, 0},
	}
	for i, ask := range asks {
		all.Go(func() {
			var r ginlimit.Result
			var err error
			if ask.n == 0 {
				r, err = limiter.Peek(t.Context(), ask.key, ask.limit)
			} else {
				r, err = limiter.AllowN(t.Context(), ask.key, ask.n, ask.limit)
			}
			assert.NoError(t, err)
			assert.Equal(t, ask.remaining, r.Remaining, "ask %d: %+v", i, ask)
		})
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return limiter.Stats().Queued == i+1 }))
	}
	held.release()
	all.Wait()
	for key, remaining := range map[string]int{"a": 0, "b": 4, "c": 8, "d": 7, "e": 7} {
		require.Equal(t, remaining, testkit.Must(limiter.Peek(t.Context(), key, limit)).Remaining, key)
	}
}
