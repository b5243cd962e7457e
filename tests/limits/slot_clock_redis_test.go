//go:build integration

package limits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// setClockBack has each key of a server expire later, as if its clock was set back.
func setClockBack(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "ginlimit:*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()+d).Err())
	}
}

// TestSlotsAfterRedisClockIsSetBack has two processes hold slots, and one of them wait for another,
// while the clock is set back by more than the age of their keys.
func TestSlotsAfterRedisClockIsSetBack(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	first := slotPolicy(t, rdb)
	second := testkit.Must(testkit.NewLimiter(t, rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed)).
		Policy("api", ginlimit.InFlight(3), ginlimit.WithQueue(1, time.Minute)))
	testkit.Reserve(t, first)
	held := testkit.Reserve(t, first)
	testkit.Reserve(t, second)
	got := make(chan ginlimit.Result, 1)
	go func() {
		slot, err := second.Reserve(t.Context(), "alice", 1)
		assert.NoError(t, err)
		got <- slot.Result()
	}()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return len(rdb.Keys(t.Context(), "*:turns:*").Val()) > 0
	}))
	setClockBack(t, rdb, time.Hour)
	for range 3 {
		require.Equal(t, ginlimit.CauseInFlight, testkit.Reserve(t, first).Result().Cause)
	}
	held.Release()
	assert.True(t, (<-got).Allowed)
	lasts := rdb.PTTL(t.Context(), "ginlimit:{api|alice}:slots").Val()
	assert.Positive(t, lasts)
	assert.LessOrEqual(t, lasts, 10*time.Second, "a process that dies now frees its slots")
}
