package top_test

import (
	"context"
	"fmt"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/top"
)

func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer rdb.Close()

	reporter, err := top.New(rdb)
	if err != nil {
		panic(err)
	}
	defer reporter.Close()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithClientObserver(reporter.Observe))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	router.Use(limiter.Handler("api", ginlimit.PerMinute(100)))

	// In this process or in another one:
	clients, err := top.Denied(context.Background(), rdb, ginlimit.DefaultPrefix, "api")
	if err != nil {
		panic(err)
	}
	for _, c := range clients {
		fmt.Printf("%s: %d to %d denials\n", c.Key, c.Denials-c.Error, c.Denials)
	}
}
