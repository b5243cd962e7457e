package inflight

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestSlotsAreRenewed while they are held, and no goroutine is left once none is.
func TestSlotsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		const keys = 1000
		for i := range keys {
			key := fmt.Append(nil, i)
			c.End(key, c.Begin(key).Number, Granted)
		}
		time.Sleep(4*tick + time.Millisecond)
		require.Len(t, redis.says(), keys,
			"all with the first tick after a renewal is due, though more than one report holds")
		time.Sleep(time.Minute)
		lines := len(redis.says())
		require.InDelta(t, keys*int(time.Minute/Renewal), lines, keys*4, "each every second")
		require.LessOrEqual(t, redis.calls, 2*62, "at most twice a second for a thousand keys")
		for i := range keys {
			c.Release(fmt.Append(nil, i), int64(i+1))
		}
		require.Len(t, redis.says(), keys)
		require.LessOrEqual(t, redis.limit, maxUpdates)
		calls := redis.calls
		time.Sleep(time.Hour)
		require.Equal(t, calls, redis.calls)
		require.False(t, c.reporter.running.Load())
		ended := make(chan struct{})
		go func() {
			c.reporter.goroutines.Wait()
			close(ended)
		}()
		synctest.Wait()
		select {
		case <-ended:
		default:
			require.Fail(t, "the goroutine has not ended")
		}
	})
}

// TestGoroutineEndsWithTheLastSlot, once its release is reported.
func TestGoroutineEndsWithTheLastSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.End(key, c.Begin(key).Number, Granted)
		time.Sleep(time.Minute)
		redis.says()
		c.Release(key, 1)
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
		require.False(t, c.reporter.running.Load())
	})
}

// TestChangesAreReportedOnceRedisIsBack, and all slots again, as Redis may have forgotten them.
func TestChangesAreReportedOnceRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		other := []byte("other")
		c.End(other, c.Begin(other).Number, Granted)
		c.End(key, c.Begin(key).Number, Granted)
		redis.loses("all")
		c.Release(key, 2)
		time.Sleep(Renewal / 2)
		require.Empty(t, redis.says())
		require.LessOrEqual(t, redis.calls, 3)
		redis.loses()
		time.Sleep(tick)
		require.Subset(t, redis.says(), []string{"k ended 2 held 0 doubt true", "other ended 1 held 1 doubt false"})
		c.Release(other, 1)
		redis.says()
	})
}

// TestSlotsAreRenewedBesideReleases that come faster than they can be reported.
func TestSlotsAreRenewedBesideReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{takes: 5 * time.Millisecond}
		c := New(redis.report)
		defer c.Close(context.Background())
		c.End(key, c.Begin(key).Number, Granted)
		for i := range 30_000 {
			other := fmt.Append(nil, i)
			a := c.Begin(other)
			c.End(other, a.Number, Granted)
			c.Release(other, a.Number)
			time.Sleep(time.Millisecond)
		}
		require.InDelta(t, 30*time.Second/Renewal, renewed(redis.says(), "k"), 3)
		c.Release(key, 1)
		redis.says()
	})
}

func renewed(lines []string, key string) (n int) {
	for _, line := range lines {
		if strings.HasPrefix(line, key+" ") {
			n++
		}
	}
	return n
}

// TestALostServerHoldsUpNoOther: slots are renewed and released while another server does not answer, also to
// attempts that were to report releases. Its reports are repeated once in a tick.
func TestALostServerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{takes: 10 * time.Millisecond}
		c := New(redis.report)
		defer c.Close(context.Background())
		c.End(key, c.Begin(key).Number, Granted)
		dead := make([]string, 2000)
		for i := range dead {
			dead[i] = fmt.Sprint("dead ", i)
			c.End([]byte(dead[i]), c.Begin([]byte(dead[i])).Number, Spare)
		}
		redis.loses(dead...)
		for i := range dead[1000:] {
			c.Release([]byte(dead[1000+i]), int64(1002+i))
			late := c.Begin([]byte(dead[1000+i])).Number
			defer c.End([]byte(dead[1000+i]), late, Denied)
		}
		time.Sleep(time.Minute)
		require.GreaterOrEqual(t, renewed(redis.says(), "k"), int(time.Minute/(Renewal+tick)))
		require.LessOrEqual(t, redis.calls, (len(dead)/maxUpdates+1)*int(time.Minute/tick+1))
		c.Release(key, 1)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
		redis.loses()
		time.Sleep(5 * time.Second)
		require.Contains(t, redis.says(), "dead 1500 ended 1502 held 0 doubt true")
		for i, key := range dead[:1000] {
			c.Release([]byte(key), int64(2+i))
		}
		redis.says()
	})
}

// TestRenewalsAreFewWhileAServerIsLost: another server's slots are released all the time, and no
// slot is reported more often for it.
func TestRenewalsAreFewWhileAServerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		dead := []byte("dead")
		c.End(key, c.Begin(key).Number, Granted)
		c.End(dead, c.Begin(dead).Number, Granted)
		redis.loses("dead")
		for i := range 3000 {
			other := fmt.Append(nil, i)
			a := c.Begin(other)
			c.End(other, a.Number, Granted)
			c.Release(other, a.Number)
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 30*time.Second/Renewal, renewed(redis.says(), "k"), 3)
		redis.loses()
		time.Sleep(2 * tick)
		require.Equal(t, 1, renewed(redis.says(), "k"), "once more when the server is back, as it may have forgotten")
	})
}

// TestAnOutageLosesNoSlot: when an outage begins, the last report is at most a renewal and a tick
// old, and after 7 s the next tick sends another. That leaves Redis a second to be found.
func TestAnOutageLosesNoSlot(t *testing.T) {
	const outage, found = 7 * time.Second, time.Second
	for begins := range 20 {
		synctest.Test(t, func(t *testing.T) {
			var redis reports
			c := New(redis.report)
			defer c.Close(context.Background())
			c.End(key, c.Begin(key).Number, Granted)
			time.Sleep(10*time.Second + time.Duration(begins)*Renewal/10)
			redis.says()
			last := redis.last
			redis.loses("all")
			time.Sleep(outage)
			redis.loses()
			time.Sleep(tick)
			require.Positive(t, renewed(redis.says(), "k"))
			require.LessOrEqual(t, redis.last.Sub(last), Life-found)
			c.Release(key, 1)
			redis.says()
		})
	}
}

func TestCloseTellsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var redis reports
		c := New(redis.report)
		defer c.Close(context.Background())
		c.End(key, c.Begin(key).Number, Granted)
		c.Release(key, 1)
		c.Close(t.Context())
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
		c.End(key, c.Begin(key).Number, Granted)
		c.Release(key, 2)
		require.Empty(t, redis.says())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		c.Close(ended)
		require.Empty(t, redis.says())
		c.Close(t.Context())
		require.Equal(t, []string{"k ended 2 held 0 doubt false"}, redis.says())
	})
}

// TestCloseReportsWhatFailed before, once more.
func TestCloseReportsWhatFailed(t *testing.T) {
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var redis reports
			c := New(redis.report)
			c.End(key, c.Begin(key).Number, Granted)
			redis.loses("all")
			c.Release(key, 1)
			synctest.Wait()
			if back {
				redis.loses()
			}
			calls := redis.calls
			c.Close(t.Context())
			require.Equal(t, calls+1, redis.calls)
			if back {
				require.Equal(t, []string{"k ended 1 held 0 doubt true"}, redis.says())
			}
		})
	}
}

func TestCloseWaitsForWhatIsBeingTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{takes: 50 * time.Millisecond}
		c := New(redis.report)
		c.End(key, c.Begin(key).Number, Granted)
		c.Release(key, 1)
		synctest.Wait()
		start := time.Now()
		c.Close(t.Context())
		require.Equal(t, redis.takes, time.Since(start))
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
	})
}

// TestCloseWaitsNoLongerThanItMay for a report in flight.
func TestCloseWaitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := reports{takes: time.Second}
		c := New(redis.report)
		c.End(key, c.Begin(key).Number, Granted)
		c.Release(key, 1)
		synctest.Wait()
		start := time.Now()
		within, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c.Close(within)
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		require.Empty(t, redis.says())
	})
}

func TestAloneNobodyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		for range 2 {
			a := c.Begin(key)
			tryOne(c, key, a.Number, false, func(h Holders) bool { return h.Own < 1 })
		}
		require.EqualValues(t, 1, c.Held(key))
		require.False(t, c.reporter.running.Load())
		c.Release(key, 1)
		require.Zero(t, remembered(c))
		c.Close(t.Context())
	})
}

// TestAnAttemptReportsARelease that comes before it, instead of a report: unless other processes may wait for that
// slot, as it was the last one; or the attempt is denied, which Redis does not write, takes longer than a tick, or is
// in flight at the end.
func TestAnAttemptReportsARelease(t *testing.T) {
	run := func(name string, first Outcome, f func(c *Counts, number int64, redis *reports)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redis := reports{takes: time.Millisecond}
				c := New(redis.report)
				c.End(key, c.Begin(key).Number, first)
				c.End([]byte("other"), c.Begin([]byte("other")).Number, Granted)
				c.Release([]byte("other"), 2)
				synctest.Wait() // the reporter is busy
				c.Release(key, 1)
				a := c.Begin(key)
				require.Equal(t, bucket.Attempt{Number: 3, Ended: 1}, a)
				time.Sleep(2 * redis.takes)
				reported := []string{"other ended 2 held 0 doubt false"}
				if first == Granted {
					reported = append(reported, "k ended 1 held 0 doubt false")
				}
				require.Equal(t, reported, redis.says())
				f(c, a.Number, &redis)
				c.Close(context.Background())
				synctest.Wait()
				require.Empty(t, redis.says())
			})
		})
	}
	run("the last slot", Granted, func(c *Counts, number int64, redis *reports) { c.End(key, number, Denied) })
	run("granted", Spare, func(c *Counts, number int64, redis *reports) {
		c.End(key, number, Granted)
		time.Sleep(Renewal / 2)
		require.Empty(t, redis.says())
		c.Release(key, number)
		time.Sleep(2 * redis.takes)
		require.Equal(t, []string{"k ended 3 held 0 doubt false"}, redis.says())
	})
	run("denied", Spare, func(c *Counts, number int64, redis *reports) {
		next := c.Begin(key).Number // which is not trusted any more
		c.End(key, number, Denied)
		time.Sleep(2 * redis.takes)
		require.Equal(t, []string{"k ended 3 held 0 doubt false"}, redis.says())
		c.End(key, next, Denied)
	})
	run("another release", Spare, func(c *Counts, number int64, redis *reports) {
		c.End(key, number, Spare)
		next := c.Begin(key).Number
		c.Release(key, number)
		time.Sleep(2 * redis.takes)
		require.Equal(t, []string{"k ended 3 held 0 doubt false"}, redis.says())
		c.End(key, next, Denied)
	})
	run("late", Spare, func(c *Counts, number int64, redis *reports) {
		time.Sleep(2 * tick)
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
		c.End(key, number, Denied)
	})
	run("closed", Spare, func(c *Counts, _ int64, redis *reports) {
		c.Close(context.Background())
		require.Equal(t, []string{"k ended 1 held 0 doubt false"}, redis.says())
	})
}
