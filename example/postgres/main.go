// Command postgres is a Gin application that limits each client to what a PostgreSQL database says.
//
//	DATABASE_URL=postgres://postgres@127.0.0.1:5432/test REDIS_URL=redis://127.0.0.1:6379 go run .
//
// These are the defaults. It makes the table of schema.sql, with three clients, if it is not there. A client says who
// it is by X-Client-Id, as a gateway would say that has checked it.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
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
	addr := flag.String("addr", ":8080", "the address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	db, err := pgxpool.New(ctx, cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres@127.0.0.1:5432/test"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(ctx, schema); err != nil {
		return err
	}
	options, err := redis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()

	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return err
	}
	defer limiter.Close()
	handler, err := router(limiter, rdb, db)
	if err != nil {
		return err
	}

	server := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	fmt.Printf("Listening on %s. Try: curl -i -H 'X-Client-Id: three' localhost%s/\n", addr, addr)
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

// router limits each client to its quota.
func router(limiter *ginlimit.Limiter, rdb redis.UniversalClient, db *pgxpool.Pool) (*gin.Engine, error) {
	plans, err := ginlimit.NewPlans(rdb, planLife, quotas(db))
	if err != nil {
		return nil, err
	}
	r := gin.New()
	_ = r.SetTrustedProxies(nil)                 // no address counts here; nil cannot fail
	r.Use(limiter.Handler(ginlimit.PerMinute(0), // its place is taken by the plan
		ginlimit.WithName("quota"),
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(plans.Limits),
		ginlimit.WithHeaders(ginlimit.NoHeaders), ginlimit.WithHeaderFunc(tell)))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	return r, nil
}

// quotas returns the limits of a client from the database.
func quotas(db *pgxpool.Pool) func(context.Context, string) ([]ginlimit.Limit, error) {
	return func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
		if !utf8.ValidString(client) {
			return nil, ginlimit.ErrUnknownClient // PostgreSQL would refuse the query
		}
		var quota int
		err := db.QueryRow(ctx, "SELECT rate_limit_quota FROM clients WHERE id = $1", client).Scan(&quota)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, ginlimit.ErrUnknownClient // answered 403; or return a limit for strangers
		}
		return []ginlimit.Limit{ginlimit.PerMinute(quota)}, err
	}
}

// tell sets the headers of this application.
func tell(h http.Header, r ginlimit.Result) {
	quota, used := r.Limit.Rate, 0
	if quota > 0 {
		used = quota - r.Remaining
	}
	h.Set("X-Rate-Limit-Policy", r.Limit.String())
	h.Set("X-Rate-Limit-Quota", strconv.Itoa(quota))
	h.Set("X-Rate-Limit-Used", strconv.Itoa(used))
	h.Set("X-Rate-Limit-Reset", strconv.Itoa(int((r.ResetAfter+time.Second-1)/time.Second)))
}
