package ginlimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func panicText(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok, "panics with an error")
		text = err.Error()
	}()
	f()
	return ""
}
