package testkit

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// A Redis in this process. Its clock is set, so that every header is exact.

// NewMiniredis returns a client of that Redis, and a function that sets its clock forward.
func NewMiniredis(t testing.TB) (*redis.Client, func(time.Duration)) {
	t.Helper()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	return Connect(t, mini.Addr()), func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
	}
}
