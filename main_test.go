package ginlimit_test

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // miniredis makes a Lua state for every script that it runs
	gin.SetMode(gin.TestMode)
	redis.SetLogger(quiet{}) // servers are stopped on purpose
	os.Exit(m.Run())
}

// asInt returns n, or the largest int there is.
func asInt(n int64) int { return int(min(n, math.MaxInt)) }

// has64Bits reports whether limits of more than 2^31 tokens can be written down.
const has64Bits = strconv.IntSize == 64

// heapInUse returns the bytes of all reachable objects.
func heapInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
