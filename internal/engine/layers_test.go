package engine_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestTokenBucketsAreReadInOneFile: take.go names a layer, or what decides on more, and no more of it.
func TestTokenBucketsAreReadInOneFile(t *testing.T) {
	t.Parallel()
	doors := map[string]string{
		"isDenied": "denial.go", "askStore": "denial.go", "askLease": "lease.go", "recallOne": "recall.go",
		"fallBack": "local.go", "takeInLine": "wait.go", "emptySeveral": "several.go", "several": "several.go",
	}
	shared := []string{"Engine", "Ask", "Answer"}
	declared := map[string]string{} // names, by the file that has them
	for _, file := range []string{"denial.go", "lease.go", "local.go", "slots.go", "bans.go", "several.go", "group.go",
		"queue.go", "queue_deny.go", "wait.go", "settle.go", "recall.go", "change.go", "replicas.go", "abandoned.go"} {
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || slices.Contains(shared, receiver(d)) {
					declared[d.Name.Name] = file
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						declared[s.Name.Name] = file
					}
				}
			}
		}
	}
	parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), "take.go", nil, parser.SkipObjectResolution))
	names := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && declared[id.Name] != "" {
			names[id.Name] = declared[id.Name]
		}
		return true
	})
	require.Equal(t, doors, names)
}

// receiver returns the type of a method's receiver.
func receiver(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	return of.(*ast.Ident).Name
}
