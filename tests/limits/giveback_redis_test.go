//go:build integration

package limits_test

import (
	"testing"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestAResetVoidsReservationsOnRedis(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	resetVoidsReservations(t, testkit.Backend{
		Limiter: testkit.NewLimiter(t, testkit.Connect(t, addr)), Other: testkit.NewLimiter(t, testkit.Connect(t, addr)),
	})
}
