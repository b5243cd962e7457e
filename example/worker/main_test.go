package main

import (
	"context"
	"os"
	"regexp"
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
	for lasts := 3 * time.Second; ; lasts *= 2 { // a busy machine may take as long to start the processes
		var out testkit.Buffer
		require.NoError(t, run(t.Context(), lasts, 2, "", &out))
		require.Regexp(t, `Done in [0-9]+ s: [0-9]+ calls, 0 denied\n$`, out.String())
		if regexp.MustCompile(` [0-9]{2,} calls`).MatchString(out.String()) {
			return
		}
		require.Less(t, lasts, time.Minute, out.String())
	}
}

// TestProcessesStop with the one that has started them.
func TestProcessesStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, run(ctx, time.Hour, 2, "", new(testkit.Buffer)))
}
