package limits_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestClosedLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l, err := ginlimit.NewLimiter(rdb, testkit.Patient())
	require.NoError(t, err)
	limit := ginlimit.PerHour(1)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = testkit.Wrap(l, ginlimit.TokenBucket).Allow(t.Context(), "k", limit)
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NoError(t, rdb.Ping(t.Context()).Err(), "the client is the caller's")
}

func TestZeroLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	var l ginlimit.Limiter
	_, err := l.Policy("test", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	_, err = (*ginlimit.Limiter)(nil).Policy("test", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	require.Contains(t, testkit.PanicText(t, func() { l.Handler("test", ginlimit.PerHour(1)) }), "not made by NewLimiter")
	require.NoError(t, l.Close())
}
