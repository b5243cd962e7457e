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
		name      string
		algorithm ginlimit.Algorithm
		limits    []ginlimit.Limit
		opts      []ginlimit.Option // of a policy with the first limit alone
	}{
		{name: "bucket", limits: []ginlimit.Limit{bucket}},
		{name: "bucket-slots", limits: []ginlimit.Limit{bucket}, opts: []ginlimit.Option{ginlimit.WithConcurrency(10)}},
		{name: "bucket-ban", limits: []ginlimit.Limit{bucket},
			opts: []ginlimit.Option{ginlimit.WithBan(time.Minute, time.Hour)}},
		{name: "bucket-slots-ban", limits: []ginlimit.Limit{bucket},
			opts: []ginlimit.Option{ginlimit.WithConcurrency(10), ginlimit.WithBan(time.Minute, time.Hour)}},
		{name: "three-buckets", algorithm: ginlimit.TokenBucket,
			limits: []ginlimit.Limit{bucket, ginlimit.PerMinute(600), ginlimit.PerHour(10_000)}},
		{name: "bucket-and-month", algorithm: ginlimit.TokenBucket, limits: []ginlimit.Limit{bucket, month}},
		{name: "bucket-day-month", algorithm: ginlimit.TokenBucket, limits: []ginlimit.Limit{bucket, day, month}},
		{name: "fixed-day-month", algorithm: ginlimit.FixedWindow,
			limits: []ginlimit.Limit{ginlimit.PerMinute(600), day, month}},
		{name: "sliding-day-month", algorithm: ginlimit.SlidingWindow,
			limits: []ginlimit.Limit{ginlimit.PerMinute(600), day, month}},
	}
	ctx, addr := b.Context(), redistest.Start(b)
	rdb := redistest.Connect(b, addr)
	var batches [][][]any
	for _, set := range sets {
		spied := redistest.Connect(b, addr)
		limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithAlgorithm(set.algorithm),
			ginlimit.WithPrefix(set.name), ginlimit.WithTimeout(time.Second))
		if err != nil {
			b.Fatal(err)
		}
		defer limiter.Close()
		hook := recordHook{args: new([][]any)}
		spied.AddHook(hook)
		allow := func(client string) error {
			_, err := limiter.Allow(ctx, client, set.limits...)
			return err
		}
		if set.opts != nil {
			policy, err := limiter.Policy(set.limits[0], set.opts...)
			if err != nil {
				b.Fatal(err)
			}
			allow = func(client string) error {
				_, err := policy.Acquire(ctx, client)
				return err
			}
		}
		for i := range scriptClients {
			if err := allow(fmt.Sprint("client ", i)); err != nil {
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
