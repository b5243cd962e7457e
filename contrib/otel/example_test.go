package ginlimitotel_test

import (
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	ginlimitotel "github.com/ginlimit/ginlimit/contrib/otel"
)

func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer rdb.Close()
	// The text of a command has the client's key, so spans go without it.
	if err := redisotel.InstrumentTracing(rdb, redisotel.WithDBStatement(false),
		redisotel.WithDialFilter(true)); err != nil {
		panic(err)
	}

	telemetry, err := ginlimitotel.New()
	if err != nil {
		panic(err)
	}
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(telemetry.Observe))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	telemetry.Watch(limiter)

	router := gin.New() // with a middleware that begins the request's span, such as otelgin's
	router.Use(limiter.Handler("api", ginlimit.PerMinute(100)))
}
