package ginlimit_test

import (
	"context"
	"os"
	"runtime"
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

// heapInUse returns the bytes of all reachable objects.
func heapInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
