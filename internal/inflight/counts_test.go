package inflight

import (
	"context"
	"fmt"
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
	})
}

// TestLaterSlotsAreReleasedOnceTheirAttemptsEnd: Redis gets another report of a slot that was
// released while an older attempt was in flight.
func TestLaterSlotsAreReleasedOnceTheirAttemptsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.Begin(key)
		c.Begin(key)
		c.End(key, 2, Granted)
		c.Release(key, 2)
		require.Equal(t, []string{"k ended 0 held 0 doubt false"}, redis.says())
		c.End(key, 1, Granted)
		require.Equal(t, []string{"k ended 2 held 1 doubt false"}, redis.says())
		c.Release(key, 1)
		require.Equal(t, []string{"k ended 2 held 0 doubt false"}, redis.says())
	})
}

// TestASlotThatWasReleasedBeforeAnOlderAttemptIsDenied is reported once that attempt has ended,
// though nothing was to be reported meanwhile.
func TestASlotThatWasReleasedBeforeAnOlderAttemptIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.Begin(key)
		c.Begin(key)
		c.End(key, 2, Granted)
		c.Release(key, 2)
		require.Equal(t, []string{"k ended 0 held 0 doubt false"}, redis.says())
		require.False(t, c.reporter.running.Load())
		c.End(key, 1, Denied)
		require.Equal(t, []string{"k ended 2 held 0 doubt false"}, redis.says())
	})
}

func TestLostAttemptsAreInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.Begin(key)
		c.End(key, 1, Lost)
		require.Equal(t, []string{"k ended 1 held 0 doubt true"}, redis.says())
		c.Begin(key)
		c.Try(key, 2, true, func(held int64) bool { return held > 0 })
		require.Equal(t, []string{"k ended 2 held 0 doubt true"}, redis.says())
		c.Begin(key)
		c.Try(key, 3, false, func(int64) bool { return false })
		require.Empty(t, redis.says(), "it was not sent")
		c.Begin(key)
		c.Try(key, 4, true, func(int64) bool { return true })
		require.Equal(t, []string{"k ended 4 held 1 doubt true"}, redis.says(),
			"it holds a slot of which Redis may not know")
		c.Release(key, 4)
		redis.says()

		c.Begin(key)
		c.Begin(key)
		c.Try(key, 6, false, func(int64) bool { return true })
		redis.says()
		c.End(key, 5, Denied)
		require.Equal(t, []string{"k ended 6 held 1 doubt true"}, redis.says(),
			"a slot taken here is reported once its attempt has ended")
		c.Release(key, 6)
		c.Release(key, 6)
		require.EqualValues(t, 0, c.Held(key), "never less")
		redis.says()
		require.Equal(t, 1, remembered(c), "an earlier report may be late")
		time.Sleep(Life + 2*tick)
		require.Zero(t, remembered(c))
	})
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
			c.Try(key, a.Number, false, func(int64) bool { return true })
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
			c.Try(key, a.Number, false, func(int64) bool { return true })
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
