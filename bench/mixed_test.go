package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkMixedScript compares what a decision on several limits costs Redis with one on a token
// bucket, by turns: on three token buckets, on limits of different kinds, and on a bucket together
// with slots, a ban, or both.
func BenchmarkMixedScript(b *testing.B) {
	bucket := ginlimit.PerSecond(10).WithBurst(100)
	day, month := ginlimit.PerCalendar(10_000, ginlimit.CalendarDay(nil)),
		ginlimit.PerCalendar(100_000, ginlimit.CalendarMonth(nil, 1))
	sets := []struct {
		name   string
		limits []ginlimit.Limit
		ban    bool
	}{
		{name: "bucket", limits: []ginlimit.Limit{bucket}},
		{name: "bucket-slots", limits: []ginlimit.Limit{bucket, ginlimit.InFlight(10)}},
		{name: "bucket-ban", limits: []ginlimit.Limit{bucket}, ban: true},
		{name: "bucket-slots-ban", limits: []ginlimit.Limit{bucket, ginlimit.InFlight(10)}, ban: true},
		{name: "three-buckets", limits: []ginlimit.Limit{bucket, ginlimit.PerMinute(600), ginlimit.PerHour(10_000)}},
		{name: "bucket-and-month", limits: []ginlimit.Limit{bucket, month}},
		{name: "bucket-day-month", limits: []ginlimit.Limit{bucket, day, month}},
		{name: "fixed-day-month",
			limits: []ginlimit.Limit{ginlimit.PerMinute(600).WithAlgorithm(ginlimit.FixedWindow), day, month}},
		{name: "sliding-day-month",
			limits: []ginlimit.Limit{ginlimit.PerMinute(600).WithAlgorithm(ginlimit.SlidingWindow), day, month}},
	}
	ctx, addr := b.Context(), redistest.Start(b)
	rdb := redistest.Connect(b, addr)
	var batches [][][]any
	for _, set := range sets {
		spied := redistest.Connect(b, addr)
		limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithPrefix(set.name), ginlimit.WithTimeout(time.Second))
		if err != nil {
			b.Fatal(err)
		}
		defer limiter.Close()
		hook := recordHook{args: new([][]any)}
		spied.AddHook(hook)
		opts := []ginlimit.PolicyOption{ginlimit.WithLimits(set.limits...)}
		if set.ban {
			opts = append(opts, ginlimit.WithBan(time.Minute, time.Hour))
		}
		policy, err := limiter.Policy("test", opts...)
		if err != nil {
			b.Fatal(err)
		}
		for i := range scriptClients {
			if _, err := policy.Reserve(ctx, fmt.Sprint("client ", i), 1); err != nil {
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
