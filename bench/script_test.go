package bench

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

const scriptClients = 1000 // per batch, each once

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
