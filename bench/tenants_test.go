package bench

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkGoneTenants has thousands of tenants charge a bucket, and nothing left of what they charged but for one of
// them; or the bucket is reset, or what it has expires. It says how long the longest of the next calls holds Redis up,
// and how many calls find somebody to remove.
func BenchmarkGoneTenants(b *testing.B) {
	const burst, callers = 1 << 24, 64
	for _, tenants := range []int{100, 1000, 8000} {
		for _, next := range []string{"admitted", "denied", "reset", "expired"} {
			b.Run(fmt.Sprintf("tenants=%d/%s", tenants, next), func(b *testing.B) {
				addr := redistest.Start(b)
				rdb := redistest.Connect(b, addr)
				limiter := closed(b)(ginlimit.NewLimiter(redistest.Connect(b, addr), ginlimit.WithTimeout(time.Minute),
					ginlimit.WithDenyCache(0)))
				p, err := limiter.Policy("api", ginlimit.PerSecond(1000).WithBurst(burst),
					ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 }))
				if err != nil {
					b.Fatal(err)
				}
				take := func(tenant string, n int) ginlimit.Result {
					result, err := p.Share(tenant, 1).AllowN(b.Context(), "all", n)
					if err != nil {
						b.Error(err)
					}
					return result
				}
				var longest []float64 // of each round
				removing := 0
				for b.Loop() {
					if err := rdb.FlushDB(b.Context()).Err(); err != nil {
						b.Fatal(err)
					}
					take("heavy", burst/2-1)
					var all sync.WaitGroup
					for caller := range callers {
						all.Go(func() {
							for i := caller; i < tenants; i += callers {
								take(fmt.Sprint("tenant ", i), 1+i%7)
							}
						})
					}
					all.Wait()
					const key = "ginlimit:{api|all}:s"
					level := rdb.PTTL(b.Context(), key).Val() // a token a millisecond
					if err := rdb.PExpire(b.Context(), key, level-time.Duration(8*tenants)*time.Millisecond).Err(); err != nil {
						b.Fatal(err)
					}
					known := func() int64 { return rdb.HLen(b.Context(), key+":tenants:held").Val() }
					if n := known(); n < int64(tenants) {
						b.Fatalf("%d tenants", n)
					}
					if next == "expired" {
						_ = rdb.Do(b.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err()
						for _, of := range []string{key, key + ":tenants", key + ":tenants:held"} {
							_ = rdb.PExpire(b.Context(), of, time.Millisecond).Err()
						}
						time.Sleep(10 * time.Millisecond)
					}
					costs := []float64{0}
					for left := int64(tenants); left > 3; removing++ {
						if err := rdb.ConfigResetStat(b.Context()).Err(); err != nil {
							b.Fatal(err)
						}
						switch next {
						case "denied":
							take("heavy", burst/3)
						case "reset":
							if err := p.Reset(b.Context(), "all"); err != nil {
								b.Fatal(err)
							}
						default:
							take("heavy", 1)
						}
						cost, err := redisserver.Info(b.Context(), rdb, "commandstats", `cmdstat_evalsha:.*usec_per_call=([\d.]+)`)
						if err != nil {
							b.Fatal(err)
						}
						costs = append(costs, cost)
						if left = known(); len(costs) > 2*tenants {
							b.Fatalf("%d tenants are left", left)
						}
					}
					longest = append(longest, slices.Max(costs))
				}
				b.ReportMetric(median(longest), "longest-µs") // others may use the CPU
				b.ReportMetric(float64(removing)/float64(b.N), "calls")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
