package main

import (
	_ "embed"
	"net/http"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

//go:embed page.html
var page []byte

// pagePolicy has the browser enforce that the page is one file and calls this server only.
const pagePolicy = "default-src 'none'; connect-src 'self'; img-src data:; " +
	"script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"

// addPage adds the live page and the routes that it calls.
func addPage(r *gin.Engine, limiter *ginlimit.Limiter, own *ownRedis) {
	r.GET("/", func(c *gin.Context) {
		c.Header("Content-Security-Policy", pagePolicy)
		c.Data(http.StatusOK, "text/html; charset=utf-8", page)
	})

	play := limiter.Handler(ginlimit.PerMinute(60).WithBurst(20), ginlimit.WithName("play"),
		ginlimit.WithCost(func(c *gin.Context) int {
			if c.Request.Method == http.MethodHead {
				return 0 // the page looks at the bucket
			}
			return 1
		}))
	r.GET("/play", play, answer("allowed"))
	r.HEAD("/play", play, answer(""))

	r.GET("/redis", own.tell)
	if own != nil {
		r.POST("/redis/stop", sameOrigin, own.stop)
		r.POST("/redis/start", sameOrigin, own.start)
	}
}

// sameOrigin keeps other sites' pages, in the same browser, away from the switch.
func sameOrigin(c *gin.Context) {
	if http.NewCrossOriginProtection().Check(c.Request) != nil {
		c.AbortWithStatus(http.StatusForbidden)
	}
}

// ownRedis is a Redis inside this process, which can be stopped to see what happens without it.
type ownRedis struct {
	*miniredis.Miniredis

	mu      sync.Mutex
	running bool
}

func startRedis() (*ownRedis, error) {
	own := &ownRedis{Miniredis: miniredis.NewMiniRedis(), running: true}
	own.ClockTTL(true) // keys expire as time passes
	return own, own.Start()
}

// tell says whether there is a Redis to switch, and whether it runs.
func (own *ownRedis) tell(c *gin.Context) {
	running := false
	if own != nil {
		own.mu.Lock()
		defer own.mu.Unlock()
		running = own.running
	}
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, gin.H{"embedded": own != nil, "running": running})
}

func (own *ownRedis) stop(c *gin.Context) {
	own.mu.Lock()
	own.Close()
	own.running = false
	own.mu.Unlock()
	own.tell(c)
}

// start fails if somebody has taken the port meanwhile.
func (own *ownRedis) start(c *gin.Context) {
	own.mu.Lock()
	if !own.running {
		own.running = own.Restart() == nil // with all its keys
	}
	own.mu.Unlock()
	own.tell(c)
}
