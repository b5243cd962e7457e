package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkMixedScript compares what a decision on several limits costs Redis with one on a token bucket, by turns: on three
// token buckets, and on limits of different kinds.
func BenchmarkMixedScript(b *testing.B) {
	bucket := ginlimit.PerSecond(10).WithBurst(100)
	day, month := ginlimit.PerCalendar(10_000, ginlimit.CalendarDay(nil)), ginlimit.PerCalendar(100_000, ginlimit.CalendarMonth(nil, 1))
	sets := []struct {
		name      string
		algorithm ginlimit.Algorithm
		limits    []ginlimit.Limit
	}{
		{"bucket", ginlimit.TokenBucket, []ginlimit.Limit{bucket}},
		{"three-buckets", ginlimit.TokenBucket, []ginlimit.Limit{bucket, ginlimit.PerMinute(600), ginlimit.PerHour(10_000)}},
		{"bucket-and-month", ginlimit.TokenBucket, []ginlimit.Limit{bucket, month}},
		{"bucket-day-month", ginlimit.TokenBucket, []ginlimit.Limit{bucket, day, month}},
		{"fixed-day-month", ginlimit.FixedWindow, []ginlimit.Limit{ginlimit.PerMinute(600), day, month}},
		{"sliding-day-month", ginlimit.SlidingWindow, []ginlimit.Limit{ginlimit.PerMinute(600), day, month}},
	}
	ctx, addr := b.Context(), redistest.Start(b)
	rdb := redistest.Connect(b, addr)
	var batches [][][]any
	for _, set := range sets {
		spied := redistest.Connect(b, addr)
		limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithAlgorithm(set.algorithm), ginlimit.WithPrefix(set.name), ginlimit.WithTimeout(time.Second))
		if err != nil {
			b.Fatal(err)
		}
		defer limiter.Close()
		hook := recordHook{args: new([][]any)}
		spied.AddHook(hook)
		for i := range scriptClients {
			if _, err := limiter.Allow(ctx, fmt.Sprint("client ", i), set.limits...); err != nil {
				b.Fatal(err)
			}
		}
		batches = append(batches, lastOf(*hook.args, scriptClients))
	}
	for b.Loop() {
		costs := make([][]float64, len(sets))
		for round := range scriptRounds {
			if round%scriptHits == 0 {
				if err := rdb.FlushDB(ctx).Err(); err != nil {
					b.Fatal(err)
				}
			}
			for i, batch := range batches {
				costs[i] = append(costs[i], costPerCall(b, rdb, batch))
			}
		}
		one := median(costs[0])
		for i, set := range sets {
			b.ReportMetric(median(costs[i]), set.name+"-µs")
			b.ReportMetric(median(costs[i])/one, set.name+"-ratio")
		}
		b.ReportMetric(0, "ns/op")
	}
}
