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

// BenchmarkExpiredTenants has thousands of tenants charge a bucket that expires in one go. It says how long the next
// call, which removes all of them, holds Redis up.
func BenchmarkExpiredTenants(b *testing.B) {
	const tenants, callers = 8000, 64
	addr := redistest.Start(b)
	rdb := redistest.Connect(b, addr)
	limiter := closed(b)(ginlimit.NewLimiter(redistest.Connect(b, addr), ginlimit.WithTimeout(time.Minute)))
	p, err := limiter.Policy("api", ginlimit.PerSecond(1000).WithBurst(1<<24),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 }))
	if err != nil {
		b.Fatal(err)
	}
	take := func(tenant string) {
		if _, err := p.Share(tenant, 1).AllowN(b.Context(), "all", 1); err != nil {
			b.Error(err)
		}
	}
	_ = rdb.Do(b.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err()
	var costs []float64
	for b.Loop() {
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := caller; i < tenants; i += callers {
					take(fmt.Sprint("tenant ", i))
				}
			})
		}
		all.Wait()
		const key = "ginlimit:{api|all}:s"
		for _, of := range []string{key, key + ":tenants", key + ":tenants:held"} {
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
}
