//go:build integration

package ginlimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/internal/harness"
)

// TestLimitsOfDifferentAlgorithmsInOneCallOnRedis has periods so long that a clock that runs makes no difference but for seconds.
func TestLimitsOfDifferentAlgorithmsInOneCallOnRedis(t *testing.T) {
	t.Parallel()
	rdb := harness.Connect(t, harness.StartRedis(t))
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rdb.FlushDB(t.Context()) // a server of its own
			followMixed(t, seed, 400/raceShare, mixedRedis(t, rdb), time.Hour, 30*time.Second, nil)
		})
	}
}
