package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// goBlocks returns the Go code of a Markdown file.
func goBlocks(t *testing.T, file string) []string {
	t.Helper()
	text := testkit.Must(os.ReadFile(file))
	var blocks []string
	for i, part := range strings.Split(string(text), "```") {
		if code, isGo := strings.CutPrefix(part, "go\n"); isGo && i%2 == 1 {
			blocks = append(blocks, code)
		}
	}
	return blocks
}

// packages are those that a block may need and the quickstart does not import: an editor adds them.
var packages = map[string]string{
	"atomic": "sync/atomic", "bufio": "bufio", "context": "context", "errors": "errors", "fmt": "fmt",
	"http": "net/http", "httputil": "net/http/httputil", "log": "log", "math": "math", "net": "net", "netip": "net/netip",
	"os": "os", "signal": "os/signal", "slog": "log/slog", "strconv": "strconv", "strings": "strings",
	"syscall": "syscall", "time": "time", "url": "net/url",
	"transport": "github.com/ginlimit/ginlimit/transport",
	"gin":       "github.com/gin-gonic/gin", "redis": "github.com/redis/go-redis/v9",
	"ginlimit": "github.com/ginlimit/ginlimit",
}

// goFile returns a Go file with a function, and the imports that its body needs.
func goFile(name, body string) string {
	var imports strings.Builder
	for short, path := range packages {
		if regexp.MustCompile(`\b` + short + `\.[A-Z]`).MatchString(body) {
			fmt.Fprintf(&imports, "\t%q\n", path)
		}
	}
	return fmt.Sprintf("package blocks\n\nimport (\n%s)\n\nfunc %s() {\n%s}\n", imports.String(), name, body)
}

// TestBlocksOfDocumentsBuild pastes each Go block of the README into the main of the quickstart,
// after "router :=" and the block that makes limiter and ctx, and builds the result. Blocks of docs
// are pasted in braces, as they may replace what there is, and functions beside main. Blocks that are
// whole files are built with the quickstart, as they are.
func TestBlocksOfDocumentsBuild(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is missing")
	}
	readme := goBlocks(t, "README.md")
	program := readme[0]
	main := program[strings.Index(program, "func main() {\n")+len("func main() {\n") : strings.LastIndex(program, "}")]
	at := strings.Index(main, "\trouter.")
	require.Contains(t, main[:at], "\trouter := ")
	var names string
	for _, block := range readme {
		if strings.HasPrefix(block, "ctx := ") {
			names = block
		}
	}
	require.Contains(t, names, "limiter, err := ")

	dir := t.TempDir()
	files := []string{filepath.Join(dir, "quickstart.go")}
	require.NoError(t,
		os.WriteFile(files[0], []byte(strings.Replace(program, "package main", "package blocks", 1)), 0o600))
	whole := []string{filepath.Join(t.TempDir(), "main.go")} // files, of the quickstart's folder
	require.NoError(t, os.WriteFile(whole[0], []byte(program), 0o600))
	for _, document := range []string{"README.md", "docs/guide.md", "docs/reference.md",
		"docs/operations.md", "docs/fair.md"} {
		blocks := goBlocks(t, document)
		require.NotEmpty(t, blocks, document)
		for i, block := range blocks {
			name := fmt.Sprintf("%s%d", regexp.MustCompile(`\W`).ReplaceAllString(document, ""), i)
			switch {
			case block == program, strings.Contains(block, "cors.New("): // which example/browser builds
				continue
			case strings.HasPrefix(block, "func "): // beside main
				file := filepath.Join(dir, name+".go")
				require.NoError(t, os.WriteFile(file, []byte(goFile(name, "}\n"+strings.TrimSuffix(block, "}\n"))), 0o600))
				files = append(files, file)
				continue
			case strings.HasPrefix(block, "package "):
				file := filepath.Join(filepath.Dir(whole[0]), fileName(name, block))
				require.NoError(t, os.WriteFile(file, []byte(block), 0o600))
				whole = append(whole, file)
				continue
			case block == names, strings.HasPrefix(block, "router.SetTrustedProxies"): // comes before the names
				block = strings.TrimPrefix(block, names)
			case document != "README.md":
				block = "{\n" + block + "}\n"
			}
			body := main[:at] + names + block + main[at:]
			file := filepath.Join(dir, name+".go")
			require.NoError(t, os.WriteFile(file, []byte(goFile(name, body)), 0o600))
			files = append(files, file)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build"}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.CommandContext(t.Context(), "go", append([]string{"vet"}, whole...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// fileName returns the name of a block's file; a file of tests ends in _test.go.
func fileName(name, block string) string {
	if strings.Contains(block, "*testing.T") {
		name += "_test"
	}
	return name + ".go"
}
