//go:build integration

package scripts_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

func TestScriptIsLoadedOnceAndCalledBySHA(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, rdb)
	for range 10 {
		testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(50)))
	}
	calls := testkit.CommandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.Equal(t, "10", calls["evalsha"])
	assert.NotContains(t, calls, "eval")
}

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

// Clients that share calls on a cluster and on a ring.

// reading is the result of a call for n tokens.
type reading struct {
	n int
	r ginlimit.Result
}

// crowd is many clients of several processes, and the model of their buckets.
type crowd struct {
	limiters []*testkit.Limiter
	clients  []string
	limit    ginlimit.Limit
	model    *testkit.BucketModel
	random   *rand.Rand
}

func newCrowd(t *testing.T, size int, connect func() redis.UniversalClient,
	opts ...ginlimit.LimiterOption) *crowd {
	c := &crowd{limit: ginlimit.PerDay(20), model: testkit.NewBucketModel(), random: rand.New(rand.NewPCG(7, 7))}
	for range 3 {
		rdb := connect()
		t.Cleanup(func() { _ = rdb.Close() })
		limiter := testkit.NewLimiter(t, rdb, append(opts, ginlimit.WithDenyCache(0))...)
		testkit.Must(limiter.Peek(t.Context(), "the servers are known", c.limit))
		c.limiters = append(c.limiters, limiter)
	}
	for i := range size {
		c.clients = append(c.clients, fmt.Sprint("client ", i))
	}
	return c
}

// ask has every client take tokens of every process at once, by charges of one size for many.
func (c *crowd) ask(t *testing.T, fails map[string]bool) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	readings := map[string][]reading{}
	for _, limiter := range c.limiters {
		for _, client := range c.clients {
			n := 1 + c.random.IntN(2)*c.random.IntN(2)*c.random.IntN(4)
			for range 1 + c.random.IntN(3)*c.random.IntN(2) {
				all.Go(func() {
					r, err := limiter.AllowN(t.Context(), client, n, c.limit)
					if fails[client] {
						assert.ErrorIs(t, err, ginlimit.ErrUnavailable, client)
						return
					}
					if !assert.NoError(t, err, client) {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					readings[client] = append(readings[client], reading{n, r})
				})
			}
		}
	}
	all.Wait()
	for _, client := range c.clients {
		c.check(t, client, readings[client])
	}
}

// check compares the results of one client's callers with the model: in some order, the model must
// return the same results.
func (c *crowd) check(t *testing.T, client string, readings []reading) {
	t.Helper()
	limits := []ginlimit.Limit{c.limit}
	left := map[int]bool{c.model.Take(client, 0, 1, limits).Remaining: true}
	slices.SortFunc(readings, func(a, b reading) int { return cmp.Compare(b.r.Remaining, a.r.Remaining) })
	for _, a := range readings {
		if a.r.Allowed {
			want := c.model.Take(client, int64(a.n), int64(a.n), limits)
			require.True(t, want.Allowed, "%s: %+v", client, a)
			require.Equal(t, want.Remaining, a.r.Remaining, "%s: %+v", client, a)
			left[want.Remaining] = true
		}
	}
	for _, a := range readings {
		require.Equal(t, ginlimit.FromRedis, a.r.Source)
		if !a.r.Allowed {
			require.Less(t, a.r.Remaining, a.n, client)
			require.True(t, left[a.r.Remaining], "%s: %+v", client, a)
		}
	}
}

// change has some clients get back tokens, and others all of them. The record of a bucket may be on another node
// while its slot migrates: then nothing is changed.
func (c *crowd) change(t *testing.T, fails map[string]bool) {
	limits := []ginlimit.Limit{c.limit}
	for i, client := range c.clients {
		if fails[client] {
			continue
		}
		limiter := c.limiters[i%len(c.limiters)]
		switch n := 1 + c.random.IntN(5); c.random.IntN(8) {
		case 0, 1:
			if made(t, limiter.Refund(t.Context(), client, n, c.limit)) {
				c.model.Refund(client, int64(n), limits)
			}
		case 2:
			if made(t, limiter.Reset(t.Context(), client, c.limit)) {
				c.model.Reset(client, limits)
			}
		}
		r := testkit.Must(limiter.Peek(t.Context(), client, c.limit))
		require.Equal(t, c.model.Take(client, 0, 1, limits).Remaining, r.Remaining, client)
	}
}

// made reports whether a change was made: Redis refuses one on several keys while their slot migrates.
func made(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		require.ErrorContains(t, err, "TRYAGAIN")
	}
	return err == nil
}

// TestManyKeysOfAClusterShareACall, and of a ring.
func TestManyKeysOfAClusterShareACall(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() ([]string, redis.UniversalClient){
		"cluster": func() ([]string, redis.UniversalClient) {
			addrs := testkit.StartCluster(t, 3)
			return addrs, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		},
		"ring": func() ([]string, redis.UniversalClient) {
			addrs := []string{testkit.StartRedis(t), testkit.StartRedis(t), testkit.StartRedis(t)}
			return addrs,
				redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addrs[0], "b": addrs[1], "c": addrs[2]}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			addrs, rdb := start()
			defer rdb.Close()
			limiter := testkit.NewLimiter(t, rdb)
			testkit.Must(limiter.Peek(t.Context(), "k", ginlimit.PerDay(1)))
			testkit.AskMany(t, limiter)
			calls := 0
			for _, addr := range addrs {
				calls += testkit.ScriptCalls(t, testkit.Connect(t, addr))
			}
			t.Logf("1,200 decisions on 200 keys in %d calls of the script", calls)
			require.Less(t, calls, 700)
		})
	}
}

// TestUserOfSomeKeysOnACluster may not use those of some clients: they have no decision, and the others have theirs.
func TestUserOfSomeKeysOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	for _, addr := range addrs {
		require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "+@all",
			"~ginlimit:{test|client?1*", "~ginlimit:{test|the?servers*").Err())
	}
	c := newCrowd(t, 120, func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
	})
	fails := map[string]bool{}
	for i, client := range c.clients {
		fails[client] = fmt.Sprint(i)[0] != '1'
	}
	for range 8 {
		c.ask(t, fails)
		c.change(t, fails)
	}
}

// noPermission counts the batches in which a command was not permitted.
type noPermission struct{ batches *atomic.Int64 }

func (noPermission) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h noPermission) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.count(cmd)
		return err
	}
}

func (h noPermission) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		h.count(cmds...)
		return err
	}
}

func (h noPermission) count(cmds ...redis.Cmder) {
	if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return redis.HasErrorPrefix(cmd.Err(), "NOPERM") }) {
		h.batches.Add(1)
	}
}

// TestServerWithoutScriptsOfSeveralSlots refuses them: it has the others, and the user may not bring any.
func TestServerWithoutScriptsOfSeveralSlots(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	source, _ := testkit.ScriptOfLimit(t, ginlimit.TokenBucket, ginlimit.PerDay(1))
	for _, addr := range addrs {
		rdb := testkit.Connect(t, addr)
		require.NoError(t, rdb.ScriptLoad(t.Context(), source).Err())
		require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-eval").Err())
	}
	var refused atomic.Int64
	c := newCrowd(t, 120, func() redis.UniversalClient {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(noPermission{&refused}) })
		return rdb
	})
	for range 8 {
		c.ask(t, nil)
		c.change(t, nil)
	}
	t.Logf("%d batches refused", refused.Load())
	require.Positive(t, refused.Load())
	require.Less(t, refused.Load(), int64(60), "they learn from the first ones")
}

// TestSlotsOfManyProcessesOnRedis are what these have reported. A key that is to live shorter stands for a time that
// has passed.
func TestSlotsOfManyProcessesOnRedis(t *testing.T) {
	t.Parallel()
	const processes, slack = 100, 500 // milliseconds for what runs late
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	g, r := &guardTrace{rdb: rdb}, rand.New(rand.NewPCG(1, 1))
	ctx := t.Context()
	type report struct{ held, until int } // until when it holds, as the key has it
	model := map[string]report{}
	for i := range 4000 {
		process, held := fmt.Sprintf("P%03d", r.IntN(processes)), 1+r.IntN(9)
		require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, process, i, held, 0)))
		value := rdb.Get(ctx, slotKey).Val()
		var ends, first, all int
		if _, err := fmt.Sscanf(value, "%d %d %d", &ends, &first, &all); err == nil {
			now, total := ends-slotLife, 0
			model[process] = report{held, ends}
			found := map[string]int{}
			entries := strings.Split(value[strings.IndexAny(value, ".~")+1:], ";")
			for _, entry := range entries[:len(entries)-1] {
				var name string
				var ended, held, slots, until int
				testkit.Must(fmt.Sscanf(entry, " %s %d %d %d %d", &name, &ended, &held, &slots, &until))
				require.LessOrEqual(t, first, until)
				require.Greater(t, until, now-slack, value)
				found[name], total = slots, total+slots
			}
			require.Equal(t, total, all)
			for name, of := range model {
				if of.until > now+slack {
					require.Equal(t, of.held, found[name], "%s in %s", name, value)
				}
			}
		} else {
			clear(model)
		}
		if left := slotLife - r.IntN(400); r.IntN(3) == 0 {
			require.NoError(t, rdb.PExpire(ctx, slotKey, time.Duration(left)*time.Millisecond).Err())
		}
	}
}
