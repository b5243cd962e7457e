// Command scale has several processes ask one Redis, or one cluster, for decisions. It flushes those servers.
// With -pace one process has 1, 10 or 40 limiters, each with a client of its own and that many requests a
// second at random times: they cost Redis what as many processes cost that are hardly busy.
//
//	go run ./scale [-addrs 127.0.0.1:7000,…] [-callers 64] [-pace 500]
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

var (
	addrs   = flag.String("addrs", "127.0.0.1:7000", "the servers, with commas between; several are a cluster")
	callers = flag.Int("callers", 64, "how many ask at once in each process")
	pace    = flag.Float64("pace", 0, "requests a second of each limiter, instead of callers that ask again at once")
	many    = flag.Int("limiters", 1, "the limiters of one process, if it has a scene")
	scene   = flag.String("scene", "", "the scene for one process; without it, all are measured")
	ctx     = context.Background()
)

const (
	rounds, span = 7, time.Second
	warmUp       = 200 * time.Millisecond
	plenty       = 1_000_000_000
)

var scenes = map[string]struct {
	clients int
	limit   ginlimit.Limit
	lease   time.Duration
}{
	"1,000 clients": {1000, ginlimit.PerMinute(100).WithBurst(plenty), 0},
	"one hot key":   {1, ginlimit.PerMinute(100).WithBurst(plenty), 0},
	// Tokens are leased no faster than they flow back: the rate is more than is asked for.
	"one hot key, lease": {1, ginlimit.PerSecond(10_000_000).WithBurst(plenty), 20 * time.Millisecond},
	"1,000 denied":       {1000, ginlimit.PerHour(1), 0},
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newPolicy returns the scene's policy of a limiter with a client of its own.
func newPolicy(list []string) *ginlimit.Policy {
	var rdb redis.UniversalClient = redis.NewClient(&redis.Options{Addr: list[0]})
	if len(list) > 1 {
		rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: list})
	}
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(5*time.Second))
	must(err)
	s := scenes[*scene]
	policy, err := limiter.Policy("test", s.limit, ginlimit.WithLease(s.lease),
		ginlimit.WithFailureMode(ginlimit.FailClosed))
	must(err)
	return policy
}

// process makes decisions for a span of time, once standard input says so, and prints their number.
func process(list []string) {
	var next, decided atomic.Int64
	clients := uint64(scenes[*scene].clients)
	ask := func(policy *ginlimit.Policy) {
		_, err := policy.Allow(ctx, "client "+strconv.Itoa(int(uint64(next.Add(1))*2654435761%clients)))
		must(err)
	}
	policies := make([]*ginlimit.Policy, *many)
	for i := range policies {
		policies[i] = newPolicy(list)
		for range 3 * clients / uint64(*many) { // connect, and use up the limit of those who are to be denied
			ask(policies[i])
		}
	}
	for end := time.Now().Add(warmUp); time.Now().Before(end); { // each process has a lease
		ask(policies[0])
	}
	fmt.Println("ready")
	_, _ = fmt.Scanln()
	end, all := time.Now().Add(span), sync.WaitGroup{}
	for _, policy := range policies {
		if *pace > 0 {
			all.Go(func() { stream(end, func() { ask(policy); decided.Add(1) }) })
			continue
		}
		for range *callers {
			all.Go(func() {
				for ; time.Now().Before(end); decided.Add(1) {
					ask(policy)
				}
			})
		}
	}
	all.Wait()
	fmt.Println(decided.Load())
}

// stream calls f at random times, pace times a second, and waits for all calls at the end.
func stream(end time.Time, f func()) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for at := time.Now(); ; calls.Go(f) {
		at = at.Add(time.Duration(rand.ExpFloat64() / *pace * float64(time.Second)))
		if at.After(end) {
			return
		}
		time.Sleep(time.Until(at))
	}
}

// info adds up a figure of INFO over the servers.
func info(list []string, pattern string) (sum float64) {
	for _, addr := range list {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(rdb.Info(ctx, "everything").Val(), -1) {
			f, err := strconv.ParseFloat(m[1], 64)
			must(err)
			sum += f
		}
		must(rdb.Close())
	}
	return sum
}

// run returns decisions per second, and for each: calls of a script, microseconds of Redis, and of the processes.
func run(list []string, scene string, processes, limiters int) [4]float64 {
	for _, addr := range list {
		must(redis.NewClient(&redis.Options{Addr: addr}).FlushAll(ctx).Err())
	}
	var all []*exec.Cmd
	var ins, outs []*os.File
	for range processes {
		cmd := exec.Command(os.Args[0], "-addrs", *addrs, "-callers", strconv.Itoa(*callers), "-scene", scene,
			"-pace", fmt.Sprint(*pace), "-limiters", strconv.Itoa(limiters))
		r, in, err := os.Pipe()
		must(err)
		out, w, err := os.Pipe()
		must(err)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = r, w, os.Stderr
		must(cmd.Start())
		var ready string
		_, err = fmt.Fscanln(out, &ready)
		must(err)
		all, ins, outs = append(all, cmd), append(ins, in), append(outs, out)
	}
	const cpu, calls = `used_cpu_(?:user|sys):([\d.]+)`, `cmdstat_evalsha:calls=(\d+)`
	cpuBefore, callsBefore := info(list, cpu), info(list, calls)
	for _, in := range ins {
		fmt.Fprintln(in)
	}
	var n, own float64
	for i, cmd := range all {
		var decided float64
		_, err := fmt.Fscanln(outs[i], &decided)
		must(err)
		must(cmd.Wait())
		n += decided
		own += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	return [4]float64{n / span.Seconds(), (info(list, calls) - callsBefore) / n,
		(info(list, cpu) - cpuBefore) * 1e6 / n, own * 1e6 / n}
}

func main() {
	flag.Parse()
	list := strings.Split(*addrs, ",")
	if *scene != "" {
		process(list)
		return
	}
	names, what, counts := []string{"1,000 clients", "one hot key", "one hot key, lease", "1,000 denied"},
		"processes", []int{1, 2, 4}
	if *pace > 0 {
		names, what, counts = names[:2], "limiters", []int{1, 10, 40}
	}
	fmt.Printf("| | %s | decisions, ratio | calls per decision | Redis CPU | CPU of the processes |\n", what)
	fmt.Println("|---|---|---|---|---|---|")
	for _, scene := range names {
		found := map[int][4][]float64{}
		for range rounds { // in turns
			for _, n := range counts {
				row, processes, limiters := found[n], n, 1
				if *pace > 0 {
					processes, limiters = 1, n
				}
				for i, v := range run(list, scene, processes, limiters) {
					row[i] = append(row[i], v)
				}
				found[n] = row
			}
		}
		median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
		for _, n := range counts {
			row := found[n]
			fmt.Printf("| %s | %d | %.2f | %.4f | %.2f µs | %.1f µs |\n", scene, n,
				median(row[0])/median(found[counts[0]][0]), median(row[1]), median(row[2]), median(row[3]))
		}
	}
}
