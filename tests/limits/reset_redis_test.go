//go:build integration

package limits_test

import (
	"testing"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestResetHealsSlotsInRedis that cannot be read.
func TestResetHealsSlotsInRedis(t *testing.T) {
	t.Parallel()
	resetHealsSlots(t, testkit.Connect(t, testkit.StartRedis(t)))
}

// TestResetHealsSharesInRedis that cannot be read.
func TestResetHealsSharesInRedis(t *testing.T) {
	t.Parallel()
	resetHealsShares(t, testkit.Connect(t, testkit.StartRedis(t)))
}
