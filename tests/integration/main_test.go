// Package integration holds the tests that need servers: each starts a redis-server of its own, and says what it does.
package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redis.SetLogger(quiet{}) // servers are stopped on purpose
	if addr := os.Getenv(transportRedis); addr != "" {
		serveTransport(addr, os.Getenv(transportURL))
		return
	}
	os.Exit(m.Run())
}

// say writes what a test does while it does it: what it logs is shown only at its end.
func say(t testing.TB, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", t.Name(), fmt.Sprintf(format, args...))
}
