// Command example is a Gin application whose requests ginlimit limits.
//
//	go run ./example                                        with a Redis of its own, in the process
//	REDIS_URL=redis://127.0.0.1:6379 go run ./example       with a Redis server
//	go run ./example -addr 127.0.0.1:9000                   on another address
package main

import (
	"context"
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

// run serves until ctx ends.
func run(ctx context.Context, addr, redisURL string, out io.Writer) error {
	rdb, own, err := connect(redisURL)
	if err != nil {
		return err
	}
	defer rdb.Close()
	where := rdb.Options().Addr
	if own != nil {
		defer own.Close()
		where = "memory, as REDIS_URL is not set"
	}

	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return err
	}
	defer limiter.Close()

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	fmt.Fprintf(out, `Listening on %s, counting in %s.

Open http://localhost:%[3]s to see a bucket drain and refill. Or try, from another terminal:

    curl -i localhost:%[3]s/ping            # 100 a minute for these routes together
    curl -i -X POST localhost:%[3]s/login   # and 5 per 15 minutes: the sixth is 429
    curl -i localhost:%[3]s/search          # 10 a second, 20 at once, and 300 an hour
    ab -l -n 200 -c 10 http://127.0.0.1:%[3]s/ping

Ctrl-C stops it.
`, listener.Addr(), where, port)

	return serve(ctx, listener, router(limiter, own))
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

// router limits every route, and two of them further. Those of the page are apart. own is nil if Redis is a server.
func router(limiter *ginlimit.Limiter, own *ownRedis) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	_ = r.SetTrustedProxies(nil) // nobody's X-Forwarded-For is believed; nil cannot fail

	addPage(r, limiter, own) // before the next line, so that playing leaves the other routes their tokens
	r.Use(limiter.Handler(ginlimit.PerMinute(100)))
	r.GET("/ping", answer("pong"))
	r.POST("/login",
		limiter.Handler(ginlimit.Limit{Rate: 5, Period: 15 * time.Minute}, ginlimit.WithName("login")),
		answer("welcome"))
	r.GET("/search",
		limiter.Handler(ginlimit.PerSecond(10).WithBurst(20),
			ginlimit.WithLimits(ginlimit.PerHour(300)), ginlimit.WithName("search")),
		answer("found"))
	return r
}

func answer(text string) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusOK, text+"\n") }
}

// connect returns a client of the server at url, or of a Redis inside this process, which it returns too.
func connect(url string) (*redis.Client, *ownRedis, error) {
	if url != "" {
		opts, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		return redis.NewClient(opts), nil, nil
	}
	own, err := startRedis()
	if err != nil {
		return nil, nil, err
	}
	return redis.NewClient(&redis.Options{Addr: own.Addr()}), own, nil
}
