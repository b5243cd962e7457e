package testkit

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

// Main runs the tests of a package. Its TestMain calls it and returns.
func Main(m *testing.M) {
	debug.SetGCPercent(400) // miniredis makes a Lua state for every script that it runs
	gin.SetMode(gin.TestMode)
	redis.SetLogger(quiet{}) // servers are stopped on purpose
	os.Exit(m.Run())
}

// MainInRoot is [Main] for tests that name files as the repository's root does.
func MainInRoot(m *testing.M) {
	root, err := Root()
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		panic(err)
	}
	Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// AsInt returns n, or the largest int there is.
func AsInt(n int64) int { return int(min(n, math.MaxInt)) }

// Has64Bits reports whether limits of more than 2^31 tokens can be written down.
const Has64Bits = strconv.IntSize == 64

// HeapInUse returns the bytes of all reachable objects.
func HeapInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
