package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// TestSeveralLimitsWhileTheirSlotMigrates has keys of one client on either node, where Redis
// answers every call on several of them TRYAGAIN. Each decision must be that of Redis, and that of
// a limiter in this process.
func TestSeveralLimitsWhileTheirSlotMigrates(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	first := testkit.Connect(t, m.Addrs[0])
	quota := ginlimit.PerCalendar(13, ginlimit.CalendarMonth(nil, 1+(time.Now().UTC().Day()+14)%28))
	for _, algorithm := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		sets := [][]ginlimit.Limit{
			{{Rate: 12, Period: 23 * time.Hour}, ginlimit.PerDay(10), {Rate: 15, Period: 25 * time.Hour}},
			{{Rate: 12, Period: 23 * time.Hour}, quota},
			{quota, ginlimit.PerDay(10), {Rate: 15, Period: 25 * time.Hour}},
		}
		limiter, log := testkit.LoggedLimiter(t, rdb, testkit.WithAlgorithm(algorithm), ginlimit.WithDenyCache(0))
		defer func() { require.Empty(t, log.String(), "it is done, so nothing is denied") }()
		model := testkit.NewLocal(t, testkit.WithAlgorithm(algorithm))
		random := rand.New(rand.NewPCG(1, uint64(algorithm)))
		for i := range 24 {
			client, limits := fmt.Sprintf("client %d of %s", i, algorithm), sets[i%len(sets)]
			step := func(on *testkit.Limiter, op, n int) (ginlimit.Result, error) {
				switch op {
				case 0:
					return on.AllowUpTo(t.Context(), client, n, limits...)
				case 1:
					return ginlimit.Result{}, on.Refund(t.Context(), client, n, limits...)
				case 2:
					return on.Peek(t.Context(), client, limits...)
				case 3:
					return ginlimit.Result{}, on.Reset(t.Context(), client, limits...)
				case 4:
					return ginlimit.Result{}, on.Block(t.Context(), client, time.Hour, limits...)
				case 5:
					r, err := on.Reserve(t.Context(), client, n, limits...)
					if err == nil {
						err = r.Settle(t.Context(), 7*n%11)
					}
					return r.Result(), err
				}
				return on.AllowN(t.Context(), client, n, limits...)
			}
			blocked := false
			for j := range 40 {
				if j == 3 && !m.Begin(t, testkit.RedisKey(client, limits[0])) {
					break
				}
				if j == 10 { // now and then one of the keys is on the other node, and the others are not
					keys, err := first.Keys(t.Context(), "ginlimit:{test|"+client+"}:*").Result()
					require.NoError(t, err)
					for _, key := range keys[:min(len(keys), random.IntN(3))] {
						m.Move(t, key)
					}
				}
				op, n := random.IntN(13), 1+random.IntN(6)
				want, err := step(model, op, n)
				require.NoError(t, err)
				got, err := step(limiter, op, n)
				require.NoError(t, err)
				what := fmt.Sprintf("step %d: op %d of %d for %s", j, op, n, client)
				require.Equal(t, want.Allowed, got.Allowed, what)
				require.Equal(t, want.Granted, got.Granted, what)
				require.Equal(t, want.Remaining, got.Remaining, what)
				if blocked = blocked && op != 3 || op == 4; !blocked { // else which block ends last is a matter of milliseconds
					require.Equal(t, want.Limit, got.Limit, what)
					require.InDelta(t, want.RetryAfter.Seconds(), got.RetryAfter.Seconds(), 30, what)
					require.InDelta(t, want.ResetAfter.Seconds(), got.ResetAfter.Seconds(), 30, what)
				}
				if op == 0 || op == 2 || op > 4 {
					require.Equal(t, ginlimit.FromRedis, got.Source, what)
				}
			}
		}
	}
}

// TestNoLimitIsPassedWhileItsSlotMigrates has many callers take tokens of one client whose keys are on either node.
func TestNoLimitIsPassedWhileItsSlotMigrates(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	limiter := testkit.NewLimiter(t, rdb)
	limits := []ginlimit.Limit{ginlimit.PerDay(50), {Rate: 40, Period: 23 * time.Hour}}
	for i := range 4 {
		client := fmt.Sprint("client ", i)
		if !m.Begin(t, testkit.RedisKey(client, limits[0])) {
			continue
		}
		var admitted sync.Map
		var all sync.WaitGroup
		for caller := range 16 {
			all.Go(func() {
				for j := range 10 {
					r, err := limiter.Allow(context.Background(), client, limits...)
					if assert.NoError(t, err) && r.Allowed {
						admitted.Store([2]int{caller, j}, true)
					}
				}
			})
		}
		all.Wait()
		n := 0
		admitted.Range(func(any, any) bool { n++; return true })
		require.LessOrEqual(t, n, 40)
		for { // what others held for a moment has been given back
			r, err := limiter.Allow(t.Context(), client, limits...)
			require.NoError(t, err)
			if !r.Allowed {
				require.Equal(t, limits[1], r.Limit)
				break
			}
			n++
		}
		require.Equal(t, 40, n)
		r, err := limiter.Peek(t.Context(), client, limits[0])
		require.NoError(t, err)
		require.Equal(t, 10, r.Remaining)
	}
}

// takes has a client's hook count the commands on several keys, and keep from Redis those that charge one key.
type takes struct {
	several atomic.Int64
	kept    string // the key; "" keeps none
}

func (*takes) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*takes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *takes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if n, _ := args[min(2, len(args)-1)].(int); strings.HasPrefix(cmd.Name(), "eval") && n > 1 {
			h.several.Add(1)
		} else if n == 1 && fmt.Sprint(args[3]) == h.kept && args[4] == "take" && args[6] != int64(0) {
			err := errors.New("kept from Redis")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// TestWhatWasTakenOfAMigratingClientIsGivenBackAfterAnError: all limits are charged or none. Nor
// are they tried together again for a while.
func TestWhatWasTakenOfAMigratingClientIsGivenBackAfterAnError(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	for _, algorithm := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
		defer rdb.Close()
		hook := &takes{}
		rdb.AddHook(hook)
		limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(algorithm),
			ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithTimeout(time.Second))
		limits := []ginlimit.Limit{ginlimit.PerDay(5), {Rate: 4, Period: 23 * time.Hour}}
		client, i := "", 0
		for client = "client"; ; i++ {
			client = fmt.Sprintf("client %d of %s", i, algorithm)
			_, err := limiter.Allow(t.Context(), client, limits...)
			require.NoError(t, err)
			if m.Begin(t, testkit.RedisKeyOf(algorithm, client, limits[0])) {
				break
			}
		}
		m.Move(t, testkit.RedisKeyOf(algorithm, client, limits[0]))
		before := hook.several.Load()
		r, err := limiter.Allow(t.Context(), client, limits...)
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining)
		require.Equal(t, before+1, hook.several.Load())

		start := time.Now()
		r, err = limiter.Allow(t.Context(), client, limits...)
		require.NoError(t, err)
		require.Equal(t, 1, r.Remaining)
		if again := hook.several.Load() > before+1; time.Since(start) < time.Second/2 {
			require.False(t, again, "it was seen to migrate a moment ago")
		}

		hook.kept = testkit.RedisKeyOf(algorithm, client, limits[1])
		_, err = limiter.Allow(t.Context(), client, limits...)
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		hook.kept = ""
		r, err = limiter.Peek(t.Context(), client, limits[0])
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining, "what was taken of the other limit is back")

		require.Eventually(t, func() bool {
			before := hook.several.Load()
			_, err := limiter.Peek(t.Context(), client, limits...)
			return assert.NoError(t, err) && hook.several.Load() > before
		}, 5*time.Second, 50*time.Millisecond, "after a while they are tried together")
	}
}

// TestMovedNamesTheClientToUse has a cluster refuse keys of another node. Only a client of one
// server is the wrong one: the cluster client of the test is told wrong slots.
func TestMovedNamesTheClientToUse(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 2)
	one := testkit.Connect(t, addrs[0])
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRedirects: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}}}, nil
		},
	})
	defer cluster.Close()
	for _, rdb := range []redis.UniversalClient{one, cluster} {
		limiter, log := testkit.LoggedLimiter(t, rdb)
		for i := range 20 {
			_, _ = limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerDay(5)) // those of the other node fail
		}
		require.Contains(t, log.String(), "MOVED")
		require.Equal(t, rdb == one, strings.Contains(log.String(), "redis.NewClusterClient"), log.String())
	}
}
