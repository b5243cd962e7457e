package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestMain lets the test's program be the processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-call" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestProcessesKeepTheLimit of the partner, for a moment.
func TestProcessesKeepTheLimit(t *testing.T) {
	var out testkit.Buffer
	require.NoError(t, run(t.Context(), 3*time.Second, 2, "", &out))
	require.Regexp(t, `Done in [0-9]+ s: [1-9][0-9]+ calls, 0 denied\n$`, out.String())
}

// TestProcessesStop with the one that has started them.
func TestProcessesStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, run(ctx, time.Hour, 2, "", new(testkit.Buffer)))
}
