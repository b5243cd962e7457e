package integration

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak runs; 0 skips it")
	soakHeap = flag.String("heap", "", "where TestSoak writes a profile of the heap at its end")
)

// soakBounds are the documented bounds of what a process remembers, and how many bytes each takes at most.
var soakBounds = []struct {
	what        string
	most, bytes int64
}{
	{"denials, by WithDenyCache", soakDenials, 700},
	{"keys with leases", 4096, 1200},
	{"buckets without Redis", 262_144, 250},
	{"entries of sliding windows without Redis", 524_288, 16},
	{"give-backs without Redis", 524_288, 32},
	{"tenants without Redis", 262_144, 130},
	{"plans", 65_536, 330},
	{"bans", 65_536, 50},
	{"released slots that Redis does not know of", 65_536, 100},
	{"checked limits of clients", 2048, 2000},
	{"connections, scripts, the test itself", 1, 8 << 20},
}

const soakDenials = 4096

// TestSoak uses everything with keys that change, for -soak. What is remembered without Redis is filled up
// before. The live heap never takes more than all bounds together.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("needs -soak 10m")
	}
	before, bound := testkit.HeapInUse(), int64(0)
	for _, b := range soakBounds {
		bound += b.most * b.bytes
	}
	addr := "127.0.0.1:" + testkit.FreePort(t)
	s := newSoaker(t, addr)
	s.fill(t)
	say(t, "%d MB of at most %d filled without Redis", (testkit.HeapInUse()-before)>>20, bound>>20)
	require.NotNil(t, testkit.LaunchRedis(t, addr, "--maxmemory", "200mb", "--maxmemory-policy", "volatile-ttl"))
	require.Eventually(t, func() bool { return s.Ping(t.Context()) == nil }, time.Minute, 50*time.Millisecond)
	ctx, end := context.WithTimeout(t.Context(), *soakFor)
	defer end()
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for ctx.Err() == nil {
				s.pause.RLock()
				s.step(ctx)
				s.pause.RUnlock()
			}
		})
	}
	for start, pause := time.Now(), max(time.Second, *soakFor/20); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		s.pause.Lock() // what is allocated while the heap is measured would count as live
		used := testkit.HeapInUse() - before
		s.pause.Unlock()
		say(t, "%s: %d MB, %d steps, %+v", time.Since(start).Round(time.Second), used>>20, s.steps.Load(), s.Stats())
		require.LessOrEqual(t, used, bound)
	}
	all.Wait()
	require.Positive(t, s.Stats().Leased)
	if *soakHeap != "" {
		file := testkit.Must(os.Create(*soakHeap))
		require.NoError(t, pprof.Lookup("heap").WriteTo(file, 0))
		require.NoError(t, file.Close())
	}
}

// soaker has a policy of each kind. Its clients change.
type soaker struct {
	*ginlimit.Limiter
	policies []*ginlimit.Policy
	hourly   *ginlimit.Policy // one of them
	shared   *ginlimit.Policy
	slots    *ginlimit.Policy
	router   *gin.Engine
	paths    []string
	steps    atomic.Int64
	pause    sync.RWMutex // a step holds it for reading
}

func newSoaker(t *testing.T, addr string) *soaker {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	l, err := ginlimit.NewLimiter(rdb, ginlimit.WithDenyCache(soakDenials), ginlimit.WithReplicas(1),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	plans, err := l.NewPlans("plans", time.Minute, func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerMinute(100 + len(client)%50)}, nil
	})
	require.NoError(t, err)
	s, keyed := &soaker{Limiter: l, router: gin.New()}, ginlimit.WithKey(ginlimit.ByHeader("X-Client"))
	day := ginlimit.PerCalendar(1000, ginlimit.CalendarDay(nil))
	window := ginlimit.PerMinute(20)
	for name, opts := range map[string][]ginlimit.PolicyOption{
		"leased":  {ginlimit.PerSecond(5000), ginlimit.WithLease(100 * time.Millisecond)},
		"floor":   {ginlimit.PerMinute(60), ginlimit.WithFloor(20)},
		"fixed":   {window.WithAlgorithm(ginlimit.FixedWindow), ginlimit.WithBan(100*time.Millisecond, time.Minute)},
		"sliding": {window.WithAlgorithm(ginlimit.SlidingWindow), day},
		"planned": {ginlimit.WithLimitFunc(plans.Limits)},
		"dry":     {ginlimit.PerMinute(3), ginlimit.WithDryRun()},
		"settled": {ginlimit.PerHour(500), ginlimit.WithSettle(func(*gin.Context) int { return 3 })},
	} {
		s.policies = append(s.policies, s.policy(t, name, append(opts, keyed)...))
	}
	s.hourly = s.policy(t, "refunded", ginlimit.PerHour(50), keyed,
		ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	s.policies = append(s.policies, s.hourly)
	s.shared = s.policy(t, "shared", ginlimit.PerDay(100_000), keyed,
		ginlimit.WithShares(func(c *gin.Context) (string, int) { return c.GetHeader("X-Tenant"), 1 }))
	s.slots = s.policy(t, "slots", ginlimit.PerMinute(100), ginlimit.InFlight(2),
		ginlimit.WithQueue(4, 20*time.Millisecond), keyed)
	return s
}

// policy returns a policy that serves requests under its name.
func (s *soaker) policy(t *testing.T, name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	p := testkit.Must(s.Policy(name, opts...))
	s.paths = append(s.paths, "/"+name)
	s.router.GET("/"+name, p.Handler(), func(c *gin.Context) { c.Status(http.StatusNoContent) })
	return p
}

// fill uses up what may be remembered without Redis.
func (s *soaker) fill(t *testing.T) {
	for client := range 300_000 {
		testkit.Must(s.hourly.Allow(t.Context(), fmt.Sprint("invented ", client)))
		testkit.Must(s.shared.Share(fmt.Sprint(client), 1).Allow(t.Context(), fmt.Sprint("shared ", client%1000)))
	}
}

// step makes a request, or calls a method, of a client that is asked for some ten times and no more.
func (s *soaker) step(ctx context.Context) {
	n := s.steps.Add(1)
	client := fmt.Sprint("client ", n/16)
	if n%3 == 0 {
		client = fmt.Sprint("busy ", n/100_000)
	}
	p := s.policies[rand.IntN(len(s.policies))]
	switch x := rand.IntN(100); {
	case x < 40:
		testkit.Get(s.router, s.paths[rand.IntN(len(s.paths))], testkit.With("X-Client", client),
			testkit.With("X-Tenant", fmt.Sprint(n%500)))
	case x < 60:
		_, _ = p.AllowN(ctx, client, 1+rand.IntN(3))
	case x < 70:
		_, _ = s.shared.Share(fmt.Sprint(n), 1).Allow(ctx, "upstream")
	case x < 75:
		if slot, err := s.slots.Reserve(ctx, client, 1); err == nil {
			slot.Release()
		}
	case x < 80:
		if r, err := p.Reserve(ctx, client, 2); err == nil {
			_ = r.Settle(ctx, rand.IntN(4))
		}
	case x < 84:
		within, end := context.WithTimeout(ctx, 10*time.Millisecond)
		_ = p.Wait(within, client)
		end()
	case x < 88:
		_ = p.Refund(ctx, client, 1)
	case x < 92:
		_ = p.Reset(ctx, client)
	case x < 94:
		_ = p.Block(ctx, client, time.Second)
	case x < 96:
		_ = s.shared.Share(fmt.Sprint(n-500), 1).Reset(ctx, "upstream")
	case x < 98:
		_, _ = p.Status(ctx, client)
	default:
		_, _ = p.Peek(ctx, client)
	}
}
