package testkit

import (
	"os"
	"testing"
)

// Nightly skips a test that needs what the gate does not have: a machine for itself, or a program.
// `make nightly` sets NIGHTLY and so runs it. Why says what a busy machine does to the test.
func Nightly(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("NIGHTLY") == "" {
		t.Skip("only make nightly runs it (NIGHTLY=1): " + why)
	}
}
