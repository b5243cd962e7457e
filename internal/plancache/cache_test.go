package plancache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBounds are the figures in the documentation of NewPlans, and further constants.
func TestBounds(t *testing.T) {
	t.Parallel()
	require.Equal(t, []int{256, 4096, 8192, 8, 32768, 32768},
		[]int{maxQueries, maxWaiting, maxFlights, maxCalls, maxKept, maxRetained})
	require.Equal(t, []time.Duration{time.Second, 24 * time.Hour, 5 * time.Second, 10 * time.Second},
		[]time.Duration{recheck, retention, sourceTimeout, tokenLife})
}

// TestPlansInUseAreKept while other clients fill the cache.
func TestPlansInUseAreKept(t *testing.T) {
	c := New(Config[string]{})
	for i := range 3 * maxKept {
		if i%(maxKept/2) == 0 {
			if i == 0 {
				c.keepLocked("in use", &plan[string]{value: "plan"})
			}
			require.Equal(t, "plan", c.cachedLocked("in use").value)
		}
		c.keepLocked(fmt.Sprint(i), &plan[string]{})
		if len(c.fresh) > maxKept || len(c.old) > maxKept {
			t.Fatal("too many are kept")
		}
	}
	require.Len(t, c.old, maxKept)
	require.Empty(t, c.cachedLocked("unheard of").value)
	require.NotContains(t, c.fresh, "unheard of")
}

// TestLongKeepingIsBounded renews more clients in a day than one process may retain in Redis.
func TestLongKeepingIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(fixed("a"))
		shared := func(client string) time.Duration {
			has(t, c, client, "a")
			return b.mini.TTL("plan:{" + client + "}").Round(time.Second)
		}
		require.Equal(t, life, shared("early"))
		require.Equal(t, life, shared("next"))
		require.Equal(t, life, shared("late"))
		time.Sleep(life)
		require.Equal(t, life+retention, shared("early"))
		require.Equal(t, 1<<15-1, c.retainLeft)
		c.retainLeft = 1
		require.Equal(t, life+retention, shared("next"))
		require.Equal(t, life, shared("late"))
		time.Sleep(life)
		require.Equal(t, life+retention, shared("early"), "it was kept long before")
		require.Equal(t, life, shared("late"))
		require.NoError(t, c.Invalidate(t.Context(), "early"))
		require.Equal(t, life+retention, shared("early"))
		time.Sleep(22 * time.Hour)
		require.Equal(t, life, shared("late"))
		time.Sleep(time.Hour)
		require.Equal(t, life+retention, shared("late"), "a day later")
	})
}

// TestWaitingQuestionsAreBounded has more clients than may wait, and no query ends.
func TestWaitingQuestionsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		d.takes.Store(int64(time.Hour))
		c := b.process(d.query)
		begin := time.Now()
		var all sync.WaitGroup
		var atOnce, later atomic.Int64
		for i := range 10_000 {
			all.Go(func() {
				_, err := c.Get(t.Context(), fmt.Sprint("client ", i))
				assert.ErrorIs(t, err, errFailed)
				if time.Since(begin) < time.Second {
					atOnce.Add(1)
				} else {
					later.Add(1)
					assert.LessOrEqual(t, time.Since(begin), 5*time.Second)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, maxQueries+maxWaiting, later.Load())
		require.EqualValues(t, 10_000-maxQueries-maxWaiting, atOnce.Load())
		time.Sleep(10 * time.Second)
		d.takes.Store(0)
		has(t, c, "new", "a")
		require.Zero(t, c.waiting.Load())
		require.Empty(t, c.flights)
		require.Empty(t, c.queries)
	})
}

// TestFlightsAreBounded: a client beyond the bound gets its old plan, or an error that is not
// cached.
func TestFlightsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(fixed("a"))
		has(t, c, "known", "a")
		time.Sleep(life)
		for i := range maxFlights {
			c.flights[fmt.Sprint(i)] = nil
		}
		fails(t, c, "new", errBusy)
		has(t, c, "known", "a")
		require.Equal(t, Stats{Misses: 1, Stale: 1, Errors: 1}, c.Stats())
		delete(c.flights, "0")
		has(t, c, "new", "a")
	})
}

// TestPlansAreShared: by a flight, in the process for a second, and in Redis for a life.
func TestPlansAreShared(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		d.takes.Store(int64(time.Second))
		here, elsewhere := b.process(d.query), b.process(d.query)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				plan, err := here.Get(t.Context(), "c")
				assert.NoError(t, err)
				assert.Equal(t, "a", plan)
			})
		}
		all.Wait()
		require.EqualValues(t, 1, d.queried.Load())
		require.Equal(t, Stats{Misses: 10}, here.Stats())

		sent := b.sent.Load()
		has(t, here, "c", "a")
		time.Sleep(time.Second - 1)
		has(t, here, "c", "a")
		require.Equal(t, sent, b.sent.Load())
		time.Sleep(time.Nanosecond)
		has(t, here, "c", "a")
		require.Equal(t, sent+1, b.sent.Load())
		has(t, elsewhere, "c", "a")
		require.EqualValues(t, 1, d.queried.Load())
		require.Equal(t, Stats{Hits: 3, Misses: 10}, here.Stats())
		require.Equal(t, Stats{Hits: 1}, elsewhere.Stats())

		time.Sleep(life)
		d.takes.Store(0)
		d.set("b", nil)
		has(t, elsewhere, "c", "b")
		has(t, here, "c", "b")
		require.EqualValues(t, 2, d.queried.Load())
	})
}

// TestUnknownClientsAreCached for a life, and never retained.
func TestUnknownClientsAreCached(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("")
		d.set("", fmt.Errorf("no row: %w", errUnknown))
		c := b.process(d.query)
		for range 3 {
			for range 3 {
				_, err := c.Get(t.Context(), "c")
				require.Equal(t, errUnknown, err, "without what the source has put around it")
			}
			fails(t, b.process(d.query), "c", errUnknown)
			require.Equal(t, life, b.mini.TTL("plan:{c}"))
			time.Sleep(life)
		}
		require.EqualValues(t, 3, d.queried.Load())
		require.Equal(t, Stats{Hits: 6, Misses: 3}, c.Stats())
	})
}

// TestCallersWaitAsLongAsItPays: for a first plan as long as the source may take, with an old plan
// for the timeout, and after an Invalidate for a second.
func TestCallersWaitAsLongAsItPays(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		c := b.process(d.query)
		waits := func(client, want string, err error, wait time.Duration) {
			t.Helper()
			start := time.Now()
			plan, got := c.Get(t.Context(), client)
			require.ErrorIs(t, got, err)
			require.Equal(t, want, plan)
			require.Equal(t, wait, time.Since(start))
		}
		waits("c", "a", nil, 0)
		d.set("b", nil)
		d.takes.Store(int64(time.Hour))
		waits("new", "", errLate, sourceTimeout)
		require.NoError(t, c.Invalidate(t.Context(), "c"))
		waits("c", "a", nil, time.Second)
		time.Sleep(life)
		d.takes.Store(int64(time.Minute))
		waits("c", "a", nil, time.Second)
		time.Sleep(10 * time.Second)
		d.takes.Store(0)
		waits("c", "b", nil, 0)
		time.Sleep(life)
		d.takes.Store(int64(time.Minute))
		waits("c", "b", nil, timeout)
		require.Equal(t, Stats{Misses: 2, Stale: 3, Errors: 1}, c.Stats())
	})
}

// TestACallerMayLeave, which ends no flight and is not counted.
func TestACallerMayLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		d.takes.Store(int64(2 * time.Second))
		c := b.process(d.query)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "c")
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, Stats{}, c.Stats())
		time.Sleep(time.Second)
		synctest.Wait()
		has(t, c, "c", "a")
		require.Equal(t, Stats{Hits: 1}, c.Stats())
	})
}

// TestInvalidate: the next lookup queries the source, in this process at once and in others within
// a second. Nobody else gets an earlier answer.
func TestInvalidate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		here, elsewhere := b.process(d.query), b.process(d.query)
		has(t, here, "c", "a")
		has(t, elsewhere, "c", "a")
		d.set("b", nil)
		require.NoError(t, here.Invalidate(t.Context(), "c"))
		has(t, elsewhere, "c", "a")
		has(t, here, "c", "b")
		time.Sleep(recheck)
		has(t, elsewhere, "c", "b")
		require.EqualValues(t, 2, d.queried.Load())

		time.Sleep(life)
		d.takes.Store(int64(500 * time.Millisecond))
		go func() { _, _ = here.Get(t.Context(), "c") }()
		time.Sleep(100 * time.Millisecond)
		d.set("c", nil)
		require.NoError(t, elsewhere.Invalidate(t.Context(), "c"))
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		require.False(t, b.mini.Exists("plan:{c}"))
		has(t, here, "c", "c")
		require.EqualValues(t, 4, d.queried.Load())

		time.Sleep(life)
		go func() { _, _ = here.Get(t.Context(), "c") }()
		time.Sleep(100 * time.Millisecond)
		d.set("d", nil)
		require.NoError(t, here.Invalidate(t.Context(), "c"))
		has(t, here, "c", "d") // it does not wait for the earlier answer
		time.Sleep(time.Second)
		has(t, here, "c", "d")
	})
}

// TestAFailedInvalidationHoldsHere, whatever Redis keeps.
func TestAFailedInvalidationHoldsHere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		c := b.process(d.query)
		has(t, c, "c", "a")
		d.set("b", nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		sent := b.sent.Load()
		require.Equal(t, context.Canceled, c.Invalidate(ended, "c"))
		synctest.Wait()
		require.Equal(t, sent, b.sent.Load(), "it does not begin")
		require.True(t, b.mini.Exists("plan:{c}"))
		d.set("b", errors.New("down"))
		has(t, c, "c", "a")
		time.Sleep(recheck)
		d.set("b", nil)
		has(t, c, "c", "b")
		time.Sleep(recheck)
		has(t, c, "c", "b")
		has(t, b.process(d.query), "c", "b")

		b.late.Store(true)
		start := time.Now()
		require.Equal(t, context.DeadlineExceeded, c.Invalidate(t.Context(), "c"))
		require.Equal(t, timeout, time.Since(start))
		time.Sleep(time.Second)
		require.False(t, b.mini.Exists("plan:{c}"), "it takes effect late")
	})
}
