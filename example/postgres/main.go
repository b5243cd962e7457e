// Command postgres is a Gin application that limits each client to what a PostgreSQL database says. Requests rarely
// query it: docs/guide.md, "Plans from a database", says why. A client says who it is by X-Client-Id, as a gateway
// would say that has checked it.
//
//	cd example/postgres
//	DATABASE_URL=postgres://postgres@127.0.0.1:5432/test REDIS_URL=redis://127.0.0.1:6379 go run . -addr 127.0.0.1:9010
//
// These URLs are the defaults. At its start it makes the table clients (schema.sql) with the clients three (3 a
// minute), unlimited and prohibited, if they are not there. From another terminal:
//
//	curl -i -H 'X-Client-Id: three' http://localhost:9010/           # 3 a minute: the fourth is 429
//	curl -i -X PUT -d quota=5 http://localhost:9010/plans/three      # from now on 5 a minute
//
// The fourth request is denied. Its header fields are set by the application's own WithHeaderFunc:
//
//	HTTP/1.1 429 Too Many Requests
//	Retry-After: 20
//	X-Rate-Limit-Policy: 3/m
//	X-Rate-Limit-Quota: 3
//	X-Rate-Limit-Reset: 60
//	X-Rate-Limit-Used: 3
//
// After the change the bucket is still empty, but a token comes every 12 seconds instead of 20.
//
// A quota of -1 is unlimited, and 0 prohibits. A client that is not in the table gets 403, and a request without
// X-Client-Id 400. PUT /plans/:client writes to the database and then calls Plans.Invalidate. A change in the database
// alone is noticed within a minute. In an application, only administrators may call this route.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

//go:embed schema.sql
var schema string

// planLife is how long a changed quota may take to be noticed, without [ginlimit.Plans.Invalidate].
const planLife = time.Minute

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "the address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, addr string, out io.Writer) error {
	db, err := pgxpool.New(ctx, cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres@127.0.0.1:5432/test"))
	if err != nil {
		return errors.New("DATABASE_URL is none that pgx can read") // whose error may quote a part of the password
	}
	defer db.Close()
	if _, err := db.Exec(ctx, schema); err != nil {
		return err
	}
	options, err := redis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return errors.New("REDIS_URL is none that go-redis can read") // whose error quotes the password
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()

	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return err
	}
	defer limiter.Close()
	handler, err := router(limiter, db)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	fmt.Fprintf(out, `Listening on %s. Try, from another terminal:

    curl -i -H 'X-Client-Id: three' http://localhost:%[2]s/           # 3 a minute: the fourth is 429
    curl -i -X PUT -d quota=5 http://localhost:%[2]s/plans/three      # from now on 5 a minute

Ctrl-C stops it.
`, listener.Addr(), port)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// router limits each client to its quota, and changes quotas.
func router(limiter *ginlimit.Limiter, db *pgxpool.Pool) (*gin.Engine, error) {
	plans, err := limiter.NewPlans("plans", planLife, quotas(db))
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	_ = r.SetTrustedProxies(nil) // no address counts here; nil cannot fail
	r.PUT("/plans/:client", changePlan(db, plans))
	r.Use(limiter.Handler("quota",
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(plans.Limits),
		ginlimit.WithHeaders(ginlimit.NoHeaders), ginlimit.WithHeaderFunc(writeQuota)))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	return r, nil
}

// quotas returns the limits of a client from the database.
func quotas(db *pgxpool.Pool) func(context.Context, string) ([]ginlimit.Limit, error) {
	return func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
		if !utf8.ValidString(client) || strings.Contains(client, "\x00") {
			return nil, ginlimit.ErrUnknownClient // PostgreSQL would reject the query
		}
		var quota int
		err := db.QueryRow(ctx, "SELECT rate_limit_quota FROM clients WHERE id = $1", client).Scan(&quota)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, ginlimit.ErrUnknownClient // answered 403; or return a limit for strangers
		}
		return []ginlimit.Limit{ginlimit.PerMinute(quota)}, err
	}
}

// changePlan sets the quota of a client. It holds here at once, and in other processes within a second.
func changePlan(db *pgxpool.Pool, plans *ginlimit.Plans) gin.HandlerFunc {
	return func(c *gin.Context) {
		client := c.Param("client")
		quota, err := strconv.ParseInt(c.PostForm("quota"), 10, 32)
		if err != nil || quota < -1 || !utf8.ValidString(client) || strings.Contains(client, "\x00") {
			c.String(http.StatusBadRequest, "want a client, and a quota from -1 to %d\n", math.MaxInt32)
			return
		}
		_, err = db.Exec(c.Request.Context(), `INSERT INTO clients (id, rate_limit_quota) VALUES ($1, $2)
			ON CONFLICT (id) DO UPDATE SET rate_limit_quota = $2`, client, quota)
		if err == nil { // only now: before, the old plan might be read again
			err = plans.Invalidate(c.Request.Context(), client)
		}
		if err != nil { // the plan may have changed: it is safe to try again
			_ = c.Error(err)
			c.String(http.StatusServiceUnavailable, "try again\n")
			return
		}
		c.Status(http.StatusNoContent)
	}
}

// writeQuota sets the headers of this application.
func writeQuota(h http.Header, limits []ginlimit.Result) {
	r := limits[0]
	quota, used := r.Limit.Rate, 0
	if quota > 0 {
		used = quota - r.Remaining
	}
	h.Set("X-Rate-Limit-Policy", r.Limit.String())
	h.Set("X-Rate-Limit-Quota", strconv.Itoa(quota))
	h.Set("X-Rate-Limit-Used", strconv.Itoa(used))
	h.Set("X-Rate-Limit-Reset", strconv.Itoa(int((r.ResetAfter+time.Second-1)/time.Second)))
}
