package ginlimit_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goBlocks returns the Go code of a Markdown file.
func goBlocks(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var blocks []string
	for i, part := range strings.Split(string(text), "```") {
		if code, isGo := strings.CutPrefix(part, "go\n"); isGo && i%2 == 1 {
			blocks = append(blocks, code)
		}
	}
	return blocks
}

// unindented returns code without leading and blank space, as blocks are not indented as Examples are.
func unindented(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

func TestReadmeBlocksAreExamples(t *testing.T) {
	t.Parallel()
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := goBlocks(t, "README.md")
	require.Greater(t, len(blocks), 3)
	for _, block := range blocks[1:] { // the first is a program
		assert.Contains(t, unindented(string(examples)), unindented(block))
	}
}

// TestReadmeProgramRuns builds the quickstart in a module of its own and sends it requests.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	root, err := os.Getwd()
	require.NoError(t, err)
	dir, listen := t.TempDir(), "127.0.0.1:"+freePort(t)
	program := strings.NewReplacer("127.0.0.1:6379", startRedis(t), ":8080", listen).Replace(goBlocks(t, "README.md")[0])
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
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		response, err = http.Get("http://" + listen + "/ping")
		return err == nil
	}))
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "999", response.Header.Get("X-RateLimit-Remaining"))
}
