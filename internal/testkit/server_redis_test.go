//go:build integration

package testkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheEnvironmentNamesTheServer of all tests, by REDIS_SERVER.
func TestTheEnvironmentNamesTheServer(t *testing.T) {
	server := redisServer(t)
	started, script := filepath.Join(t.TempDir(), "started"), filepath.Join(t.TempDir(), "server")
	text := "#!/bin/sh\n: >" + started + "\nexec " + server + ` "$@"`
	require.NoError(t, os.WriteFile(script, []byte(text), 0o700))
	t.Setenv("REDIS_SERVER", script)
	require.NoError(t, Connect(t, StartRedis(t)).Ping(t.Context()).Err())
	require.FileExists(t, started)
}
