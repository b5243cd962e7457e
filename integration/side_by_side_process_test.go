package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/integration/sidebyside"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// beforeTheRewrite is the last commit before the inside of the library was rewritten.
const beforeTheRewrite = "350b74b72648b40b64633f65947bb74ad718d518"

// versions are the programs of both versions of the library, by name.
type versions map[string]string

// buildVersions builds the same program with the library of this tree and with that of the commit.
func buildVersions(t *testing.T) versions {
	root, err := testkit.Root()
	require.NoError(t, err)
	root, err = filepath.EvalSymlinks(root)
	require.NoError(t, err)
	dir := t.TempDir()
	old := filepath.Join(dir, "library")
	extract(t, root, old)
	built := versions{"old": filepath.Join(dir, "old"), "new": filepath.Join(dir, "new")}
	run(t, "go", "build", "-ldflags=-s -w", "-o", built["new"], "./sidebyside/process")
	t.Setenv("GOWORK", workspaceOf(t, root, old))
	run(t, "go", "build", "-tags=before_rewrite", "-ldflags=-s -w", "-o", built["old"], "./sidebyside/process")
	return built
}

// buildThis builds the program with the library of this tree alone.
func buildThis(t *testing.T) versions {
	built := versions{"new": filepath.Join(t.TempDir(), "new")}
	run(t, "go", "build", "-ldflags=-s -w", "-o", built["new"], "./sidebyside/process")
	return built
}

// extract writes the files of the commit into a folder.
func extract(t *testing.T, root, to string) {
	t.Helper()
	cmd := exec.Command("git", "-C", root, "archive", beforeTheRewrite, "*.go", "*.lua", "go.mod", "go.sum")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	archive, err := cmd.Output()
	if err != nil {
		const text = "needs git and commit %s: git fetch --unshallow (%v: %s)"
		if os.Getenv("CI") == "true" {
			require.Failf(t, "missing", text, beforeTheRewrite, err, bytes.TrimSpace(stderr.Bytes()))
		}
		t.Skipf(text, beforeTheRewrite, err, bytes.TrimSpace(stderr.Bytes()))
	}
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		if file.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(files)
		require.NoError(t, err)
		path := filepath.Join(to, filepath.FromSlash(file.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, content, 0o644))
	}
}

// workspaceOf makes a workspace of this module and the library in a folder, and returns its file.
// The workspace in use, if any, adds its other modules, so both versions have the same
// dependencies.
func workspaceOf(t *testing.T, root, library string) (file string) {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	modules, inUse := []string{here, library}, string(bytes.TrimSpace(run(t, "go", "env", "GOWORK")))
	file = filepath.Join(t.TempDir(), "go.work")
	if inUse != "" && inUse != "off" {
		var work struct{ Use []struct{ DiskPath string } }
		require.NoError(t, json.Unmarshal(run(t, "go", "work", "edit", "-json"), &work))
		for _, module := range work.Use {
			path := module.DiskPath
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(inUse), path)
			}
			path, err := filepath.EvalSymlinks(path)
			require.NoError(t, err)
			if path != root && path != here {
				modules = append(modules, path)
			}
		}
		if sums, err := os.ReadFile(inUse + ".sum"); err == nil {
			require.NoError(t, os.WriteFile(file+".sum", sums, 0o644))
		}
	}
	cmd := exec.Command("go", append([]string{"work", "init"}, modules...)...)
	cmd.Env = append(os.Environ(), "GOWORK="+file)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// run runs a command, which must succeed, and returns its output.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s", name, args, &stderr)
	return out
}

// process is one that counts, of either version.
type process struct {
	version string
	cmd     *exec.Cmd
	in      *json.Encoder
	out     *json.Decoder
	stderr  *bytes.Buffer
}

// start starts a process of a version, which ends with the test.
func (v versions) start(t *testing.T, version, addr string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // if it hangs, its pipes end
	p := &process{version: version, cmd: exec.CommandContext(ctx, v[version], addr), stderr: new(bytes.Buffer)}
	p.cmd.Stderr = p.stderr
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.in, p.out = json.NewEncoder(in), json.NewDecoder(out)
	p.out.DisallowUnknownFields()
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		err := p.cmd.Wait()
		cancel()
		if p.version != "" {
			assert.NoError(t, err, "a process of the %s version: %s", p.version, p.stderr)
		}
	})
	return p
}

// pair starts a process of each version.
func (v versions) pair(t *testing.T, addr string) []*process {
	return []*process{v.start(t, "old", addr), v.start(t, "new", addr)}
}

// try makes a command and returns its reply, which may be an error.
func (p *process) try(t assert.TestingT, c sidebyside.Command) (r sidebyside.Reply) {
	err := p.in.Encode(c)
	if err == nil {
		err = p.out.Decode(&r)
	}
	assert.NoError(t, err, "a process of the %s version ends: %s", p.version, p.stderr)
	return r
}

// do makes a command, which must succeed.
func (p *process) do(t *testing.T, c sidebyside.Command) sidebyside.Reply {
	t.Helper()
	r := p.try(t, c)
	require.Empty(t, r.Error, "%s of the %s version", c.Op, p.version)
	return r
}

// kill ends a process at once.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.version = ""
	require.NoError(t, p.cmd.Process.Kill())
}

// atOnce sends one command to all processes at once, each with a seed of its own.
func atOnce(t *testing.T, processes []*process, c sidebyside.Command) []sidebyside.Reply {
	t.Helper()
	replies := make([]sidebyside.Reply, len(processes))
	var all sync.WaitGroup
	for i, p := range processes {
		c := c
		c.Seed = uint64(i)
		all.Go(func() { replies[i] = p.try(t, c) })
	}
	all.Wait()
	for i, r := range replies {
		require.Empty(t, r.Error, "%s of the %s version", c.Op, processes[i].version)
	}
	return replies
}
