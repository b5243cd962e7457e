package ginlimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

func newLocal(t testing.TB, opts ...ginlimit.Option) *ginlimit.Limiter {
	t.Helper()
	l, err := ginlimit.NewLocal(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
