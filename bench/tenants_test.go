package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

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
