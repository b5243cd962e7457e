package bench

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkAllOf compares AllOf of two policies with one policy of the same two limits. Both take turns, and what is
// reported is the median of the ratios within a turn.
func BenchmarkAllOf(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			rdb := redistest.Connect(b, redistest.Start(b))
			limiter := closed(b)(ginlimit.NewLimiter(rdb))
			minute, hour := ginlimit.PerMinute(100).WithBurst(1<<30), ginlimit.PerHour(1000).WithBurst(1<<30)
			policy := func(name string, options ...ginlimit.PolicyOption) *ginlimit.Policy {
				p, err := limiter.Policy(name, append(options, ginlimit.WithKey(peers.Client))...)
				if err != nil {
					b.Fatal(err)
				}
				return p
			}
			allOf := peers.NewEngine(ginlimit.AllOf(policy("minute", minute), policy("hour", hour)))
			one := peers.NewEngine(policy("both", minute, hour).Handler())
			turnOf(b, rdb, allOf, callers) // connects, and loads the scripts
			turnOf(b, rdb, one, callers)
			var ratios [3][]float64
			for b.Loop() {
				several, beside := turnOf(b, rdb, allOf, callers), turnOf(b, rdb, one, callers)
				for i := range ratios {
					ratios[i] = append(ratios[i], several[i]/beside[i])
				}
			}
			for i, unit := range []string{"time-ratio", "process-CPU-ratio", "Redis-CPU-ratio"} {
				b.ReportMetric(median(ratios[i]), unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// turnOf sends requests of 1,000 clients to an engine, and returns what they took in all: time, CPU of the process, and
// CPU of Redis.
func turnOf(b *testing.B, rdb *redis.Client, engine *gin.Engine, callers int) (took [3]float64) {
	const clients = 1000
	redisCPU := func() float64 {
		seconds, err := redisserver.Info(b.Context(), rdb, "cpu", `used_cpu_(?:user|sys):([\d.]+)`)
		if err != nil {
			b.Fatal(err)
		}
		return seconds
	}
	requests := clients * (1 + callers/16)
	onRedis, inProcess, start := redisCPU(), cpu(b), time.Now()
	var all sync.WaitGroup
	for first := range callers {
		all.Go(func() {
			caller := peers.NewCaller(b.Context())
			defer caller.Close()
			for i := first; i < requests; i += callers {
				if status := caller.Call(engine, strconv.Itoa(i%clients)); status != 200 || caller.Degraded() {
					b.Errorf("status %d", status)
				}
			}
		})
	}
	all.Wait()
	return [3]float64{float64(time.Since(start)), float64(cpu(b) - inProcess), redisCPU() - onRedis}
}

// BenchmarkPolicies sends requests to many policies in turn. It reports the memory of a policy as B/each.
func BenchmarkPolicies(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint("policies=", n), func(b *testing.B) {
			limiter := closed(b)(ginlimit.NewLocal())
			engines, before := make([]*gin.Engine, n), heap()
			handlers := make([]gin.HandlerFunc, n)
			for i := range handlers {
				handlers[i] = limiter.Handler(fmt.Sprint("policy ", i), ginlimit.PerMinute(100).WithBurst(1<<30),
					ginlimit.WithKey(peers.Client))
			}
			kept := heap() - before
			for i := range engines {
				engines[i] = peers.NewEngine(handlers[i])
			}
			caller := peers.NewCaller(b.Context())
			defer caller.Close()
			i := 0
			for b.Loop() {
				if status := caller.Call(engines[i%n], "client"); status != 200 {
					b.Fatal(status)
				}
				i++
			}
			b.ReportMetric(float64(kept)/float64(n), "B/each")
		})
	}
}

// BenchmarkExpiredTenants has thousands of tenants charge a bucket. It says how long the next call after the bucket has
// expired holds Redis up: at once; a minute later, when what they held has expired too; and after another minute, when
// their order has.
func BenchmarkExpiredTenants(b *testing.B) {
	const key = "ginlimit:{api|all}:s"
	for name, expired := range map[string][]string{
		"at once": {key}, "after a minute": {key, key + ":tenants:held"}, "after two": {key, key + ":tenants"},
	} {
		b.Run(name, func(b *testing.B) {
			addr := redistest.Start(b)
			rdb := redistest.Connect(b, addr)
			_ = rdb.Do(b.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err()
			take := sharedBucket(b, addr)
			var costs []float64
			for b.Loop() {
				fillShared(take)
				if name == "after two" {
					_ = rdb.Del(b.Context(), key+":tenants:held").Err() // Redis has expired it by then
				}
				for _, of := range expired {
					_ = rdb.PExpire(b.Context(), of, time.Millisecond).Err()
				}
				time.Sleep(10 * time.Millisecond)
				if err := rdb.ConfigResetStat(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
				take("another")
				cost, err := redisserver.Info(b.Context(), rdb, "commandstats", `cmdstat_evalsha:.*usec_per_call=([\d.]+)`)
				if err != nil {
					b.Fatal(err)
				}
				costs = append(costs, cost)
			}
			b.ReportMetric(median(costs), "µs") // others may use the CPU
			b.ReportMetric(0, "ns/op")
		})
	}
}

// sharedBucket returns a function that charges a shared bucket a token for a tenant.
func sharedBucket(b *testing.B, addr string) (take func(tenant string)) {
	limiter := closed(b)(ginlimit.NewLimiter(redistest.Connect(b, addr), ginlimit.WithTimeout(time.Minute)))
	p, err := limiter.Policy("api", ginlimit.PerSecond(1000).WithBurst(1<<24),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 }))
	if err != nil {
		b.Fatal(err)
	}
	return func(tenant string) {
		if _, err := p.Share(tenant, 1).AllowN(b.Context(), "all", 1); err != nil {
			b.Error(err)
		}
	}
}

// fillShared charges a shared bucket for 8,000 tenants.
func fillShared(take func(tenant string)) {
	const tenants, callers = 8000, 64
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := caller; i < tenants; i += callers {
				take(fmt.Sprint("tenant ", i))
			}
		})
	}
	all.Wait()
}
