package docs_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestMapsNameWhatIsThere: each file and folder that docs/CONTRIBUTING.md and docs/architecture.md name
// exists. A bare name is of the root, or of the folder that was named before it.
func TestMapsNameWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"docs/CONTRIBUTING.md", "docs/architecture.md"} {
		folder, found := "", 0
		for _, match := range regexp.MustCompile("`([a-zA-Z_./]+\\.(?:go|lua|md)|[a-z_]+(?:/[a-z_]+)+/?)`").
			FindAllStringSubmatch(testkit.Read(t, document), -1) {
			name := match[1]
			if name == "net/http" {
				continue
			}
			candidates := []string{name, path.Join(folder, name), path.Join(path.Dir(document), name),
				path.Join("tests", name)}
			there := false
			for _, candidate := range candidates {
				info, err := os.Stat(filepath.FromSlash(candidate))
				if err != nil {
					continue
				}
				there = true
				if folder = candidate; !info.IsDir() {
					folder = path.Dir(candidate)
				}
				break
			}
			assert.True(t, there, "%s names %s", document, name)
			found++
		}
		require.Greater(t, found, 5, document)
	}
}
