package main

import (
	"flag"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden file")

// stubs imports what testdata has of version 0.1, and the standard library.
type stubs struct {
	standard types.Importer
	ginlimit *types.Package
}

func (s stubs) Import(path string) (*types.Package, error) {
	if path == module {
		return s.ginlimit, nil
	}
	return s.standard.Import(path)
}

// rewriteFile returns a file of testdata rewritten, and its notes.
func rewriteFile(t *testing.T, name string) (string, []string) {
	t.Helper()
	fset := token.NewFileSet()
	importers := stubs{standard: importer.ForCompiler(fset, "source", nil)}
	check := func(path, name string, info *types.Info) (*types.Package, *ast.File) {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		config := types.Config{Importer: importers}
		p, err := config.Check(path, fset, []*ast.File{file}, info)
		require.NoError(t, err)
		return p, file
	}
	importers.ginlimit, _ = check(module, "testdata/ginlimit.go", nil)
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	_, file := check("app", name, info)
	files := (&pkg{fset: fset, files: []*ast.File{file}, info: info}).rewrite()
	require.Len(t, files, 1)
	text, err := files[0].rewritten()
	require.NoError(t, err)
	return string(text), files[0].notes
}

// TestRewrite compares testdata/before.go, rewritten, with testdata/after.go, and what is left by
// hand with testdata/notes.txt.
func TestRewrite(t *testing.T) {
	t.Parallel()
	got, notes := rewriteFile(t, "testdata/before.go")
	left := strings.Join(notes, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile("testdata/after.go", []byte(got), 0o644))
		require.NoError(t, os.WriteFile("testdata/notes.txt", []byte(left), 0o644))
	}
	want, err := os.ReadFile("testdata/after.go")
	require.NoError(t, err)
	require.Equal(t, string(want), got)
	want, err = os.ReadFile("testdata/notes.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), left)
}
