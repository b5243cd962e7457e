package main

import (
	"embed"
	"net/http"

	"github.com/gin-gonic/gin"
)

//go:embed page.html page.css page.js shares.js
var page embed.FS

// pagePolicy has the browser enforce that the page consists of these files and calls this server only.
const pagePolicy = "default-src 'none'; connect-src 'self'; img-src data:; script-src 'self'; style-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// addPage adds the live page and the routes that it calls.
func addPage(r *gin.Engine, p *playground) {
	for path, file := range map[string]string{"/": "page.html", "/page.css": "page.css", "/page.js": "page.js",
		"/shares.js": "shares.js"} {
		r.GET(path, func(c *gin.Context) {
			c.Header("Content-Security-Policy", pagePolicy)
			c.Header("Cache-Control", "no-cache") // the next version of the program has another page
			http.ServeFileFS(c.Writer, c.Request, page, file)
		})
	}
	r.GET("/play", p.look)
	turn := turns(maxCalls)
	r.POST("/play", sameOrigin, turn, p.send)
	r.POST("/play/shares", sameOrigin, turn, p.share)
	r.POST("/play/reset", sameOrigin, p.reset)
	if p.redis != nil {
		r.POST("/redis/stop", sameOrigin, p.redis.stop)
		r.POST("/redis/start", sameOrigin, p.redis.start)
	}
}

// maxCalls is how many calls of pages send requests at once. It bounds what all visitors cost together.
const maxCalls = 8

// turns lets n calls be answered at once. The others wait.
func turns(n int) gin.HandlerFunc {
	slots := make(chan struct{}, n)
	return func(c *gin.Context) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			c.Next()
		case <-c.Request.Context().Done(): // the page is gone
			c.Abort()
		}
	}
}

// sameOrigin keeps other sites' pages, in the same browser, away from what changes something.
func sameOrigin(c *gin.Context) {
	if http.NewCrossOriginProtection().Check(c.Request) != nil {
		c.AbortWithStatus(http.StatusForbidden)
	}
}
