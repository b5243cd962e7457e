// Command worker has four processes call a partner that allows 100 calls a second for all of them together, and answers
// 429 beyond. A fifth is killed every ten seconds and started again. All of the partner's limit is used, and no call is
// denied:
//
//	$ go run ./example/worker -for 5m -redis 127.0.0.1:6379
//	  1 s: 122 calls, 0 denied in all
//	  2 s:  99 calls, 0 denied in all
//	  3 s: 100 calls, 0 denied in all
//	…
//	299 s: 100 calls, 0 denied in all
//	300 s: 100 calls, 0 denied in all
//	Done in 300 s: 29873 calls, 0 denied
//
// Without -redis a Redis runs in the process, and nothing else has to be installed. Each process makes its own limiter
// and one transport.New(policy, nil): docs/guide.md, "An API over HTTP". The policy's burst is 25, the partner's 100.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/transport"
)

const (
	perSecond = 100 // calls that the partner allows
	callers   = 8   // in each process
	killEvery = 10 * time.Second
)

func main() {
	lasts := flag.Duration("for", 30*time.Second, "how long")
	processes := flag.Int("processes", 4, "how many processes call the partner, beside one that is killed")
	redisAddr := flag.String("redis", "", "the address of a Redis server; without one, a Redis in this process")
	partner := flag.String("call", "", "the partner's URL: what the processes are started with")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *partner != "" {
		err = work(ctx, *partner, *redisAddr)
	} else {
		err = run(ctx, *lasts, *processes, *redisAddr, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// work is what a process does: it calls the partner, as often as the partner allows.
func work(ctx context.Context, partner, redisAddr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer rdb.Close()
	// The partner counts also while Redis is down: callers wait until it is back.
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(time.Second),
		ginlimit.WithFailureMode(ginlimit.FailClosed))
	if err != nil {
		return err
	}
	defer limiter.Close()
	// The partner's burst is 100. Calls that leave evenly may arrive in bunches, so the policy has a smaller one.
	quota, err := limiter.Policy("partner", ginlimit.PerSecond(perSecond).WithBurst(perSecond/4))
	if err != nil {
		return err
	}
	calls, err := transport.New(quota, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: calls}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := call(ctx, client, partner); err != nil && ctx.Err() == nil {
					log.Print(err)
					time.Sleep(time.Second)
				}
			}
		})
	}
	all.Wait()
	return nil
}

func call(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// run starts a partner and the processes that call it, and prints what the partner counts.
func run(ctx context.Context, lasts time.Duration, processes int, redisAddr string, out io.Writer) error {
	if redisAddr == "" {
		own, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer own.Close()
		redisAddr = own.Addr()
	}
	var p partner
	url, end, err := p.serve()
	if err != nil {
		return err
	}
	defer end()
	ctx, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	errs := make([]error, processes+1)
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() { errs[i] = start(ctx, url, redisAddr) })
	}
	all.Go(func() {
		for ctx.Err() == nil {
			life, kill := context.WithTimeout(ctx, killEvery)
			errs[processes] = start(life, url, redisAddr)
			kill()
		}
	})
	began := time.Now()
	p.report(ctx, out)
	all.Wait()
	fmt.Fprintf(out, "Done in %.0f s: %d calls, %d denied\n", time.Since(began).Seconds(), p.allowed.Load(),
		p.denied.Load())
	return errors.Join(errs...)
}

// startRedis starts a Redis in this process. Its clock has whole milliseconds, as a server's has: by its own it would
// lose half a millisecond with each call, 5 % of this limit.
func startRedis(ctx context.Context) (*miniredis.Miniredis, error) {
	own := miniredis.NewMiniRedis()
	own.SetTime(time.Now().Truncate(time.Millisecond))
	own.ClockTTL(true) // keys expire as time passes
	go func() {
		clock := time.NewTicker(time.Millisecond)
		defer clock.Stop()
		for ctx.Err() == nil {
			own.SetTime((<-clock.C).Truncate(time.Millisecond))
		}
	}()
	return own, own.Start()
}

// start runs a process until the context ends, and kills it then.
func start(ctx context.Context, url, redisAddr string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	process := exec.CommandContext(ctx, self, "-call", url, "-redis", redisAddr)
	process.Stderr = os.Stderr
	if err := process.Run(); ctx.Err() == nil {
		return fmt.Errorf("a process ended by itself: %w", err)
	}
	return nil
}

// partner is an API that allows perSecond calls.
type partner struct{ allowed, denied atomic.Int64 }

// serve serves it, and returns its URL.
func (p *partner) serve() (url string, end func(), err error) {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		return "", nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	everybody := func(*gin.Context) (string, error) { return "everybody", nil }
	router.Use(func(c *gin.Context) {
		c.Next()
		if c.Writer.Status() == http.StatusTooManyRequests {
			p.denied.Add(1)
		} else {
			p.allowed.Add(1)
		}
	})
	limit := limiter.Handler("api", ginlimit.PerSecond(perSecond), ginlimit.WithKey(everybody))
	router.GET("/", limit, func(*gin.Context) {})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: router, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = server.Close(); _ = limiter.Close() }, nil
}

// report prints each second how many calls there were.
func (p *partner) report(ctx context.Context, out io.Writer) {
	seconds := time.NewTicker(time.Second)
	defer seconds.Stop()
	for last, second := int64(0), 1; ; second++ {
		select {
		case <-ctx.Done():
			return
		case <-seconds.C:
		}
		allowed := p.allowed.Load()
		fmt.Fprintf(out, "%3d s: %3d calls, %d denied in all\n", second, allowed-last, p.denied.Load())
		last = allowed
	}
}
