package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// goDoc returns the documentation of a package of this module, and the comment of each name in it: "Limiter.Override"
// is a method, "Override" a function or type.
func goDoc(t *testing.T, dir string) (of *doc.Package, comments map[string]string) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range testkit.Must(filepath.Glob(filepath.Join(dir, "*.go"))) {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, testkit.Must(parser.ParseFile(fset, name, nil, parser.ParseComments)))
		}
	}
	of = testkit.Must(doc.NewFromFiles(fset, files, "github.com/ginlimit/ginlimit"))
	comments = map[string]string{}
	add := func(prefix string, funcs []*doc.Func) {
		for _, f := range funcs {
			comments[prefix+f.Name] = strings.Join(strings.Fields(f.Doc), " ")
		}
	}
	add("", of.Funcs)
	for _, typ := range of.Types {
		comments[typ.Name] = strings.Join(strings.Fields(typ.Doc), " ")
		add("", typ.Funcs)
		add(typ.Name+".", typ.Methods)
	}
	return of, comments
}

// TestGoDocIsShort: a stranger reads it in an hour.
func TestGoDocIsShort(t *testing.T) {
	t.Parallel()
	text := testkit.Must(exec.CommandContext(t.Context(), "go", "doc", "-all", ".").Output())
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 900, "lines of go doc -all")
}

// TestGoDocSaysWhatMisleads those who read only the name.
func TestGoDocSaysWhatMisleads(t *testing.T) {
	t.Parallel()
	of, comments := goDoc(t, ".")
	for _, name := range []string{"Per", "PerSecond", "PerMinute", "PerDay"} {
		assert.Contains(t, comments[name], "up to 2 × rate in the first", name)
	}
	assert.Contains(t, comments["Per"], "WithAlgorithm([SlidingWindow]) admits rate in any period")
	assert.Contains(t, comments["PerHour"],
		"PerHour(5) admits up to 10 in the first hour, and WithAlgorithm([SlidingWindow]) 5")
	assert.Contains(t, comments["FirstOf"], "Keys that clients invent need a check in front")
	overview := strings.Join(strings.Fields(of.Doc), " ")
	assert.Contains(t, overview, "ginlimit.PerHour(5).WithAlgorithm(ginlimit.SlidingWindow)")
	assert.Contains(t, overview, "handlers one after another each charge")
}

// TestWhatIsExperimental says so in go doc and in Versions of docs/SECURITY.md.
func TestWhatIsExperimental(t *testing.T) {
	t.Parallel()
	const says = "is experimental: its numbers and details may change in a minor version"
	_, comments := goDoc(t, ".")
	for _, name := range []string{"WithLease", "WithDenyCache", "WithReplicas", "Limiter.Override"} {
		assert.Contains(t, comments[name], says, name)
	}
	assert.Contains(t, comments["Override"], "experimental")
	transport, _ := goDoc(t, "transport")
	assert.Contains(t, strings.Join(strings.Fields(transport.Doc), " "), says)
	_, versions, _ := strings.Cut(testkit.Read(t, "docs/SECURITY.md"), "\n**Experimental** ")
	versions, _, _ = strings.Cut(versions, "\n\n")
	for _, name := range []string{"WithLease", "WithDenyCache", "WithReplicas", "Override", "transport"} {
		assert.Contains(t, versions, "`"+name+"`")
	}
}
