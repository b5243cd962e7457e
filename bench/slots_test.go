package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkSlotScript has some processes hold a slot of one client each, and says what a decision
// on another slot of it costs Redis then: usec_per_call of the script, in batches, from INFO
// commandstats. The limiters of one process stand for processes.
func BenchmarkSlotScript(b *testing.B) {
	const batches = 20
	for _, processes := range []int{1, 2, 10, 50, 200, 400} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			ctx, addr := b.Context(), redistest.Start(b)
			rdb := redistest.Connect(b, addr)
			acquire := func(n int) []any {
				spied := redistest.Connect(b, addr)
				limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithTimeout(time.Minute))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = limiter.Close() })
				hook := recordHook{args: new([][]any)}
				spied.AddHook(hook)
				p, err := limiter.Policy("api", ginlimit.PerMinute(100).WithBurst(1_000_000_000), ginlimit.InFlight(n))
				if err != nil {
					b.Fatal(err)
				}
				if _, err = p.Reserve(ctx, "alice", 1); err != nil {
					b.Fatal(err)
				}
				return lastOf(*hook.args, 1)[0]
			}
			var takes [][]any
			for range processes {
				takes = append(takes, acquire(1<<20))
			}
			denied := slices.Repeat([][]any{acquire(1)}, scriptClients)
			var admitted [][]any // a call that is repeated takes nothing more, and costs as much
			for i := range scriptClients {
				admitted = append(admitted, takes[i%processes])
			}
			for b.Loop() {
				var costs [2][]float64
				for range batches {
					for i, batch := range [][][]any{admitted, denied} {
						costs[i] = append(costs[i], costPerCall(b, rdb, batch))
					}
				}
				b.ReportMetric(median(costs[0]), "admitted-µs")
				b.ReportMetric(median(costs[1]), "denied-µs")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
