//go:build integration

package limits_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// slotPolicy returns a policy with n slots on a server.
func slotPolicy(t testing.TB, rdb redis.UniversalClient, n int) *ginlimit.Policy {
	t.Helper()
	limiter := testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed))
	return testkit.NewPolicy(t, limiter, "api", ginlimit.InFlight(n))
}

// slotHolder names the environment variable with the server's address, by which the test's program
// is one that holds slots.
const slotHolder = "GINLIMIT_HOLD_SLOTS"

// TestHoldSlots is the program of TestKilledProcessFreesItsSlots.
func TestHoldSlots(t *testing.T) {
	addr := os.Getenv(slotHolder)
	if addr == "" {
		return // it is only for that
	}
	p := slotPolicy(t, redis.NewClient(&redis.Options{Addr: addr}), 3)
	for range 3 {
		fmt.Println("slot", testkit.Reserve(t, p).Result().Allowed)
	}
	<-t.Context().Done()
}

// holdSlots starts a process that holds all three slots.
func holdSlots(t *testing.T, addr string) *os.Process {
	t.Helper()
	program := testkit.Must(os.Executable())
	holder := exec.Command(program, "-test.run", "^TestHoldSlots$")
	holder.Env = append(os.Environ(), slotHolder+"="+addr)
	out := testkit.Must(holder.StdoutPipe())
	require.NoError(t, holder.Start())
	t.Cleanup(func() {
		_ = holder.Process.Kill() // it may be dead
		_ = holder.Wait()
	})
	lines := bufio.NewScanner(out)
	for n := 0; n < 3 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "slot") {
			require.Equal(t, "slot true", lines.Text())
			n++
		}
	}
	return holder.Process
}

// TestKilledProcessFreesItsSlots has a living process keep its slots for longer than Redis believes
// it, one that is killed lose them within ten seconds, and one that is frozen for longer lose them
// and find them taken.
func TestKilledProcessFreesItsSlots(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	p := slotPolicy(t, testkit.Connect(t, addr), 3)
	process := holdSlots(t, addr)
	deniedFor := func(d time.Duration) {
		t.Helper()
		last := time.Now()
		for start := last; time.Since(start) < d; time.Sleep(100 * time.Millisecond) {
			slot := testkit.Reserve(t, p)
			require.False(t, slot.Result().Allowed && time.Since(last) < 5*time.Second, "the process lives")
			slot.Release() // granted because the machine stood still
			last = time.Now()
		}
	}
	freeAgain := func() (slots []*ginlimit.Reservation) {
		t.Helper()
		require.Eventually(t, func() bool {
			slots = append(slots, testkit.Reserve(t, p))
			return slots[len(slots)-1].Result().Allowed
		}, 40*time.Second, 50*time.Millisecond) // ten, and what a busy machine adds
		return slots
	}
	deniedFor(12 * time.Second)
	require.NoError(t, process.Kill())
	slots := freeAgain()
	for _, slot := range slots {
		slot.Release()
	}
	require.Eventually(t, func() bool { // a release is told in the background
		res, err := p.Peek(t.Context(), "alice")
		return err == nil && res.Remaining == 3
	}, 40*time.Second, 10*time.Millisecond)

	process = holdSlots(t, addr)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	slots = freeAgain()
	require.NoError(t, process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { // it goes on with its three, beside ours
		res, err := p.Peek(t.Context(), "alice")
		return err == nil && !res.Allowed
	}, 40*time.Second, 50*time.Millisecond)
	slots[len(slots)-1].Release()
	deniedFor(2 * time.Second)
}

// TestSlotsWhileRedisIsLost has requests begin before, during and after an outage, in which Redis loses its memory.
func TestSlotsWhileRedisIsLost(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithReplicas(2),
		testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailLocal))
	p := testkit.Must(limiter.Policy("api", ginlimit.InFlight(4)))
	other := slotPolicy(t, testkit.Connect(t, addr), 4)
	before := testkit.Reserve(t, p)
	require.Equal(t, ginlimit.FromRedis, before.Result().Source)
	require.NoError(t, process.Kill())

	during := testkit.Reserve(t, p)
	require.Equal(t, ginlimit.FromLocal, during.Result().Source)
	require.True(t, during.Result().Allowed, "two are this process' share")
	require.False(t, testkit.Reserve(t, p).Result().Allowed, "what began before counts")
	before.Release()
	again := testkit.Reserve(t, p)
	require.True(t, again.Result().Allowed)

	require.NotNil(t, testkit.LaunchRedis(t, addr))
	// It is told of the two, though it knew only of one that has ended.
	var others []*ginlimit.Reservation
	require.Eventually(t, func() bool {
		res, err := other.Peek(t.Context(), "alice")
		return err == nil && res.Source == ginlimit.FromRedis && res.Remaining == 2
	}, 40*time.Second, 20*time.Millisecond)
	for range 2 {
		others = append(others, testkit.Reserve(t, other))
		require.True(t, others[len(others)-1].Result().Allowed)
	}
	require.False(t, testkit.Reserve(t, other).Result().Allowed)
	during.Release()
	again.Release()
	for _, slot := range others {
		slot.Release()
	}
	require.Eventually(t, func() bool {
		res, err := other.Peek(t.Context(), "alice")
		return err == nil && res.Remaining == 4
	}, 40*time.Second, 20*time.Millisecond)
}

// TestSlotsAreNeverPassed has many callers of several processes take slots, with limits of every
// kind beside them, on a server and a cluster.
func TestSlotsAreNeverPassed(t *testing.T) {
	t.Parallel()
	server, cluster := testkit.StartRedis(t), testkit.StartCluster(t, 3)
	for name, connect := range map[string]func() redis.UniversalClient{
		"server":  func() redis.UniversalClient { return testkit.Connect(t, server) },
		"cluster": func() redis.UniversalClient { return testkit.ConnectCluster(t, cluster...) },
	} {
		for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
			testkit.Run(t, name+", "+a.String(), func(t *testing.T) {
				const n = 5
				var inFlight [3]atomic.Int64
				var admitted atomic.Int64
				var all sync.WaitGroup
				for range 4 {
					limiter := testkit.NewLimiter(t, connect(), testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed))
					p := testkit.Must(limiter.Policy(a.String(), ginlimit.PerSecond(1_000_000).WithAlgorithm(a),
						ginlimit.InFlight(n), ginlimit.PerCalendar(1_000_000, ginlimit.CalendarMonth(nil, 1))))
					for caller := range 12 {
						client := caller % len(inFlight)
						all.Go(func() {
							for range 50 {
								slot, err := p.Reserve(t.Context(), fmt.Sprint("client ", client), 1)
								if !assert.NoError(t, err) {
									return
								}
								if slot.Result().Allowed {
									assert.LessOrEqual(t, inFlight[client].Add(1), int64(n))
									admitted.Add(1)
									inFlight[client].Add(-1)
									slot.Release()
								}
							}
						})
					}
				}
				all.Wait()
				require.Positive(t, admitted.Load())
			})
		}
	}
}

// TestSlotsWhileRedisIsFull of invented clients: four processes hold as many of three slots as they
// get. By volatile-ttl Redis evicts the slots' key, and each process then knows its own alone, so
// that up to three are in flight in each. Where Redis evicts nothing, no more than three are, for
// as long as Redis is full. docs/operations.md has what this finds.
func TestSlotsWhileRedisIsFull(t *testing.T) {
	testkit.Nightly(t, "a load of 64 callers for up to a minute, in which processes must report in time")
	t.Parallel()
	for _, c := range []struct {
		policy     string
		least, max int
	}{{"volatile-ttl", 4, 12}, {"noeviction", 3, 3}} {
		testkit.Run(t, c.policy, func(t *testing.T) {
			addr := testkit.StartRedis(t)
			rdb := testkit.Connect(t, addr)
			for name, value := range map[string]string{"maxmemory-policy": c.policy, "maxmemory": "6mb"} {
				require.NoError(t, rdb.ConfigSet(t.Context(), name, value).Err())
			}
			var all []*ginlimit.Policy
			for range 4 {
				all = append(all, slotPolicy(t, testkit.Connect(t, addr), 3))
			}
			require.True(t, testkit.Reserve(t, all[0]).Result().Allowed)
			inFlight, full := 1, atomic.Int64{}
			flood := testkit.NewLimiter(t, testkit.Connect(t, addr))
			done := make(chan struct{})
			var clients sync.WaitGroup
			defer clients.Wait()
			defer close(done)
			var next atomic.Int64
			for range 64 {
				clients.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						if _, err := flood.Allow(t.Context(), fmt.Sprint("invented ", next.Add(1)), ginlimit.PerHour(100)); err != nil {
							full.Add(1)
						}
					}
				})
			}
			var fullAt time.Time // nothing can be written that was not there
			for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(5 * time.Millisecond) {
				for _, p := range all {
					slot, err := p.Reserve(t.Context(), "alice", 1)
					if err == nil && slot.Result().Allowed {
						inFlight++
					}
				}
				if fullAt.IsZero() && full.Load() > 10_000 {
					fullAt = time.Now()
					require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "4mb").Err()) // at no moment is there room
				}
				if inFlight >= c.least && (c.policy != "noeviction" || !fullAt.IsZero() && time.Since(fullAt) > 13*time.Second) {
					break
				}
				if !fullAt.IsZero() && time.Since(fullAt) > 12*time.Second { // slots that nobody reports are lost after 10 s
					require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
				}
			}
			t.Logf("%d in flight of 3 after %d invented clients, of whom %d were denied", inFlight, next.Load(), full.Load())
			require.GreaterOrEqual(t, inFlight, c.least)
			require.LessOrEqual(t, inFlight, c.max)
		})
	}
}

// setClockBack has each key of a server expire later, as if its clock was set back.
func setClockBack(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "ginlimit:*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()+d).Err())
	}
}

// TestSlotsAfterRedisClockIsSetBack has two processes hold slots, and one of them wait for another,
// while the clock is set back by more than the age of their keys.
func TestSlotsAfterRedisClockIsSetBack(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	first := slotPolicy(t, rdb, 3)
	second := testkit.Must(testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed)).
		Policy("api", ginlimit.InFlight(3), ginlimit.WithQueue(1, time.Minute)))
	testkit.Reserve(t, first)
	held := testkit.Reserve(t, first)
	testkit.Reserve(t, second)
	got := make(chan ginlimit.Result, 1)
	go func() {
		slot, err := second.Reserve(t.Context(), "alice", 1)
		assert.NoError(t, err)
		got <- slot.Result()
	}()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return len(rdb.Keys(t.Context(), "*:turns:*").Val()) > 0
	}))
	setClockBack(t, rdb, time.Hour)
	for range 3 {
		require.Equal(t, ginlimit.CauseInFlight, testkit.Reserve(t, first).Result().Cause)
	}
	held.Release()
	assert.True(t, (<-got).Allowed)
	lasts := rdb.PTTL(t.Context(), "ginlimit:{api|alice}:slots").Val()
	assert.Positive(t, lasts)
	assert.LessOrEqual(t, lasts, 10*time.Second, "a process that dies now frees its slots")
}

// TestALoopLeavesTheLastSlotToOthers, though its attempts follow its releases at once.
func TestALoopLeavesTheLastSlotToOthers(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	busy, other := slotPolicy(t, testkit.Connect(t, addr), 1), slotPolicy(t, testkit.Connect(t, addr), 1)
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() {
			for ctx.Err() == nil {
				work, err := busy.Reserve(ctx, "alice", 1)
				if err != nil || !work.Result().Allowed {
					time.Sleep(2 * time.Millisecond)
					continue
				}
				time.Sleep(5 * time.Millisecond)
				work.Release()
			}
		})
	}
	t.Cleanup(loops.Wait)
	t.Cleanup(cancel)
	within, done := context.WithTimeout(t.Context(), time.Minute) // 20 times take a second
	defer done()
	for range 20 {
		require.True(t, testkit.BecomesTrue(within.Done(), func() bool {
			work := testkit.Reserve(t, other)
			work.Release()
			return work.Result().Allowed
		}))
	}
}
