package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWorkers do each job once.
func TestWorkers(t *testing.T) {
	const jobs = 15
	var out testkit.Buffer
	require.NoError(t, run(t.Context(), jobs, "", &out))
	for job := range jobs {
		require.Equal(t, 1, strings.Count(out.String(), fmt.Sprintf("calls the partner for job %d\n", job)))
	}
	require.Contains(t, out.String(), "Done in ")
}

// TestWorkersStop when they are told to, in the middle of their jobs.
func TestWorkersStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, 1_000_000, "", in) }()
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), "calls the partner"); {
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	require.NoError(t, <-ended)
}
