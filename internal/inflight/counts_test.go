package inflight

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var key = []byte("k")

// reports records what is reported to Redis, one update a line.
type reports struct {
	mu    sync.Mutex
	lines []string
	calls int
	limit int             // updates at once
	down  map[string]bool // keys of servers that do not answer
	takes time.Duration
	last  time.Time // time of the last report
}

func (r *reports) report(ctx context.Context, updates []Update) (done []bool) {
	r.mu.Lock()
	takes := r.takes
	r.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return make([]bool, len(updates))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.limit = max(r.limit, len(updates))
	for _, u := range updates {
		ok := !r.down[u.Key] && !r.down["all"]
		if done = append(done, ok); ok {
			r.last = time.Now()
			r.lines = append(r.lines, fmt.Sprintf("%s ended %d held %d doubt %t", u.Key, u.Ended, u.Held, u.Doubt))
		}
	}
	return done
}

// says returns the reports since the last call.
func (r *reports) says() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// loses sets the keys whose servers do not answer; "all" is all of them.
func (r *reports) loses(keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = map[string]bool{}
	for _, key := range keys {
		r.down[key] = true
	}
}

func TestAttemptsTellWhatIsSettledAndHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		require.Equal(t, bucket.Attempt{Number: 1}, c.Begin(key))
		require.Equal(t, bucket.Attempt{Number: 2}, c.Begin(key), "the first may hold a slot: it is not ended")
		c.End(key, 2, Granted)
		require.Equal(t, bucket.Attempt{Number: 3}, c.Begin(key),
			"the second is later than the first, which is not ended")
		require.EqualValues(t, 1, c.Held(key))
		c.End(key, 1, Denied)
		require.Equal(t, bucket.Attempt{Number: 4, Ended: 2, Held: 1}, c.Begin(key))
		c.End(key, 4, Granted)
		c.End(key, 3, Granted)
		c.End(key, 3, Lost) // it has ended
		require.Equal(t, bucket.Attempt{Number: 5, Ended: 4, Held: 3}, c.Begin(key),
			"all are ended, in whatever order they ended")
		c.End(key, 5, Denied)
		require.Empty(t, redis.says(), "Redis knows")
		require.Equal(t, 3, c.Total())

		c.Release(key, 2)
		require.Equal(t, []string{"k ended 5 held 2 doubt false"}, redis.says())
		c.Release(key, 3)
		c.Release(key, 4)
		require.Contains(t, redis.says(), "k ended 5 held 0 doubt false")
		require.Zero(t, c.Total())
		require.Zero(t, remembered(c))
		require.Equal(t, bucket.Attempt{Number: 6, Ended: 5}, c.Begin(key))
		c.End(key, 6, Denied)
		c.Release(key, 4)
		require.Zero(t, c.Held(key), "never less")
	})
}

// TestNothingIsKnownOfANewKey: what others hold is not taken for none.
func TestNothingIsKnownOfANewKey(t *testing.T) {
	t.Parallel()
	c := New(nil)
	require.Equal(t, Holders{Age: Life}, c.Holders(key))
	look := []Try{{Key: key}}
	c.TryAll(look, func() bool { return true })
	require.Equal(t, Holders{Age: Life}, look[0].Of)
}

// TestWhatOthersHoldIsRemembered of a key of which this process has no slot, until it says nothing any more.
func TestWhatOthersHoldIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.Answer(key, c.Begin(key).Number, Denied, News{Others: 5, Sent: time.Now()}, 5)
		time.Sleep(Life - time.Millisecond)
		require.Equal(t, Holders{Others: 5, Age: Life - time.Millisecond}, c.Holders(key))
		time.Sleep(2 * tick)
		require.Zero(t, remembered(c))
		require.Zero(t, c.lingering.Load())
		require.False(t, c.reporter.running.Load())
		require.Zero(t, redis.calls)
	})
}

// TestTriesOfSeveralKeysLockInOneOrder, whatever the order of the keys: else two tries wait for each other for ever.
func TestTriesOfSeveralKeysLockInOneOrder(t *testing.T) {
	t.Parallel()
	c := New(nil)
	keys := make([][]byte, shards)
	for i, found := 0, 0; found < shards; i++ {
		if key := fmt.Append(nil, i); keys[c.shardOf(key)] == nil {
			keys[c.shardOf(key)] = key
			found++
		}
	}
	for _, order := range [][]int{{0, shards - 1}, {shards - 1, 0}, {7, 3, 12}, {12, 7, 3}} {
		var tries []Try
		for _, i := range order {
			tries = append(tries, Try{Key: keys[i]})
		}
		last := slices.Max(order)
		c.shards[last].mu.Lock()
		done := make(chan struct{})
		go func() {
			c.TryAll(tries, func() bool { return true })
			close(done)
		}()
		for _, i := range order {
			require.Eventually(t, func() bool {
				free := i != last && c.shards[i].mu.TryLock()
				if free {
					c.shards[i].mu.Unlock()
				}
				return !free
			}, time.Minute, time.Microsecond, "%v: shard %d is locked before shard %d", order, i, last)
		}
		c.shards[last].mu.Unlock()
		<-done
	}
}

// remembered returns the number of remembered keys.
func remembered(c *Counts) (n int) {
	for i := range c.shards {
		c.shards[i].mu.Lock()
		n += len(c.shards[i].keys)
		c.shards[i].mu.Unlock()
	}
	return n
}

// TestMemoryOfReleasedSlotsIsBounded while no report reaches Redis.
func TestMemoryOfReleasedSlotsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{down: map[string]bool{"all": true}}
		c := New(redis.report)
		defer c.Close(context.Background())
		for i := range 100_000 {
			key := fmt.Append(nil, i)
			a := c.Begin(key)
			tryOne(c, key, a.Number, false, func(Holders) bool { return true })
			c.Release(key, a.Number)
		}
		keys, changes := 0, 0
		for i := range c.shards {
			c.shards[i].mu.Lock()
			keys, changes = keys+len(c.shards[i].keys), changes+len(c.shards[i].changes)
			c.shards[i].mu.Unlock()
		}
		require.Equal(t, maxLingering, keys)
		require.LessOrEqual(t, changes, 2*keys+shards*(minChanges+1))
		c.Close(t.Context())
	})
}

// TestChangesOfForgottenKeysAreBounded while a report takes long. Redis gets the other changes.
func TestChangesOfForgottenKeysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{takes: time.Minute}
		c := New(redis.report)
		defer c.Close(context.Background())
		for i := range 300_000 {
			key := fmt.Append(nil, i)
			a := c.Begin(key)
			tryOne(c, key, a.Number, false, func(Holders) bool { return true })
			c.Release(key, a.Number)
		}
		synctest.Wait()
		require.LessOrEqual(t, remembered(c), maxLingering+maxUpdates)
		for i := range c.shards {
			s := &c.shards[i]
			s.mu.Lock()
			keys, changes := len(s.keys), len(s.changes)
			s.mu.Unlock()
			require.LessOrEqual(t, changes, 2*keys+3*minChanges,
				"some keys may have been forgotten since changes were counted last")
		}
		redis.mu.Lock()
		redis.takes = 0
		redis.mu.Unlock()
		time.Sleep(time.Hour)
		require.Zero(t, remembered(c))
		require.Zero(t, c.lingering.Load())
	})
}

// TestChangesOfAllKeysTakeTurns, though keys that have just been reported change again at once.
func TestChangesOfAllKeysTakeTurns(t *testing.T) {
	t.Parallel()
	const keys, limit = 100, 20 // more than a shard has
	c := New(func(context.Context, []Update) []bool { return nil })
	c.reporter.running.Store(true) // no goroutine takes the changes
	change := func(key []byte) { c.End(key, c.Begin(key).Number, Local) }
	for i := range keys {
		change(fmt.Append(nil, i))
	}
	seen := map[string]bool{}
	for range 4 * keys / limit {
		updates := c.changes(nil, limit)
		require.Len(t, updates, limit)
		c.recordReport(updates, slices.Repeat([]bool{true}, limit), time.Now())
		for _, u := range updates {
			seen[u.Key] = true
			change([]byte(u.Key))
		}
	}
	require.Len(t, seen, keys)
}

// tryOne ends one attempt without Redis.
func tryOne(c *Counts, key []byte, number int64, sent bool, f func(Holders) bool) {
	one := []Try{{Key: key, Number: number, Sent: sent}}
	c.TryAll(one, func() bool { return f(one[0].Of) })
}
