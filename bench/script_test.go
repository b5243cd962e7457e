package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

const (
	scriptClients = 1000 // per batch, each once
	scriptRounds  = 200  // batches of each script, in turns
	scriptHits    = 20   // batches after which the buckets start over, so that all are admitted
)

// recordHook records the EVALSHA commands that a limiter sends, to be sent again without the limiter.
type recordHook struct{ args *[][]any }

// kept returns arguments whose memory is not used again, as that of ginlimit's keys is.
func kept(args []any) []any {
	args = slices.Clone(args)
	for i, arg := range args {
		if text, ok := arg.(fmt.Stringer); ok {
			args[i] = text.String()
		}
	}
	return args
}

func (h recordHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h recordHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			*h.args = append(*h.args, kept(cmd.Args()))
		}
		return next(ctx, cmd)
	}
}

func (h recordHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "evalsha" {
				*h.args = append(*h.args, kept(cmd.Args()))
			}
		}
		return next(ctx, cmds)
	}
}

// BenchmarkScript compares what one decision costs Redis: usec_per_call of each library's script, in
// batches by turns, from INFO commandstats.
func BenchmarkScript(b *testing.B) {
	for _, rate := range []int{100, 7} { // drain 1, and one that does not divide the period
		for _, outcome := range []string{"admitted", "denied"} {
			b.Run(fmt.Sprintf("limit=%dpermin/%s", rate, outcome), func(b *testing.B) {
				ctx, addr := b.Context(), redistest.Start(b)
				rdb, spied := redistest.Connect(b, addr), redistest.Connect(b, addr)
				burst := 1000
				if outcome == "denied" {
					burst = 1
				}

				var ours, theirs [][]any
				limiter, err := ginlimit.NewLimiter(spied)
				if err != nil {
					b.Fatal(err)
				}
				policy, err := limiter.Policy("api", ginlimit.PerMinute(rate).WithBurst(burst))
				if err != nil {
					b.Fatal(err)
				}
				peer := redis_rate.NewLimiter(spied)
				hook := recordHook{args: new([][]any)}
				spied.AddHook(hook)
				for i := range scriptClients {
					key := fmt.Sprint("client ", i)
					if _, err := policy.Allow(ctx, key); err != nil {
						b.Fatal(err)
					}
				}
				ours, *hook.args = lastOf(*hook.args, scriptClients), nil
				for i := range scriptClients {
					limit := redis_rate.PerMinute(rate)
					limit.Burst = burst
					if _, err := peer.Allow(ctx, fmt.Sprint("client ", i), limit); err != nil {
						b.Fatal(err)
					}
				}
				theirs = lastOf(*hook.args, scriptClients)

				for b.Loop() {
					costs := [2][]float64{}
					for round := range scriptRounds {
						if outcome == "admitted" && round%scriptHits == 0 {
							if err := rdb.FlushDB(ctx).Err(); err != nil {
								b.Fatal(err)
							}
						}
						for i, batch := range [][][]any{ours, theirs} {
							costs[i] = append(costs[i], costPerCall(b, rdb, batch))
						}
					}
					us, peer := median(costs[0]), median(costs[1])
					b.ReportMetric(us, "ginlimit-µs/call")
					b.ReportMetric(peer, "redis_rate-µs/call")
					b.ReportMetric(us/peer, "ratio")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// lastOf returns the last n commands, without those that met NOSCRIPT and were sent again.
func lastOf(args [][]any, n int) [][]any { return args[len(args)-n:] }

// costPerCall sends a batch and returns the microseconds a call of it cost.
func costPerCall(b *testing.B, rdb *redis.Client, batch [][]any) float64 {
	ctx := b.Context()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	pipe := rdb.Pipeline()
	for _, args := range batch {
		pipe.Do(ctx, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		b.Fatal(err)
	}
	cost, err := redisserver.Info(ctx, rdb, "commandstats", `cmdstat_evalsha:.*usec_per_call=([\d.]+)`)
	if err != nil {
		b.Fatal(err)
	}
	return cost
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkMemory compares what a client costs Redis in memory, after one hit.
func BenchmarkMemory(b *testing.B) {
	const clients = 100_000
	for b.Loop() {
		var bytes [2]float64
		for i := range bytes {
			ctx, rdb := b.Context(), redistest.Connect(b, redistest.Start(b))
			limiter, err := ginlimit.NewLimiter(rdb)
			if err != nil {
				b.Fatal(err)
			}
			policy, err := limiter.Policy("api", ginlimit.PerHour(100))
			if err != nil {
				b.Fatal(err)
			}
			peer := redis_rate.NewLimiter(rdb)
			hit := [2]func(key string) error{
				func(key string) error {
					_, err := policy.Allow(ctx, key)
					return err
				},
				func(key string) error {
					_, err := peer.Allow(ctx, key, redis_rate.PerHour(100))
					return err
				},
			}[i]
			if err := hit("the first loads the script"); err != nil {
				b.Fatal(err)
			}
			const used = `used_memory:(\d+)`
			before, err := redisserver.Info(ctx, rdb, "memory", used)
			if err != nil {
				b.Fatal(err)
			}
			for c := range clients {
				if err := hit(fmt.Sprintf("203.%d.%d.%d", c>>16, c>>8&255, c&255)); err != nil {
					b.Fatal(err)
				}
			}
			after, err := redisserver.Info(ctx, rdb, "memory", used)
			if err != nil {
				b.Fatal(err)
			}
			bytes[i] = (after - before) / clients
		}
		b.ReportMetric(bytes[0], "ginlimit-B/client")
		b.ReportMetric(bytes[1], "redis_rate-B/client")
		b.ReportMetric(bytes[0]/bytes[1], "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

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
				hook := recordHook{args: new([][]any)}
				spied.AddHook(hook)
				limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithTimeout(time.Minute))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = limiter.Close() })
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
			attempts := 1_000_000 // of all processes; their limiters report smaller numbers, which change nothing
			admitted := func() (batch [][]any) {
				for i := range scriptClients {
					call := slices.Clone(takes[i%processes]) // ends with what has ended, what that holds, the attempt, and k
					copy(call[len(call)-4:], []any{attempts, 1, fmt.Sprint(attempts+1, ",")})
					batch, attempts = append(batch, call), attempts+1
				}
				return batch
			}
			for b.Loop() {
				var costs [2][]float64
				for range batches {
					for i, batch := range [][][]any{admitted(), denied} {
						costs[i] = append(costs[i], costPerCall(b, rdb, batch))
					}
				}
				b.ReportMetric(slices.Min(costs[0]), "admitted-µs") // others may use the CPU
				b.ReportMetric(slices.Min(costs[1]), "denied-µs")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkLevelScript says what a decision on a rate and on requests in flight at some levels costs
// Redis: usec_per_call of the script, in batches by turns, from INFO commandstats. One process or two hold
// slots at each level.
func BenchmarkLevelScript(b *testing.B) {
	const batches = 20
	gin.SetMode(gin.ReleaseMode)
	for _, row := range []struct{ levels, processes int }{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {1, 2}, {3, 2}} {
		b.Run(fmt.Sprintf("levels=%d/processes=%d", row.levels, row.processes), func(b *testing.B) {
			addr := redistest.Start(b)
			rdb := redistest.Connect(b, addr)
			calls := func() []any {
				spied := redistest.Connect(b, addr)
				hook := recordHook{args: new([][]any)}
				spied.AddHook(hook)
				limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithTimeout(time.Minute))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = limiter.Close() })
				everybody := ginlimit.WithKey(func(*gin.Context) (string, error) { return "all", nil })
				var policies []*ginlimit.Policy
				for level := range max(1, row.levels) {
					var options []ginlimit.PolicyOption
					if level == 0 {
						options = append(options, ginlimit.PerMinute(100).WithBurst(1_000_000_000))
					} else {
						options = append(options, everybody)
					}
					if level < row.levels {
						options = append(options, ginlimit.InFlight(1<<20))
					}
					policy, err := limiter.Policy(fmt.Sprint("level ", level), options...)
					if err != nil {
						b.Fatal(err)
					}
					policies = append(policies, policy)
				}
				engine, served, end := gin.New(), make(chan struct{}), make(chan struct{})
				engine.GET("/", ginlimit.AllOf(policies...), func(*gin.Context) { close(served); <-end })
				go engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
				<-served
				b.Cleanup(func() { close(end) })
				return lastOf(*hook.args, 1)[0]
			}
			var takes [][]any
			for range row.processes {
				takes = append(takes, calls())
			}
			// A repeated call takes nothing more, and costs as much.
			all := slices.Repeat(takes, scriptClients/row.processes)
			for b.Loop() {
				var costs []float64
				for range batches {
					costs = append(costs, costPerCall(b, rdb, all))
				}
				b.ReportMetric(median(costs), "µs")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
