package ginlimitprom_test

import (
	"net/http"

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

	router := newRouter(limiter)
	_ = router.Run("127.0.0.1:8080")
}

func newRouter(limiter *ginlimit.Limiter) *gin.Engine {
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/metrics", gin.WrapH(promhttp.Handler())) // before the limiter, which would deny scrapes
	router.Use(limiter.Handler("api", ginlimit.PerMinute(100)))
	router.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return router
}
