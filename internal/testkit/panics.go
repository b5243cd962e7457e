package testkit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// PanicText returns the text of the error that f panics with.
func PanicText(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok, "panics with an error")
		text = err.Error()
	}()
	f()
	return ""
}

// PanicError returns the error that f panics with, or nil.
func PanicError(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}
