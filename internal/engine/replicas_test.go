package engine_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// counting returns an engine of another process that counts those of its prefix, and its log.
func (b *bench) counting(t testing.TB, prefix string) (*engine.Engine, *testkit.Buffer) {
	return b.countingBy(t, b.client(t), prefix)
}

// countingBy is counting, in the process of the client.
func (b *bench) countingBy(t testing.TB, rdb *redis.Client, prefix string) (*engine.Engine, *testkit.Buffer) {
	var log testkit.Buffer
	e := engine.NewRedis(engine.Config{Timeout: timeout}, rdb, 64, redisstore.Config{
		Prefix: prefix, Log: slog.New(slog.NewTextHandler(&log, nil)), Scripts: b.scripts,
		Process: fmt.Sprint("P", b.processes.Add(1)),
	})
	t.Cleanup(e.Close)
	return e, &log
}

const (
	replicaRenewal = inflight.Life / 4
	replicaMemory  = 4 * replicaRenewal // for how long the largest count holds
)

// decides makes a decision by Redis, or without it in an outage.
func decides(t testing.TB, e *engine.Engine) engine.Answer {
	one := ask("k", setOf(perHour(120)))
	one.Failure = engine.FailLocal
	answer := take(t, e, 1, one)
	synctest.Wait()
	return answer
}

// TestEnginesCountEachOther once each has decided, and those alone that share its buckets.
func TestEnginesCountEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var all []*engine.Engine
		for range 4 {
			e, _ := b.counting(t, "test")
			all = append(all, e)
			require.Equal(t, 1, e.Stats().Replicas)
		}
		other, _ := b.counting(t, "other")
		time.Sleep(time.Minute)
		require.Zero(t, b.Sent.Load(), "none has decided")
		for i, e := range append(all[:3:3], other) {
			decides(t, e)
			require.Equal(t, []int{1, 2, 3, 1}[i], e.Stats().Replicas, "at once")
		}
		sent := b.Sent.Load()
		time.Sleep(replicaRenewal)
		synctest.Wait()
		require.EqualValues(t, 4, b.Sent.Load()-sent, "a call of each that has decided")
		for i, want := range []int{3, 3, 3, 1} {
			require.Equal(t, want, all[i].Stats().Replicas)
		}
		require.Equal(t, 1, other.Stats().Replicas)
		time.Sleep(10 * replicaRenewal)
		require.Equal(t, 3, all[0].Stats().Replicas)
	})
}

// ofProcess returns five engines of one process that have made a decision, and one of another.
func (b *bench) ofProcess(t testing.TB) (five []*engine.Engine, other *engine.Engine) {
	rdb := b.client(t)
	for range 5 {
		e, _ := b.countingBy(t, rdb, "test")
		five = append(five, e)
		decides(t, e)
	}
	other, _ = b.counting(t, "test")
	decides(t, other)
	time.Sleep(replicaRenewal)
	synctest.Wait()
	return five, other
}

// TestEnginesOfAProcessAreOneReplica: in an outage they admit together what one of them would.
func TestEnginesOfAProcessAreOneReplica(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		five, other := b.ofProcess(t)
		require.Equal(t, 2, other.Stats().Replicas)
		b.Cut.Store(true)
		admitted := func(of []*engine.Engine, key string, set *rules.Set) (n int) {
			for range 30 {
				for _, e := range of {
					one := ask(key, set)
					one.Failure = engine.FailLocal
					if answer := take(t, e, 1, one); answer.Allowed {
						require.Equal(t, engine.FromLocal, answer.Source)
						n++
					}
				}
			}
			return n
		}
		hourly, inFlight := setOf(limit("h", 100, 3_600_000)), setOf(bucket.NewSlots(10))
		for round := range 3 {
			require.Equal(t, 2, five[4].Stats().Replicas)
			require.Equal(t, 50, admitted(five, fmt.Sprint("all", round), hourly))
			require.Equal(t, 30, admitted(five[:1], fmt.Sprint("one", round), hourly))
			time.Sleep(time.Minute)
		}
		require.Equal(t, 5, admitted(five, "slots", inFlight))
		require.Equal(t, 5, admitted([]*engine.Engine{other}, "slots", inFlight))
	})
}

// TestAProcessIsCountedUntilItsLastEngineEnds, whichever of them ends first.
func TestAProcessIsCountedUntilItsLastEngineEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		five, other := b.ofProcess(t)
		sent := b.Sent.Load()
		time.Sleep(replicaRenewal)
		synctest.Wait()
		require.EqualValues(t, 2, b.Sent.Load()-sent, "a call of each process")
		for _, e := range five {
			require.Equal(t, 2, e.Stats().Replicas)
			e.Close()
			time.Sleep(replicaMemory + inflight.Life)
			synctest.Wait()
		}
		require.Equal(t, 1, other.Stats().Replicas)
		six, _ := b.counting(t, "test")
		decides(t, six)
		require.Equal(t, 2, six.Stats().Replicas)
	})
}

// TestEnginesThatEndAreNotCounted: those that close at once, others when their slots end; and the
// largest count of the last ten seconds holds.
func TestEnginesThatEndAreNotCounted(t *testing.T) {
	for name, row := range map[string]struct {
		ends func(b *bench, e *engine.Engine)
		kept time.Duration // the slot, for at most
	}{
		"closed": {func(_ *bench, e *engine.Engine) { e.Close() }, 0},
		"dead":   {func(b *bench, e *engine.Engine) { b.Cut.Store(true); e.Close(); b.Cut.Store(false) }, inflight.Life},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			one, _ := b.counting(t, "test")
			two, _ := b.counting(t, "test")
			decides(t, one)
			decides(t, two)
			time.Sleep(replicaRenewal)
			synctest.Wait()
			require.Equal(t, 2, one.Stats().Replicas)
			row.ends(b, two)
			time.Sleep(replicaMemory - replicaRenewal)
			require.Equal(t, 2, one.Stats().Replicas)
			time.Sleep(row.kept + 2*replicaRenewal)
			require.Equal(t, 1, one.Stats().Replicas)
			one.Close()
			require.NotContains(t, strings.Join(b.Mini.Keys(), " "), "replicas")
		})
	}
}

// TestAnOutageChangesNoCount, however long it is, nor does a Redis that has lost its memory, until all
// others have returned. The share without Redis is 1 over the count.
func TestAnOutageChangesNoCount(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var all []*engine.Engine
		var logs []*testkit.Buffer
		for range 4 {
			e, log := b.counting(t, "test")
			all, logs = append(all, e), append(logs, log)
			decides(t, e)
		}
		time.Sleep(replicaRenewal)
		synctest.Wait()
		for range 2 {
			b.Cut.Store(true)
			for _, e := range all {
				admitted := 0
				for range 200 {
					one := ask("outage", setOf(limit("h", 100, 3_600_000)))
					one.Failure = engine.FailLocal
					if answer := take(t, e, 1, one); answer.Allowed {
						admitted++
						require.Equal(t, engine.FromLocal, answer.Source)
					}
				}
				require.LessOrEqual(t, admitted, 25)
			}
			time.Sleep(time.Minute)
			for i, e := range all {
				require.Equal(t, 4, e.Stats().Replicas)
				require.Contains(t, logs[i].String(), "replicas=4")
			}
			b.Mini.FlushAll()
			b.repair()
			for range 8 {
				for _, e := range all {
					require.Equal(t, 4, e.Stats().Replicas)
				}
				time.Sleep(replicaRenewal / 2)
			}
		}
	})
}

// TestAKnownNumberIsNotCounted, nor are engines without Redis.
func TestAKnownNumberIsNotCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, b.client(t), engine.Config{Replicas: 7}, 64)
		alone := local(t)
		decides(t, e)
		decides(t, alone)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, b.Sent.Load())
		require.Equal(t, 7, e.Stats().Replicas)
		require.Equal(t, 1, alone.Stats().Replicas)
	})
}

// TestCountingDelaysNoDecision: a decision does not wait for the first count, nor for the others.
func TestCountingDelaysNoDecision(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, _ := b.counting(t, "test")
		b.Delay.Store(int64(30 * time.Millisecond))
		start := time.Now()
		take(t, e, 1, ask("k", setOf(perHour(120))))
		require.Equal(t, 30*time.Millisecond, time.Since(start))
		time.Sleep(replicaRenewal/10 - 20*time.Millisecond) // another count is under way
		start = time.Now()
		take(t, e, 1, ask("k", setOf(perHour(120))))
		require.Equal(t, 30*time.Millisecond, time.Since(start))
	})
}

// TestAChangedNumberGivesNobodyTokens: what was charged by the share of one number of engines is settled by the
// same share when there is another number.
func TestAChangedNumberGivesNobodyTokens(t *testing.T) {
	for _, others := range []int{1, 3} {
		inBubbleRun(t, fmt.Sprint(others, " more"), func(t *testing.T, b *bench) {
			e, _ := b.counting(t, "test")
			decides(t, e)
			charge := func() (engine.Answer, engine.Ask) {
				one := ask("charged", setOf(perHour(120)))
				one.Failure, one.Settles = engine.FailLocal, true
				answer := take(t, e, 10, one)
				require.Equal(t, engine.FromLocal, answer.Source)
				return answer, one
			}
			b.outage(t, e)
			first, one := charge()
			b.repair()
			for range others {
				other, _ := b.counting(t, "test")
				decides(t, other)
			}
			time.Sleep(replicaRenewal)
			synctest.Wait()
			require.Equal(t, 1+others, e.Stats().Replicas)
			b.outage(t, e)
			before := time.Now()
			second, _ := charge()
			require.Empty(t, settle(t, e, 0, first.Charge(&one)))
			looks := one
			looks.Settles = false
			left := take(t, e, 0, looks)
			alone := time.Duration(10*(1+others)) * time.Hour / 120 // the second charge
			require.InDelta(t, alone-time.Since(before), left.ResetAfter, float64(time.Second))
			require.Positive(t, second.Remaining)
		})
	}
}

// TestAClosedClientIsNotAsked again and again.
func TestAClosedClientIsNotAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rdb := b.client(t)
		var log testkit.Buffer
		e := engine.NewRedis(engine.Config{Timeout: timeout}, rdb, 64, redisstore.Config{
			Prefix: "test", Log: slog.New(slog.NewTextHandler(&log, nil)), Scripts: b.scripts, Process: "P1",
		})
		defer e.Close()
		decides(t, e)
		require.NoError(t, rdb.Close())
		time.Sleep(time.Minute)
		require.Empty(t, log.String())
	})
}
