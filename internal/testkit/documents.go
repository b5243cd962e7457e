package testkit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Root returns the repository's root: the folder above the test's own that has the go.mod of the
// library.
func Root() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/ginlimit/ginlimit\n") {
			return folder, nil
		}
		above := filepath.Dir(folder)
		if above == folder {
			return "", os.ErrNotExist
		}
		folder = above
	}
}

// Read returns a file of the repository as text. The name begins at the repository's root.
func Read(t *testing.T, file string) string {
	t.Helper()
	root, err := Root()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}
