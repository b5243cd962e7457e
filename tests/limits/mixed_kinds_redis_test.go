//go:build integration

package limits_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestLimitsOfDifferentAlgorithmsInOneCallOnRedis has periods so long that a clock that runs makes
// no difference but for seconds.
func TestLimitsOfDifferentAlgorithmsInOneCallOnRedis(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rdb.FlushDB(t.Context()) // a server of its own
			followMixed(t, seed, 400/testkit.RaceShare, mixedRedis(t, rdb), time.Hour, 30*time.Second, nil)
		})
	}
}
