//go:build integration

package docs_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestReadmeProgramRuns builds the quickstart in a module of its own, and sends it six requests:
// the last is answered as the README shows.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	dir, listen, server := newModule(t), "127.0.0.1:"+testkit.FreePort(t), testkit.StartRedis(t)
	program := strings.NewReplacer("127.0.0.1:6379", server, ":8080", listen).Replace(goBlocks(t, "README.md")[0])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	goIn(t, dir, "build", "-o", "quickstart", ".")
	text := testkit.Must(os.ReadFile("README.md"))
	shown := regexp.MustCompile("(?s)```text\n(HTTP/1.1 429 .*?)\n\n(.*?)\n```").FindSubmatch(text)
	require.NotNil(t, shown)

	var left, last []string
	for range 10 { // on a busy machine Redis may be late, and the process decide by itself
		var decided bool
		if left, last, decided = sixRequests(t, filepath.Join(dir, "quickstart"), listen); decided {
			break
		}
		rdb := redis.NewClient(&redis.Options{Addr: server})
		require.NoError(t, rdb.FlushAll(t.Context()).Err()) // of the test's own
		require.NoError(t, rdb.Close())
	}
	require.Equal(t, []string{"200 4", "200 3", "200 2", "200 1", "200 0", "429 0"}, left)
	require.Equal(t, []string{string(shown[1]), string(shown[2])}, last)
}

// sixRequests runs a program, and returns the statuses and what was left, the head and body of the last response, and
// whether Redis decided about all.
func sixRequests(t *testing.T, program, listen string) (left, last []string, decided bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	decided = true
	for range 6 {
		var response *http.Response
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() (ok bool) {
			var err error
			response, err = http.Get("http://" + listen + "/ping")
			return err == nil
		}))
		h := response.Header
		decided = decided && h.Get("X-RateLimit-Status") == ""
		left = append(left, fmt.Sprint(response.StatusCode, " ", h.Get("X-RateLimit-Remaining")))
		var head strings.Builder
		fmt.Fprintln(&head, response.Proto, response.Status)
		require.NoError(t, h.WriteSubset(&head, map[string]bool{"Date": true, "Content-Length": true}))
		body := testkit.Must(io.ReadAll(response.Body))
		require.NoError(t, response.Body.Close())
		last = []string{strings.TrimSpace(strings.ReplaceAll(head.String(), "\r", "")), string(body)}
	}
	return left, last, decided
}

// TestTestsOfDocumentsPass puts the files of docs/guide.md into the quickstart's folder, and runs them by go test.
func TestTestsOfDocumentsPass(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(goBlocks(t, "README.md")[0]), 0o600))
	tests := 0
	for i, block := range goBlocks(t, "docs/guide.md") {
		if !strings.HasPrefix(block, "package ") {
			continue
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fileName(fmt.Sprintf("block%d", i), block)), []byte(block), 0o600))
		tests += strings.Count(block, "\nfunc Test")
	}
	for _, get := range regexp.MustCompile("`go get ([^`]+)`").FindAllStringSubmatch(testkit.Read(t, "docs/guide.md"), -1) {
		module := get[1]
		version := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module).Output())
		goIn(t, dir, "get", module+"@"+strings.TrimSpace(string(version))) // which was downloaded
	}
	require.Equal(t, 3, tests)
	require.Equal(t, tests, strings.Count(goIn(t, dir, "test", "-v"), "--- PASS: Test"))
}

// newModule returns a folder with a module that has done what the README says to get this one.
func newModule(t *testing.T) string {
	t.Helper()
	root := testkit.Must(os.Getwd())
	dir := t.TempDir()
	goIn(t, dir, "mod", "init", "quickstart")
	goIn(t, dir, "mod", "edit", "-replace", "github.com/ginlimit/ginlimit="+root) // this commit is not published
	goIn(t, dir, "get", "github.com/ginlimit/ginlimit@v0.0.0")
	return dir
}

// goIn runs the go command in a folder, and returns what it prints.
func goIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
