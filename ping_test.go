package ginlimit_test

import (
	"context"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

func TestLimiterNeedsNoRedisToStart(t *testing.T) {
	t.Parallel()
	limiter := harness.NewLimiter(t, nowhere(t))
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.True(t, strings.HasPrefix(err.Error(), "ginlimit: "), err)
}

func TestPing(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	limiter := harness.NewLimiter(t, harness.Connect(t, mini.Addr()), harness.Patient())
	require.NoError(t, limiter.Ping(t.Context()))
	mini.SetError("LOADING Redis is loading the dataset in memory")
	err := limiter.Ping(t.Context())
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorContains(t, err, "LOADING")
	mini.SetError("")
	require.NoError(t, limiter.Ping(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, limiter.Ping(ctx), context.Canceled)
	mini.Close()
	require.ErrorIs(t, limiter.Ping(t.Context()), ginlimit.ErrUnavailable)
	require.NoError(t, limiter.Close())
	require.ErrorIs(t, limiter.Ping(t.Context()), ginlimit.ErrUnavailable)

	local, err := ginlimit.NewLocal()
	require.NoError(t, err)
	require.NoError(t, local.Ping(t.Context()))
	require.ErrorIs(t, new(ginlimit.Limiter).Ping(t.Context()), ginlimit.ErrUnavailable)
}
