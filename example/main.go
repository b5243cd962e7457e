// Command example is a Gin application whose requests ginlimit limits.
//
//	go run ./example                                        with a Redis of its own, in the process
//	REDIS_URL=redis://127.0.0.1:6379 go run ./example       with a Redis server
//	go run ./example -addr 127.0.0.1:9000                   on another address
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
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

const shutdownTimeout = 5 * time.Second

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "the address to listen on")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, os.Getenv("REDIS_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// replicas is how many processes the page plays with. The second is in this program too, but shares
// nothing with the first but Redis: it has its own client, limiter, routes and port.
const replicas = 2

// process is a server of the application.
type process struct {
	port    string
	handler *gin.Engine
	tries   tries
}

// run serves until ctx ends. Its limiters have options beside their own.
func run(ctx context.Context, addr, redisURL string, out io.Writer, opts ...ginlimit.LimiterOption) error {
	connect, own, err := connector(redisURL)
	if err != nil {
		return err
	}
	if own != nil {
		defer own.Close()
	}

	where := "memory, as REDIS_URL is not set"
	p := &playground{redis: own}
	var listeners [replicas]net.Listener
	for i := range p.processes {
		rdb := connect()
		defer rdb.Close()
		if own == nil {
			where = rdb.Options().Addr
		}
		limiter, err := newLimiter(rdb, opts...)
		if err != nil {
			return err
		}
		defer limiter.Close()
		if p.processes[i], err = newProcess(limiter); err != nil {
			return err
		}
		if listeners[i], err = net.Listen("tcp", addr); err != nil {
			return err
		}
		defer listeners[i].Close()
		var host string
		host, p.processes[i].port, _ = net.SplitHostPort(listeners[i].Addr().String())
		addr = net.JoinHostPort(host, "0") // any free port for the second one
	}
	addPage(p.processes[0].handler, p)

	fmt.Fprintf(out, `Listening on %s, counting in %s.

Open http://localhost:%[3]s to compare the algorithms and to see fair shares. Or try, from another terminal:

    curl -i localhost:%[3]s/ping            # 100 a minute for these routes together
    curl -i -X POST localhost:%[3]s/login   # and 5 per 15 minutes: the sixth is 429
    curl -i localhost:%[3]s/search          # 10 a second, 20 at once, and 300 an hour
    curl -i localhost:%[4]s/ping            # a second process, which shares the buckets
    ab -l -n 200 -c 10 http://127.0.0.1:%[3]s/ping

Ctrl-C stops it.
`, listeners[0].Addr(), where, p.processes[0].port, p.processes[1].port)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, replicas)
	for i, process := range p.processes {
		go func() { served <- serve(ctx, listeners[i], process.handler) }()
	}
	for range p.processes {
		err = errors.Join(err, <-served)
		stop() // both end together
	}
	return err
}

// newLimiter returns the limiter of a process.
func newLimiter(rdb *redis.Client, opts ...ginlimit.LimiterOption) (*ginlimit.Limiter, error) {
	return ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{
		ginlimit.WithReplicas(replicas),
		// This machine also runs a browser. The default suits a server.
		ginlimit.WithTimeout(250 * time.Millisecond),
	}, opts...)...)
}

// serve answers requests until ctx ends, and then those that have begun, for shutdownTimeout.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		// A browser opens connections ahead, and Shutdown waits for the first request of each.
		return server.Close()
	}
	return nil
}

// newProcess limits every route, and two of them further. Those of the page are apart.
func newProcess(limiter *ginlimit.Limiter) (*process, error) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	_ = r.SetTrustedProxies(nil) // no client's X-Forwarded-For is trusted; nil cannot fail

	tries, err := newTries(limiter)
	if err != nil {
		return nil, err
	}
	r.GET("/try", tries.middleware(), answer("admitted"))
	addShares(r, limiter)

	limited := r.Group("/", limiter.Handler("all", ginlimit.PerMinute(100)))
	limited.GET("/ping", answer("pong"))
	limited.POST("/login",
		limiter.Handler("login", ginlimit.Per(5, 15*time.Minute)),
		answer("welcome"))
	limited.GET("/search",
		limiter.Handler("search", ginlimit.PerSecond(10).WithBurst(20), ginlimit.PerHour(300)),
		answer("found"))
	return &process{handler: r, tries: tries}, nil
}

func answer(text string) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusOK, text+"\n") }
}
