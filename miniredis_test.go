package ginlimit_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A Redis in this process. Its clock is set, so that every header is exact.

func newMiniredis(t testing.TB) (*redis.Client, func(time.Duration)) {
	t.Helper()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	return testkit.Connect(t, mini.Addr()), func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
	}
}
