package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

var algorithms = []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}

// BenchmarkAlgorithmScript compares what one decision costs Redis: usec_per_call of each algorithm's script, in
// batches, from INFO commandstats; and what a client costs it in memory, after one request and after a hundred.
func BenchmarkAlgorithmScript(b *testing.B) {
	const rate = 100
	for _, a := range algorithms {
		b.Run(a.String(), func(b *testing.B) {
			ctx, addr := b.Context(), redistest.Start(b)
			rdb, spied := redistest.Connect(b, addr), redistest.Connect(b, addr)
			limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithDenyCache(0))
			if err != nil {
				b.Fatal(err)
			}
			policy, err := limiter.Policy("test", ginlimit.PerHour(rate).WithAlgorithm(a))
			if err != nil {
				b.Fatal(err)
			}
			hook := recordHook{args: new([][]any)}
			spied.AddHook(hook)
			const clients = 20 * scriptClients
			for c := range clients {
				if _, err := policy.Allow(ctx, fmt.Sprintf("203.0.%d.%d", c>>8, c&255)); err != nil {
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
		})
	}
}
