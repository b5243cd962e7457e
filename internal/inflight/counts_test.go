package inflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var key = []byte("k")

// told is what Redis is told, one update a line.
type told struct {
	mu    sync.Mutex
	lines []string
	calls int
	err   error
}

func (r *told) tell(_ context.Context, updates []Update) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.err != nil {
		return r.err
	}
	for _, u := range updates {
		r.lines = append(r.lines, fmt.Sprintf("%s settled %d held %d doubt %t", u.Key, u.Settled, u.Held, u.Doubt))
	}
	return nil
}

// says returns what was told since it was asked last.
func (r *told) says() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func (r *told) fails(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func TestAttemptsTellWhatIsSettledAndHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		require.Equal(t, bucket.Attempt{Number: 1}, c.Begin(key))
		require.Equal(t, bucket.Attempt{Number: 2}, c.Begin(key), "the first may hold a slot: it is not settled")
		c.Settle(key, 2, Granted)
		require.Equal(t, bucket.Attempt{Number: 3}, c.Begin(key), "the second is later than the first, which is not settled")
		require.EqualValues(t, 1, c.Held(key))
		c.Settle(key, 1, Refused)
		require.Equal(t, bucket.Attempt{Number: 4, Settled: 2, Held: 1}, c.Begin(key))
		c.Settle(key, 4, Granted)
		c.Settle(key, 3, Granted)
		c.Settle(key, 3, Lost) // it is settled
		require.Equal(t, bucket.Attempt{Number: 5, Settled: 4, Held: 3}, c.Begin(key), "all are settled, in whatever order they ended")
		c.Settle(key, 5, Refused)
		require.Empty(t, redis.says(), "Redis knows")
		require.Equal(t, 3, c.Total())

		c.Release(key, 2)
		require.Equal(t, []string{"k settled 5 held 2 doubt false"}, redis.says())
		c.Release(key, 3)
		c.Release(key, 4)
		require.Contains(t, redis.says(), "k settled 5 held 0 doubt false")
		require.Zero(t, c.Total())
		require.Empty(t, c.shard(key).keys, "nothing is remembered")
		require.Equal(t, bucket.Attempt{Number: 6, Settled: 5}, c.Begin(key))
		c.Settle(key, 6, Refused)
	})
}

// TestLaterSlotsAreReleasedOnceTheyAreSettled has Redis be told again of a slot that was released while an older attempt was under way.
func TestLaterSlotsAreReleasedOnceTheyAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		c.Begin(key)
		c.Begin(key)
		c.Settle(key, 2, Granted)
		c.Release(key, 2)
		require.Equal(t, []string{"k settled 0 held 0 doubt false"}, redis.says())
		c.Settle(key, 1, Granted)
		require.Equal(t, []string{"k settled 2 held 1 doubt false"}, redis.says())
		c.Release(key, 1)
		require.Equal(t, []string{"k settled 2 held 0 doubt false"}, redis.says())
	})
}

func TestLostAttemptsAreInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		c.Begin(key)
		c.Settle(key, 1, Lost)
		require.Equal(t, []string{"k settled 1 held 0 doubt true"}, redis.says())
		c.Begin(key)
		c.Try(key, 2, true, func(held int64) bool { return held > 0 })
		require.Equal(t, []string{"k settled 2 held 0 doubt true"}, redis.says())
		c.Begin(key)
		c.Try(key, 3, false, func(int64) bool { return false })
		require.Empty(t, redis.says(), "it was not sent")
		c.Begin(key)
		c.Try(key, 4, true, func(int64) bool { return true })
		require.Equal(t, []string{"k settled 4 held 1 doubt false"}, redis.says(), "it holds a slot of which Redis may not know")
		c.Release(key, 4)
		redis.says()
	})
}

// TestSlotsAreRenewed while they are held, and no goroutine is left when none is.
func TestSlotsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		const keys = 1000
		for i := range keys {
			key := fmt.Append(nil, i)
			c.Settle(key, c.Begin(key).Number, Granted)
		}
		time.Sleep(time.Minute)
		lines := len(redis.says())
		require.InDelta(t, keys*int(time.Minute/Renewal), lines, keys*4, "each every three seconds or so")
		require.LessOrEqual(t, redis.calls, 60, "at most once a second for a thousand keys")
		for i := range keys {
			c.Release(fmt.Append(nil, i), int64(i+1))
		}
		require.Len(t, redis.says(), keys)
		calls := redis.calls
		time.Sleep(time.Hour)
		require.Equal(t, calls, redis.calls)
	})
}

// TestChangesAreToldOnceRedisIsBack, and all slots again, as it may have forgotten them.
func TestChangesAreToldOnceRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		other := []byte("other")
		c.Settle(other, c.Begin(other).Number, Granted)
		c.Settle(key, c.Begin(key).Number, Granted)
		redis.fails(errors.New("down"))
		c.Release(key, 2)
		time.Sleep(2 * time.Second)
		require.Empty(t, redis.says())
		require.LessOrEqual(t, redis.calls, 10)
		redis.fails(nil)
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"k settled 2 held 0 doubt false", "other settled 1 held 1 doubt false"}, redis.says())
		c.Release(other, 1)
		redis.says()
	})
}

// TestMemoryOfReleasedSlotsIsBounded while Redis cannot be told.
func TestMemoryOfReleasedSlotsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := told{err: errors.New("down")}
		c := New(redis.tell)
		for i := range 300_000 {
			key := fmt.Append(nil, i)
			a := c.Begin(key)
			c.Try(key, a.Number, false, func(int64) bool { return true })
			c.Release(key, a.Number)
		}
		keys, changes := 0, 0
		for i := range c.shards {
			c.shards[i].mu.Lock()
			keys, changes = keys+len(c.shards[i].keys), changes+len(c.shards[i].changes)
			c.shards[i].mu.Unlock()
		}
		require.LessOrEqual(t, keys, shards*(maxGone+1))
		require.LessOrEqual(t, changes, 2*keys+shards*(minChanges+1))
		c.Close(t.Context())
	})
}

func TestCloseTellsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis told
		c := New(redis.tell)
		c.Settle(key, c.Begin(key).Number, Granted)
		c.Release(key, 1)
		c.Close(t.Context())
		require.Equal(t, []string{"k settled 1 held 0 doubt false"}, redis.says())
		c.Settle(key, c.Begin(key).Number, Granted)
		c.Release(key, 2)
		require.Empty(t, redis.says())
	})
}

func TestAloneNobodyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		for range 2 {
			a := c.Begin(key)
			c.Try(key, a.Number, false, func(held int64) bool { return held < 1 })
		}
		require.EqualValues(t, 1, c.Held(key))
		c.Release(key, 1)
		require.Empty(t, c.shard(key).keys)
		c.Close(t.Context())
	})
}
