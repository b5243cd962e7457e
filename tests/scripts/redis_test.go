//go:build integration

package scripts_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// TestSlotsOfManyProcessesOnRedis are what these have reported. A key that is to live shorter stands for a time that
// has passed.
func TestSlotsOfManyProcessesOnRedis(t *testing.T) {
	t.Parallel()
	const processes, slack = 600, 2000 // milliseconds for what runs late
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	g, r := &guardTrace{rdb: rdb}, rand.New(rand.NewPCG(1, 1))
	ctx := t.Context()
	type report struct{ held, until int } // until when it holds, as the key has it
	model := map[string]report{}
	for i := range 4000 {
		process, held := fmt.Sprintf("P%03d", r.IntN(processes)), 1+r.IntN(9)
		require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, process, i, held, 0)))
		value := rdb.HGetAll(ctx, slotKey).Val()
		var ends, first, all, count, total int
		_, _ = fmt.Sscan(value["all"], &ends, &first, &all, &count) // and where the walk is
		delete(value, "all")
		if count == 1 {
			clear(model)
		}
		model[process] = report{held, ends}
		now, found := ends-slotLife, map[string]int{}
		for name, entry := range value {
			f := strings.Fields(entry)
			slots, until := testkit.Must(strconv.Atoi(f[2])), testkit.Must(strconv.Atoi(f[3]))
			require.LessOrEqual(t, first, until)
			require.Greater(t, until, now-slack, value)
			found[name], total = slots, total+slots
		}
		require.Equal(t, []int{total, len(found)}, []int{all, count})
		for name, of := range model {
			if of.until > now+slack {
				require.Equal(t, of.held, found[name], "%s in %s", name, value)
			}
		}
		if left := slotLife - r.IntN(400); r.IntN(3) == 0 {
			require.NoError(t, rdb.PExpire(ctx, slotKey, time.Duration(left)*time.Millisecond).Err())
		}
	}
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
			require.GreaterOrEqual(t, int(used[0])-own, max(processes, left-most))
			left = int(used[0]) - own
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
