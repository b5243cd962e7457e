package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkGrowth shows how the cost of a decision grows with what a process knows. It reports the memory
// of what is kept as B/each.
func BenchmarkGrowth(b *testing.B) {
	local := func(b *testing.B) *ginlimit.Limiter { return closed(b)(ginlimit.NewLocal()) }
	inRedis := func(b *testing.B) *ginlimit.Limiter {
		return closed(b)(ginlimit.NewLimiter(redistest.Connect(b, redistest.Start(b))))
	}
	for _, kind := range []struct {
		name    string
		limiter func(*testing.B) *ginlimit.Limiter
		options []ginlimit.PolicyOption
	}{
		{"local", local, []ginlimit.PolicyOption{ginlimit.PerHour(1000)}},
		{"denied", inRedis, []ginlimit.PolicyOption{ginlimit.PerDay(1)}},
		{"leases", inRedis, []ginlimit.PolicyOption{
			ginlimit.PerSecond(1_000_000), ginlimit.WithLease(100 * time.Millisecond),
		}},
	} {
		for _, clients := range []int{1000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/clients=%d", kind.name, clients), func(b *testing.B) {
				growClients(b, kind.limiter(b), kind.options, clients)
			})
		}
	}
}

// closed returns a function that returns a limiter, to be closed at the end.
func closed(b *testing.B) func(*ginlimit.Limiter, error) *ginlimit.Limiter {
	return func(l *ginlimit.Limiter, err error) *ginlimit.Limiter {
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = l.Close() })
		return l
	}
}

// growClients measures decisions on random clients, each of which was decided on before.
func growClients(b *testing.B, l *ginlimit.Limiter, options []ginlimit.PolicyOption, clients int) {
	p, err := l.Policy("api", options...)
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, clients)
	for i := range names {
		names[i] = fmt.Sprint("client ", i)
	}
	ctx, before := context.Background(), heap()
	var all sync.WaitGroup
	const callers = 256
	for caller := range callers {
		all.Go(func() {
			for range 2 {
				for i := caller; i < clients; i += callers {
					_, _ = p.Allow(ctx, names[i])
				}
			}
		})
	}
	all.Wait()
	kept, used := heap()-before, cpu(b)
	b.ResetTimer()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		random := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for pb.Next() {
			if _, err := p.Allow(ctx, names[random.IntN(clients)]); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(cpu(b)-used)/float64(b.N), "cpu-ns/op") // others may use the CPU
	b.ReportMetric(float64(kept)/float64(clients), "B/each")
}

// BenchmarkSlotMemory has a limiter hold a slot of each of some keys, which have 40 bytes. It reports as B/slot the
// memory that the limiter keeps for each, with the buffers of its Redis client's new connections, and as B/caller the
// Reservation that the caller keeps. The texts of the keys are the caller's, and existed before. Reserve needs no
// goroutine for a held slot; a handler's goroutine is not counted.
func BenchmarkSlotMemory(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			addr := redistest.Start(b)
			for b.Loop() {
				limiter, caller := growSlots(b, addr, n)
				b.ReportMetric(float64(limiter)/float64(n), "B/slot")
				b.ReportMetric(float64(caller)/float64(n), "B/caller")
				b.ReportMetric(float64(limiter)/1e6, "MB")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// growSlots acquires a slot of each of n keys. It returns how many bytes the limiter and the caller keep for them.
func growSlots(b *testing.B, addr string, n int) (limiter, caller int64) {
	l := closed(b)(ginlimit.NewLimiter(redistest.Connect(b, addr), ginlimit.WithTimeout(time.Minute)))
	p, err := l.Policy("api", ginlimit.InFlight(4), ginlimit.WithFailureMode(ginlimit.FailClosed))
	if err != nil {
		b.Fatal(err)
	}
	keys, slots := make([]string, n), make([]*ginlimit.Reservation, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("sk-%037d", i)
	}
	acquire := func(i int) {
		var err error
		if slots[i], err = p.Reserve(b.Context(), keys[i], 1); err != nil {
			b.Error(err)
		}
	}
	acquire(0) // connects
	slots[0].Release()
	before := heap()
	var all sync.WaitGroup
	const callers = 64
	for first := range callers {
		all.Go(func() {
			for i := first; i < n; i += callers {
				acquire(i)
			}
		})
	}
	all.Wait()
	both := heap()
	clear(slots) // nothing releases them
	limiter = heap() - before
	if held := l.Stats().Slots; held != n {
		b.Fatalf("%d slots are held, want %d", held, n)
	}
	runtime.KeepAlive(keys)
	return limiter, both - before - limiter
}

// cpu returns the CPU time of the process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes of all reachable objects.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// BenchmarkScript compares what one decision costs Redis: usec_per_call of each algorithm's script and of redis_rate's,
// in batches, from INFO commandstats; and what a client costs it in memory, after one request and after a hundred.
func BenchmarkScript(b *testing.B) {
	const rate = 100
	b.Run("redis_rate", func(b *testing.B) {
		measureScript(b, rate, func(b *testing.B, rdb *redis.Client) func(string) error {
			peer := redis_rate.NewLimiter(rdb)
			return func(client string) error {
				_, err := peer.Allow(b.Context(), client, redis_rate.PerHour(rate))
				return err
			}
		})
	})
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		b.Run(a.String(), func(b *testing.B) {
			measureScript(b, rate, func(b *testing.B, rdb *redis.Client) func(string) error {
				limiter := closed(b)(ginlimit.NewLimiter(rdb, ginlimit.WithDenyCache(0), ginlimit.WithTimeout(time.Minute)))
				policy, err := limiter.Policy("test", ginlimit.PerHour(rate).WithAlgorithm(a))
				if err != nil {
					b.Fatal(err)
				}
				return func(client string) error {
					_, err := policy.Allow(b.Context(), client)
					return err
				}
			})
		})
	}
}

// measureScript repeats the commands by which a limiter decides on clients. It is made with a client of Redis, and
// its limit has the rate.
func measureScript(b *testing.B, rate int, limiter func(*testing.B, *redis.Client) func(client string) error) {
	ctx, addr := b.Context(), redistest.Start(b)
	rdb, spied := redistest.Connect(b, addr), redistest.Connect(b, addr)
	hook := recordHook{args: new([][]any)}
	spied.AddHook(hook) // before the limiter, which would not see it later
	allow := limiter(b, spied)
	const clients = 20 * scriptClients
	for c := range clients {
		if err := allow(fmt.Sprintf("203.0.%d.%d", c>>8, c&255)); err != nil {
			b.Fatal(err)
		}
	}
	batch := lastOf(*hook.args, clients)
	memory := func() float64 {
		bytes, err := redisserver.Info(ctx, rdb, "memory", `used_memory:(\d+)`)
		if err != nil {
			b.Fatal(err)
		}
		return bytes
	}
	for b.Loop() {
		if err := rdb.FlushDB(ctx).Err(); err != nil {
			b.Fatal(err)
		}
		empty := memory()
		var admitted, denied []float64
		for round := range rate + rate/2 {
			var costs []float64
			for part := range slices.Chunk(batch, scriptClients) {
				costs = append(costs, costPerCall(b, rdb, part))
			}
			switch {
			case round == 0:
				b.ReportMetric((memory()-empty)/clients, "new-B/client")
			case round < rate:
				admitted = append(admitted, median(costs))
			default:
				denied = append(denied, median(costs))
			}
		}
		b.ReportMetric((memory()-empty)/clients, "full-B/client")
		b.ReportMetric(median(admitted), "admitted-µs")
		b.ReportMetric(median(denied), "denied-µs")
		b.ReportMetric(0, "ns/op")
	}
}

// TestEveryLibraryLimits keeps the comparison fair: each library does what it is compared for.
func TestEveryLibraryLimits(t *testing.T) {
	for _, l := range peers.All() {
		if l.Role == peers.Bare {
			continue
		}
		t.Run(l.Name, func(t *testing.T) {
			limiter, err := l.New(redistest.Connect(t, redistest.Start(t)), peers.Limit{Rate: 5, Period: time.Hour, Burst: 5})
			if err != nil {
				t.Fatal(err)
			}
			defer limiter.Close()
			h, c := peers.NewEngine(limiter.Handler), peers.NewCaller(t.Context())
			defer c.Close()
			for i := range 7 {
				want := http.StatusOK
				if i >= 5 {
					want = http.StatusTooManyRequests
				}
				if got := c.Call(h, "client"); got != want {
					t.Fatalf("request %d: %d, want %d", i+1, got, want)
				}
			}
			if got := c.Call(h, "another"); got != http.StatusOK {
				t.Fatalf("another client: %d", got)
			}
		})
	}
}
