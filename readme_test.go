package ginlimit_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

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

var insert = flag.Bool("readme", false, "write the Examples into README.md and docs")

// shown is a Go block of Markdown, and what it shows: paragraphs of an Example, counted from one.
var shown = regexp.MustCompile("(?s)<!-- (Example\\w*) (\\d+)-(\\d+) -->\n```go\n(.*?)```\n")

// exampleBodies returns the code of every Example without its indentation, in paragraphs.
func exampleBodies(t *testing.T) map[string][]string {
	t.Helper()
	names, err := filepath.Glob("example*_test.go")
	require.NoError(t, err)
	bodies := map[string][]string{}
	for _, name := range names {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				body := string(source[f.Body.Lbrace : f.Body.Rbrace-1])
				bodies[f.Name.Name] = strings.Split(strings.ReplaceAll(strings.TrimPrefix(body, "\n"), "\n\t", "\n")[1:], "\n\n")
			}
		}
	}
	return bodies
}

// TestReadmeBlocksAreExamples looks whether README.md, but for its first block, which is a program, and docs show the
// Examples as they are. With -readme it makes it so.
func TestReadmeBlocksAreExamples(t *testing.T) {
	bodies := exampleBodies(t)
	for file, others := range map[string]int{"README.md": 1, "docs/operations.md": 0} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		blocks := 0
		want := shown.ReplaceAllStringFunc(string(text), func(block string) string {
			blocks++
			m := shown.FindStringSubmatch(block)
			from, _ := strconv.Atoi(m[2])
			to, _ := strconv.Atoi(m[3])
			body := bodies[m[1]]
			require.True(t, 0 < from && from <= to && to <= len(body), m[0])
			code := strings.Join(body[from-1:to], "\n\n")
			return fmt.Sprintf("<!-- %s %d-%d -->\n```go\n%s\n```\n", m[1], from, to, strings.TrimSpace(code))
		})
		require.Equal(t, len(goBlocks(t, file))-others, blocks, "%s: every other block names its Example", file)
		if *insert {
			require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
			continue
		}
		require.Equal(t, want, string(text), "go test -run TestReadmeBlocks . -readme writes it")
	}
}
