package ginlimitprom_test

import (
	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	ginlimitprom "github.com/ginlimit/ginlimit/contrib/prometheus"
)

func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer rdb.Close()

	metrics := ginlimitprom.New()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(metrics.Observe))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	metrics.Watch(limiter)
	prometheus.MustRegister(metrics)

	router := gin.New()
	router.Use(limiter.Handler(ginlimit.PerMinute(100), ginlimit.WithName("api")))
	router.GET("/metrics", gin.WrapH(promhttp.Handler()))
}
