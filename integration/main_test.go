// Package integration holds the tests that need servers: each starts a redis-server of its own, and says what it does.
package integration

import (
	"context"
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
	os.Exit(m.Run())
}
