package bench

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A scene is who asks for what.
type scene struct {
	name    string
	clients int
	perHour int
	burst   int
	status  int // of every request
}

// A hundred a minute, and a burst that nobody uses up.
const perHour, plenty = 6000, 1_000_000_000

var scenes = []scene{
	{"clients=1000", 1000, perHour, plenty, http.StatusOK},
	{"clients=1000000", 1_000_000, perHour, plenty, http.StatusOK},
	{"hot", 1, perHour, plenty, http.StatusOK},
	{"refused", 1000, 1, 1, http.StatusTooManyRequests},
}

// BenchmarkDecisions sends requests through a Gin engine, so many callers at a time, and reports
// per decision: time, p50 and p99, allocations, calls of Redis and its CPU time.
func BenchmarkDecisions(b *testing.B) {
	for _, s := range scenes {
		for _, callers := range []int{1, 16, 64, 512} {
			for _, l := range libraries {
				if s.status != http.StatusOK && l.name == "nothing" {
					continue
				}
				b.Run(fmt.Sprintf("%s/callers=%d/%s", s.name, callers, l.name), func(b *testing.B) {
					decisions(b, s, callers, l, connect(b, startRedis(b)))
				})
			}
		}
	}
}

func decisions(b *testing.B, s scene, callers int, l library, rdb *redis.Client) {
	h := engine(l.make(b, rdb, s.perHour, s.burst))
	names := make([]string, s.clients)
	for i := range names {
		names[i] = "client " + strconv.Itoa(i)
	}
	if s.status != http.StatusOK { // spend what there is, and be refused
		c := newCaller(b)
		for range 3 {
			for _, name := range names {
				c.call(h, name)
			}
		}
	}
	ctx := b.Context()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	cpu := func() float64 {
		user, err := stat(ctx, rdb, "cpu", `used_cpu_user:([\d.]+)`)
		if err != nil {
			b.Fatal(err)
		}
		sys, err := stat(ctx, rdb, "cpu", `used_cpu_sys:([\d.]+)`)
		if err != nil {
			b.Fatal(err)
		}
		return user + sys
	}

	latencies := make([][]time.Duration, callers)
	var next, wrong atomic.Int64
	var all sync.WaitGroup
	before := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range callers {
		own := make([]time.Duration, 0, b.N/callers+64)
		c := newCaller(b)
		all.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					break
				}
				start := time.Now()
				status := c.call(h, names[int(uint64(n)*2654435761%uint64(len(names)))])
				own = append(own, time.Since(start))
				if status != s.status {
					wrong.Add(1)
				}
				if s.status != http.StatusOK {
					runtime.Gosched() // as a server's goroutine does that waits for its next request, and those who go to Redis
				}
			}
			latencies[i] = own
		})
	}
	all.Wait()
	b.StopTimer()
	if wrong.Load() > 0 && l.name == "ginlimit" {
		b.Fatalf("%d of %d answers are wrong", wrong.Load(), b.N)
	}
	calls, err := stat(ctx, rdb, "stats", `total_commands_processed:(\d+)`)
	if err != nil {
		b.Fatal(err)
	}
	merged := slices.Concat(latencies...)
	slices.Sort(merged)
	b.ReportMetric(float64(merged[len(merged)/2])/1e3, "p50-µs")
	b.ReportMetric(float64(merged[len(merged)*99/100])/1e3, "p99-µs")
	b.ReportMetric(calls/float64(b.N), "redis-calls/op")
	b.ReportMetric(float64(wrong.Load())/float64(b.N), "wrong/op") // lost races: errors, or one too many admitted
	b.ReportMetric((cpu()-before)*1e6/float64(b.N), "redis-cpu-µs/op")
}
