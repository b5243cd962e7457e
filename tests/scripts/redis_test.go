//go:build integration

package scripts_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// How the script comes to a server.

// TestScriptFlushLosesNoDecision answers the fault of system A: after SCRIPT FLUSH every request was denied.
func TestScriptFlushLosesNoDecision(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, rdb)
	const callers, each = 8, 200
	limit := ginlimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: callers * each / 2}

	ctx, stop := context.WithCancel(t.Context())
	var flusher, all sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = rdb.ScriptFlush(ctx).Err()
		}
	})
	var mu sync.Mutex
	admitted := 0
	for range callers {
		all.Go(func() {
			for range each {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if !assert.NoError(t, err) {
					return
				}
				if r.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	stop()
	flusher.Wait()
	assert.Equal(t, limit.Burst, admitted)
}

func TestScriptIsLoadedWhenRedisIsFirstReached(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + testkit.FreePort(t)
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	limiter := testkit.NewLimiter(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NotNil(t, testkit.LaunchRedis(t, addr))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
		return err == nil
	}))
	calls := testkit.CommandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.NotContains(t, calls, "eval")
}

// TestUserOfSomeKeysOnACluster may not use those of some clients: they have no decision, and the others have theirs.
func TestUserOfSomeKeysOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	for _, addr := range addrs {
		require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "+@all",
			"~ginlimit:{test|client?1*", "~ginlimit:{test|the?servers*").Err())
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
	defer rdb.Close()
	limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithDenyCache(0)), ginlimit.PerDay(20)
	testkit.Must(limiter.Peek(t.Context(), "the servers are known", limit))
	clients, each := 120, 8
	mayAsk := func(client int) bool { return fmt.Sprint(client)[0] == '1' }
	var all sync.WaitGroup
	for i := range clients * each {
		all.Go(func() {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i%clients), limit)
			assert.Equal(t, mayAsk(i%clients), err == nil, "client %d: %v", i%clients, err)
		})
	}
	all.Wait()
	for i := range clients {
		if mayAsk(i) {
			r := testkit.Must(limiter.Peek(t.Context(), fmt.Sprint("client ", i), limit))
			require.Equal(t, limit.Rate-each, r.Remaining, "client %d", i)
		}
	}
}

// TestSlotsOfManyProcessesOnRedis are what these have taken and reported, and the entry all has the sums. A key that is
// to live shorter stands for a time that has passed.
func TestSlotsOfManyProcessesOnRedis(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	for processes, passes := range map[int]int{2: 400, 100: 400, 1200: 40} { // the last are walked in several calls
		g, r := &guardTrace{rdb: rdb}, rand.New(rand.NewPCG(uint64(processes), 1))
		require.NoError(t, rdb.Del(t.Context(), slotKey).Err())
		model := map[string]slotReport{}
		for step := range 3000 {
			ended, held := 2*step, r.IntN(4)
			process := fmt.Sprintf("P%04d", r.IntN(processes))
			g.what = fmt.Sprintf("%d processes, step %d", processes, step)
			switch x := r.IntN(8); {
			case x < 4:
				capacity, own := int64(1<<40), model[process]
				if x == 0 {
					capacity = 1
				}
				used := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", process, 0, capacity,
					ended, held, fmt.Sprint(ended+1, ","), 0))[0]
				others := used >> 31
				if used &= 1<<31 - 1; used < capacity {
					model[process] = slotReport{held + 1, 0}
				}
				total := g.slotsOnRedis(t, model, process, used < capacity)
				if used < capacity {
					require.EqualValues(t, total-1, used, g.what)
					require.EqualValues(t, total-1-held, others, g.what)
				} else if own.until > 0 {
					require.GreaterOrEqual(t, int(used), held, g.what)
				}
			default: // none is held after half of the reports
				if x < 6 {
					held = 0
				}
				require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, process, ended, held, 0)))
				if model[process] = (slotReport{held, 0}); held == 0 {
					delete(model, process)
				}
				g.slotsOnRedis(t, model, process, held > 0)
			}
			if left := slotLife - r.IntN(passes); r.IntN(3) == 0 {
				require.NoError(t, rdb.PExpire(t.Context(), slotKey, time.Duration(left)*time.Millisecond).Err())
			}
		}
	}
}

// slotReport is how many slots a process has, and until when, as the key has it.
type slotReport struct{ held, until int }

// slotsOnRedis compares the key with the model, in which the slots of a process were written now or not, and returns
// how many there are.
func (g *guardTrace) slotsOnRedis(t *testing.T, model map[string]slotReport, process string, written bool) (all int) {
	t.Helper()
	const slack = 2000 // milliseconds for what runs late, and for those that the next calls remove
	value := g.rdb.HGetAll(t.Context(), slotKey).Val()
	ttl := int(g.rdb.PTTL(t.Context(), slotKey).Val().Milliseconds())
	var ends, first, count, total int
	_, _ = fmt.Sscan(value["all"], &ends, &first, &all, &count) // and where the walk is
	delete(value, "all")
	now, found := ends-ttl, map[string]int{}
	if written {
		model[process] = slotReport{model[process].held, ends}
	}
	if count == 1 && written { // alone: times begin anew
		for name, of := range model {
			if name != process {
				require.Less(t, of.until, int(g.base)+slack, "%s: %s is not alone", g.what, process)
				delete(model, name)
			}
		}
	}
	g.base = int64(now)
	for name, entry := range value {
		f := strings.Fields(entry)
		slots, until := testkit.Must(strconv.Atoi(f[2])), testkit.Must(strconv.Atoi(f[3]))
		if until < first || until <= now-slack {
			require.Fail(t, "an end is wrong", "%s: %s of %q at %d, first %d", g.what, name, entry, now, first)
		}
		found[name], total = slots, total+slots
	}
	require.Equal(t, []int{total, len(found)}, []int{all, count}, "%s: %v", g.what, value)
	for name, of := range model {
		switch {
		case of.until > now+slack && of.held != found[name]:
			require.Fail(t, "a wrong number of slots", "%s: %d, want %d, %s in %v", g.what, found[name], of.held, name, value)
		case of.until < now-slack:
			delete(model, name)
		}
	}
	return all
}

// manySlots has as many processes hold a slot each that has ended, and as many others one that has not.
func manySlots(t *testing.T, rdb *redis.Client, key string, processes int) {
	t.Helper()
	fields := []any{"all", fmt.Sprintf("1000000 5000 %d %[1]d", 2*processes)}
	for i := range 2 * processes {
		ends := 5000
		if i >= processes {
			ends = 1_000_000
		}
		fields = append(fields, fmt.Sprint("P", i), fmt.Sprintf("1 1 1 %d ", ends))
	}
	setSlots(t, rdb, key, 10*time.Second, fields...)
}

// TestACallRemovesFewProcesses of thousands that have died at once, so that no call holds Redis up. Those that it
// leaves count, and the next calls remove them, whether these are granted a slot or not.
func TestACallRemovesFewProcesses(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	g := &guardTrace{rdb: rdb}
	const processes, most = 2048, 512 // HSCAN may return more than it is asked for
	for _, capacity := range []int{1, 1_000_000} {
		manySlots(t, rdb, slotKey, processes)
		calls := 0
		for left, granted := 2*processes, 0; left > processes; granted++ {
			used := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "PX", 0, capacity,
				granted, granted, fmt.Sprint(granted+1, ","), 0))
			if capacity == 1 {
				granted = -1 // every call is denied
			}
			own := max(0, granted)
			others := int(used[0] >> 31)
			require.EqualValues(t, others+own, used[0]&(1<<31-1))
			require.GreaterOrEqual(t, others, max(processes, left-most))
			left = others
			require.EqualValues(t, left+min(1, granted+1)+1, rdb.HLen(t.Context(), slotKey).Val())
			require.Less(t, calls, processes/64, "each removes some")
			calls++
		}
		require.Greater(t, calls, processes/most)
	}
}

// TestAReportRemovesFewProcesses of all its keys together.
func TestAReportRemovesFewProcesses(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	g := &guardTrace{rdb: rdb}
	keys, args := []string{}, []any{"PX"}
	for i := range 10 {
		keys, args = append(keys, fmt.Sprint(i)), append(args, 1, 1, 0)
		manySlots(t, rdb, keys[i], 100)
	}
	require.Empty(t, testkit.Must(g.eval(t, wire.Report, keys, args...)))
	entries := 0
	for _, key := range keys {
		entries += int(rdb.HLen(t.Context(), key).Val())
	}
	removed := 10*(2*100+2) - entries
	require.Positive(t, removed)
	require.LessOrEqual(t, removed, 512)
}

// TestLongKeysAreFreedInTheBackground: a reset of a long log, or of what else may be at a key, does not
// hold Redis up while it frees memory.
func TestLongKeysAreFreedInTheBackground(t *testing.T) {
	t.Parallel()
	rdb, ctx := testkit.Connect(t, testkit.StartRedis(t)), t.Context()
	g := &guardTrace{rdb: rdb}
	const key, period = "{k}:long", 3_600_000
	for name, reset := range map[string]struct {
		script int
		args   []any
	}{
		"a sliding window": {wire.Sliding, []any{"reset", 1, 0, period, "sliding", 1_000_000}},
		"no token bucket":  {wire.Tokens, []any{"reset", 1, 0, 1, 100, 1000}},
		"no fixed window":  {wire.Fixed, []any{"reset", 1, 0, period, "fixed", 1000}},
		"no ban":           {wire.BanOrSlots, []any{"reset", 1, 0, "ban", 1000, 1000, 1, 0, 0, 0}},
		"no slots":         {wire.BanOrSlots, []any{"reset", 1, 0, "slots", "P", 0, 4, 0, 0, "", 0}},
	} {
		values := []any{fmt.Sprintf("0 100000 %d", 100_000+period)} // see kind/sliding.lua
		for i := range 100_000 {
			values = append(values, i+1, i+1)
		}
		require.NoError(t, rdb.RPush(ctx, key, values...).Err())
		require.NoError(t, rdb.PExpire(ctx, key, period*time.Millisecond).Err())
		before := freedInBackground(t, rdb)
		testkit.Must(g.eval(t, reset.script, []string{key}, reset.args...))
		require.Zero(t, rdb.Exists(ctx, key).Val(), name)
		require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool { return freedInBackground(t, rdb) > before }), name)
	}
}

// freedInBackground returns how many values a server has freed in the background.
func freedInBackground(t *testing.T, rdb *redis.Client) int {
	info := testkit.Must(rdb.Info(t.Context(), "memory").Result())
	m := regexp.MustCompile(`lazyfreed_objects:(\d+)`).FindStringSubmatch(info)
	require.NotNil(t, m)
	return testkit.Must(strconv.Atoi(m[1]))
}
