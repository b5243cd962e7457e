// Command worker has workers that wait for the quota of a partner: so many calls a second, and so
// many a calendar day, for all processes together.
//
//	go run ./example/worker                            with a Redis of its own, in the process
//	go run ./example/worker -redis 127.0.0.1:6379      with a Redis server; start several, and they share the quota
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

const workers = 4

func main() {
	jobs := flag.Int("jobs", 50, "how many jobs there are")
	redisAddr := flag.String("redis", "", "the address of a Redis server; without one, a Redis in this process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *jobs, *redisAddr, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run has the jobs done, as fast as the partner allows.
func run(ctx context.Context, jobs int, redisAddr string, out io.Writer) error {
	if redisAddr == "" {
		own := miniredis.NewMiniRedis()
		own.ClockTTL(true) // keys expire as time passes
		if err := own.Start(); err != nil {
			return err
		}
		defer own.Close()
		redisAddr = own.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer rdb.Close()
	// The partner counts also while Redis is down: workers wait until it is back.
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithFailureMode(ginlimit.FailClosed))
	if err != nil {
		return err
	}
	defer limiter.Close()
	quota, err := limiter.Policy("partner", ginlimit.PerSecond(20).WithBurst(5),
		ginlimit.PerCalendar(10_000, ginlimit.CalendarDay(nil)))
	if err != nil {
		return err
	}

	todo, start := make(chan int), time.Now()
	go func() {
		defer close(todo)
		for job := range jobs {
			select {
			case todo <- job:
			case <-ctx.Done():
				return
			}
		}
	}()
	var all sync.WaitGroup
	errs := make([]error, workers)
	for worker := range workers {
		all.Go(func() {
			for job := range todo {
				if errs[worker] = quota.Wait(ctx, "calls"); errs[worker] != nil {
					return // ctx has ended
				}
				fmt.Fprintf(out, "%6.3f s: worker %d calls the partner for job %d\n", time.Since(start).Seconds(), worker, job)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		return err
	}
	took := time.Since(start).Seconds()
	if left, err := quota.Peek(context.WithoutCancel(ctx), "calls"); err != nil {
		fmt.Fprintf(out, "Done in %.1f s; how much is left is not known: %v\n", took, err)
	} else {
		fmt.Fprintf(out, "Done in %.1f s; %d of %s are left.\n", took, left.Remaining, left.Limit)
	}
	return nil
}
