package peers

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
)

// NewEngine returns a Gin engine with the middleware before GET /.
func NewEngine(middleware gin.HandlerFunc) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/", middleware, func(c *gin.Context) { c.Writer.WriteHeader(http.StatusOK) })
	return r
}

// Caller sends requests to a handler, without a network and without allocating.
type Caller struct {
	request *http.Request
	client  []string
	header  http.Header
	status  int
	cancel  context.CancelFunc
}

// NewCaller returns a caller whose requests have a context of their own, as each of a server has.
func NewCaller(ctx context.Context) *Caller {
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		panic(err) // method and URL are constant
	}
	c := &Caller{request: request, client: make([]string, 1), header: http.Header{}, cancel: cancel}
	request.Header[ClientHeader] = c.client
	return c
}

// Close ends the context of the requests.
func (c *Caller) Close() { c.cancel() }

// Header, Write and WriteHeader implement [http.ResponseWriter].
func (c *Caller) Header() http.Header         { return c.header }
func (c *Caller) Write(p []byte) (int, error) { return len(p), nil }
func (c *Caller) WriteHeader(status int)      { c.status = status }

// Call makes one request for a client and returns the status.
func (c *Caller) Call(h http.Handler, client string) int {
	clear(c.header)
	c.client[0], c.status = client, http.StatusOK
	h.ServeHTTP(c, c.request)
	return c.status
}

// Degraded reports whether ginlimit made the last decision without Redis.
func (c *Caller) Degraded() bool {
	return len(c.header["X-Ratelimit-Status"]) > 0
}
