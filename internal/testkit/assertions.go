package testkit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// RequireDuration wants a duration that a clock which ran ahead may have shortened.
func (e Engine) RequireDuration(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.LessOrEqual(t, got, want)
	require.GreaterOrEqual(t, got, want-e.Ahead())
}

// AllowN takes n tokens of the client "k".
func (e Engine) AllowN(t *testing.T, n int, limits ...ginlimit.Limit) ginlimit.Result {
	t.Helper()
	r, err := e.Limiter.AllowN(t.Context(), "k", n, limits...)
	require.NoError(t, err)
	return r
}

// Allowed takes n tokens and wants so many to remain.
func (e Engine) Allowed(t *testing.T, n, remaining int, limits ...ginlimit.Limit) {
	t.Helper()
	r := e.AllowN(t, n, limits...)
	require.True(t, r.Allowed)
	require.Equal(t, n, r.Granted)
	require.Equal(t, remaining, r.Remaining)
	require.Zero(t, r.RetryAfter)
}

// Denied asks for n tokens and wants a denial for so long.
func (e Engine) Denied(t *testing.T, n int, retryAfter time.Duration, limits ...ginlimit.Limit) {
	t.Helper()
	r := e.AllowN(t, n, limits...)
	require.False(t, r.Allowed)
	require.Zero(t, r.Granted)
	e.RequireDuration(t, retryAfter, r.RetryAfter)
}

// Left is how many tokens of 20 an hour, or of another limit, are left.
func (e Engine) Left(t *testing.T, limits ...ginlimit.Limit) int {
	t.Helper()
	r, err := e.Limiter.Peek(t.Context(), "k", limits...)
	require.NoError(t, err)
	return r.Remaining
}

// Reserve reserves n tokens of the client "k".
func (e Engine) Reserve(t *testing.T, n int, limits ...ginlimit.Limit) *ginlimit.Reservation {
	t.Helper()
	r, err := e.Limiter.Reserve(t.Context(), "k", n, limits...)
	require.NoError(t, err)
	return r
}
