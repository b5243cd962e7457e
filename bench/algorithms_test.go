package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

var algorithms = []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}

// BenchmarkAlgorithms is BenchmarkDecisions with each algorithm of ginlimit.
func BenchmarkAlgorithms(b *testing.B) {
	for _, s := range scenes[:3] {
		for _, callers := range []int{1, 64} {
			for _, a := range algorithms {
				l := library{"ginlimit", func(tb testing.TB, rdb *redis.Client, _, burst int) gin.HandlerFunc {
					limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithAlgorithm(a),
						ginlimit.WithKey(func(c *gin.Context) (string, error) { return clientOf(c), nil }))
					if err != nil {
						tb.Fatal(err)
					}
					tb.Cleanup(func() { _ = limiter.Close() })
					return limiter.Handler(ginlimit.PerHour(burst), ginlimit.WithName("api"))
				}}
				b.Run(fmt.Sprintf("%s/callers=%d/%s", s.name, callers, nameOf(a)), func(b *testing.B) {
					decisions(b, s, callers, l, connect(b, startRedis(b)))
				})
			}
		}
	}
}

func nameOf(a ginlimit.Algorithm) string {
	return map[ginlimit.Algorithm]string{
		ginlimit.TokenBucket: "token-bucket", ginlimit.FixedWindow: "fixed-window", ginlimit.SlidingWindow: "sliding-window",
	}[a]
}

// BenchmarkAlgorithmScript compares what one decision costs Redis: usec_per_call of each algorithm's script, in
// batches, from INFO commandstats; and what a client costs it in memory, after one request and after a hundred.
func BenchmarkAlgorithmScript(b *testing.B) {
	const rate = 100
	for _, a := range algorithms {
		b.Run(nameOf(a), func(b *testing.B) {
			ctx, addr := b.Context(), startRedis(b)
			rdb, spied := connect(b, addr), connect(b, addr)
			limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
			if err != nil {
				b.Fatal(err)
			}
			hook := recordHook{args: new([][]any)}
			spied.AddHook(hook)
			const clients = 20 * scriptClients
			for c := range clients {
				if _, err := limiter.Allow(ctx, fmt.Sprintf("203.0.%d.%d", c>>8, c&255), ginlimit.PerHour(rate)); err != nil {
					b.Fatal(err)
				}
			}
			batch := lastOf(*hook.args, clients)
			memory := func() float64 {
				bytes, err := stat(ctx, rdb, "memory", `used_memory:(\d+)`)
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
				var admitted, refused []float64
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
						refused = append(refused, median(costs))
					}
				}
				b.ReportMetric((memory()-empty)/clients, "full-B/client")
				b.ReportMetric(median(admitted), "admitted-µs")
				b.ReportMetric(median(refused), "refused-µs")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
