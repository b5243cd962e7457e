package top

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func used(t *testing.T, rdb redis.UniversalClient, policy string) []Client {
	t.Helper()
	all := testkit.Must(Used(t.Context(), rdb, ginlimit.DefaultPrefix, policy))
	return all
}

// TestUse is what was charged in the end, in all processes: no denials, dry runs, skips, or what another policy denied.
func TestUse(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		r, other, without := start(t, b.Redis, WithUsage()), start(t, b.Connect(t), WithUsage()), start(t, b.Connect(t))
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithClientObserver(r.Observe),
			ginlimit.WithClientObserver(without.Observe), testkit.ByUser())
		ten := ginlimit.WithCost(func(*gin.Context) int { return 10 })
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100), ten,
			ginlimit.WithSettle(func(c *gin.Context) int { return len(c.GetHeader("Used")) }),
			ginlimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("Skip") != "" }))
		dry := testkit.NewPolicy(t, l, "dry", ginlimit.PerHour(100), ten, ginlimit.WithDryRun())
		none := testkit.NewPolicy(t, l, "none", ginlimit.Prohibited())
		free := testkit.NewPolicy(t, l, "free", ginlimit.Unlimited(), ten)
		router := gin.New()
		router.GET("/", ginlimit.AllOf(p, dry, free))
		router.GET("/none", ginlimit.AllOf(p, none, free))
		get := func(path, user, used string, more ...func(*http.Request)) {
			testkit.Get(router, path, append(more, testkit.User(user), testkit.With("Used", used))...)
		}
		get("/", "less", "1234")
		get("/", "more", "123456789012345")
		get("/", "nothing", "")
		get("/none", "denied", "1234")
		get("/", "skipped", "1234", testkit.With("Skip", "1"))
		ctx := t.Context()
		testkit.Must(p.AllowUpTo(ctx, "up to", 70))
		require.Equal(t, 30, testkit.Must(p.AllowUpTo(ctx, "up to", 70)).Granted)
		require.False(t, testkit.Must(p.AllowN(ctx, "up to", 1)).Allowed)
		require.NoError(t, p.WaitN(ctx, "waits", 9))
		require.NoError(t, testkit.Must(p.Reserve(ctx, "cancels", 9)).Cancel(ctx))
		stays := testkit.Must(p.Reserve(ctx, "settles", 20))
		other.Observe(ctx, ginlimit.Event{Name: "p", Charged: 50}, "other")
		time.Sleep(2 * time.Minute) // so the settlement is of another minute
		require.NoError(t, stays.Settle(ctx, 18))
		stays.Release()
		time.Sleep(DefaultInterval)
		synctest.Wait()
		require.Equal(t, []Client{{Key: "up to", Tokens: 100}, {Key: "other", Tokens: 50}, {Key: "settles", Tokens: 18},
			{Key: "more", Tokens: 15}, {Key: "waits", Tokens: 9}, {Key: "less", Tokens: 4}}, used(t, b.Redis, "p"))
		require.Len(t, used(t, b.Redis, "free"), 4, "also without a limit")
		require.Empty(t, used(t, b.Redis, "dry"))
		require.Empty(t, used(t, b.Redis, "none"))
		require.Equal(t, []Client{{Key: "up to", Denials: 2}}, denied(t, b.Redis, "p"), "by both reporters")
		require.Empty(t, testkit.Must(Minutes(ctx, b.Redis, ginlimit.DefaultPrefix, "free"))[0].Allowed, "without WithOutcomes")
	})
}

// TestUseKeepsItsBounds, if most of what clients take is given back.
func TestUseKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	random := rand.New(rand.NewPCG(1, 3))
	for name, next := range streams(random) {
		r := testkit.Must(New(rdb, WithUsage()))
		net, gross := map[string]int64{}, int64(0)
		for range 5000 {
			key, estimate, actual := next(), 1+random.IntN(1000), random.IntN(300)
			r.Observe(t.Context(), ginlimit.Event{Name: name, Outcome: ginlimit.OutcomeAllowed, Charged: estimate}, key)
			r.Observe(t.Context(), ginlimit.Event{Name: name, Outcome: ginlimit.OutcomeSettled, Charged: actual - estimate}, key)
			net[key] += int64(actual)
			gross += int64(max(estimate, actual))
		}
		require.NoError(t, r.Close())
		listed, last := map[string]bool{}, int64(math.MaxInt64)
		for _, c := range used(t, rdb, name) {
			require.LessOrEqual(t, c.Tokens, last, "the largest first")
			require.LessOrEqual(t, net[c.Key], c.Tokens, name)
			require.LessOrEqual(t, c.Tokens-c.Error, net[c.Key], name)
			require.LessOrEqual(t, int64(0), c.Tokens-c.Error)
			listed[c.Key], last = true, c.Tokens
		}
		for key, n := range net {
			require.True(t, listed[key] || n*counters <= gross, "%s: %s has %d of %d and is missing", name, key, n, gross)
		}
	}
}

// TestUseCostsNoCallMore than denials do.
func TestUseCostsNoCallMore(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var calls atomic.Int64
		counting := b.Connect(t)
		counting.AddHook(testkit.EveryCall(func(send func() error) error { calls.Add(1); return send() }))
		r := start(t, counting, WithUsage())
		deny(r, "first", "a")
		time.Sleep(DefaultInterval + time.Millisecond) // so Redis knows the script
		calls.Store(0)
		for i := range 1000 {
			client := fmt.Sprint(i % 200)
			deny(r, "p", client)
			r.Observe(t.Context(), ginlimit.Event{Name: "p", Charged: 5}, client)
			r.Observe(t.Context(), ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeSettled, Charged: -1}, client)
		}
		time.Sleep(DefaultInterval)
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load())
		require.Len(t, denied(t, b.Redis, "p"), counters)
		require.Len(t, used(t, b.Redis, "p"), counters)
		r.Observe(t.Context(), ginlimit.Event{Name: "p", Charged: 5}, "a")
		time.Sleep(DefaultInterval)
		synctest.Wait()
		require.EqualValues(t, 2, calls.Load())
	})
}

// TestAHugeChargeIsNoFault: an unlimited policy allows any cost.
func TestAHugeChargeIsNoFault(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := start(t, rdb, WithUsage())
	for range 1000 {
		r.Observe(context.Background(), ginlimit.Event{Name: "p", Charged: math.MaxInt}, "a")
		r.Observe(context.Background(), ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeSettled, Charged: -math.MaxInt}, "b")
	}
	require.NoError(t, r.Close())
	require.Equal(t, []Client{{Key: "a", Tokens: 1000 * maxTokens}}, used(t, rdb, "p"))
}

func BenchmarkObserveUse(b *testing.B) {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 1)), 1.1, 1, 1<<20)
	rdb := redis.NewClient(&redis.Options{Addr: testkit.RefusedAddr(b), MaxRetries: -1})
	defer rdb.Close()
	r, keys := start(b, rdb, WithUsage()), make([]string, 1<<12)
	for i := range keys {
		keys[i] = fmt.Sprint("203.0.113.", z.Uint64())
	}
	for i := 0; b.Loop(); i++ {
		r.Observe(b.Context(), ginlimit.Event{Name: "p", Charged: 1 + i%1000}, keys[i%len(keys)])
	}
}
