package ginlimit_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

func TestLimiterNeedsNoRedisToStart(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + harness.FreePort(t), DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	limiter := harness.NewLimiter(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.True(t, strings.HasPrefix(err.Error(), "ginlimit: "), err)
}
