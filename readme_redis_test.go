//go:build integration

package ginlimit_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/harness"
)

// TestReadmeProgramRuns builds the quickstart in a module of its own and sends it requests.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	root, err := os.Getwd()
	require.NoError(t, err)
	dir, listen := t.TempDir(), "127.0.0.1:"+harness.FreePort(t)
	program := strings.NewReplacer("127.0.0.1:6379", harness.StartRedis(t), ":8080", listen).Replace(goBlocks(t, "README.md")[0])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	for _, args := range [][]string{
		{"mod", "init", "quickstart"},
		{"mod", "edit", "-replace", "github.com/ginlimit/ginlimit=" + root, "-require", "github.com/ginlimit/ginlimit@v0.0.0"},
		{"build", "-mod=mod", "-o", "quickstart", "."},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "quickstart"))
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()

	var response *http.Response
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool {
		response, err = http.Get("http://" + listen + "/ping")
		return err == nil
	}))
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "999", response.Header.Get("X-RateLimit-Remaining"))
}
