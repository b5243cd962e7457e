//go:build integration

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExamplesOfTheLastVersion rewrites the example as it stood in 0.1, and compiles it with this
// version.
func TestExamplesOfTheLastVersion(t *testing.T) { // not parallel: it changes the folder
	const commit = "370eabb" // the last of 0.1
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	old := t.TempDir()
	archive := exec.Command("sh", "-c", "git archive "+commit+" | tar -x -C "+old)
	archive.Dir = root
	if out, err := archive.CombinedOutput(); err != nil {
		if shallow, _ := exec.Command("git", "rev-parse", "--is-shallow-repository").Output(); bytes.HasPrefix(shallow, []byte("true")) {
			t.Skipf("a shallow clone has no commit %s: git fetch --unshallow", commit)
		}
		require.NoError(t, err, "%s", out)
	}
	t.Chdir(old)
	t.Setenv("GOWORK", "off")
	packages, err := load("", []string{"./example"})
	require.NoError(t, err)
	program := t.TempDir()
	for _, p := range packages {
		for _, f := range p.rewrite() {
			if filepath.Dir(f.name) != filepath.Join(old, "example") || bytes.HasSuffix([]byte(f.name), []byte("_test.go")) {
				continue
			}
			text, err := f.rewritten()
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(program, filepath.Base(f.name)), text, 0o644))
			for _, note := range f.notes {
				t.Log(note)
			}
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(program, "page.html"), nil, 0o644))
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(program, "go.sum"), sum, 0o644))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	mod = bytes.Replace(mod, []byte("module github.com/ginlimit/ginlimit\n"), []byte("module example\n"), 1)
	mod = append(mod, "\nrequire github.com/ginlimit/ginlimit v0.0.0\n\nreplace github.com/ginlimit/ginlimit => "+root+"\n"...)
	require.NoError(t, os.WriteFile(filepath.Join(program, "go.mod"), mod, 0o644))
	build := exec.Command("go", "build", "-o", os.DevNull, ".")
	build.Dir = program
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
