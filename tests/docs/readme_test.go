package docs_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
	"atomic": "sync/atomic", "bufio": "bufio", "cmp": "cmp", "context": "context", "errors": "errors", "fmt": "fmt",
	"http": "net/http", "httptest": "net/http/httptest", "httputil": "net/http/httputil", "json": "encoding/json",
	"log": "log", "math": "math", "net": "net", "netip": "net/netip",
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
		"docs/operations.md", "docs/fair.md", "docs/llms.txt", "docs/articles/increx.md"} {
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
			case document == "docs/llms.txt":
				block = "answer := func(*gin.Context) {}\n_ = answer\n{\n" + block + "}\n"
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

// TestReasonsAreConstants: those that docs/operations.md lists, once each, and no other word is one.
func TestReasonsAreConstants(t *testing.T) {
	t.Parallel()
	words := func(pattern, text string) (all []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		slices.Sort(all)
		return all
	}
	between := func(text, from, to string) string {
		_, text, found := strings.Cut(text, from)
		require.True(t, found, from)
		text, _, _ = strings.Cut(text, to)
		return text
	}
	constants := words(`"(\w+)"`, between(testkit.Read(t, "event.go"), "\ntype Reason string\n\nconst (", "\n)\n"))
	var documented []string
	for row := range strings.Lines(between(testkit.Read(t, "docs/operations.md"), "\n## Reasons\n", "\n## ")) {
		if reasons, _, found := strings.Cut(row, ": "); found && strings.HasPrefix(row, "- ") {
			documented = append(documented, words("`(\\w+)`", reasons)...)
		}
	}
	slices.Sort(documented)
	require.Equal(t, constants, documented)

	store := testkit.Read(t, "internal/redisstore/reason.go")
	made := append(words(`"([A-Z]+)"`, between(store, "var replyWords", "}")),
		words(`return "(\w+)"`, between(store, "\nfunc Word(", "\n}\n"))...)
	code := between(testkit.Read(t, "internal/engine/stats.go"), "\nfunc Reason(", "\n}\n")
	made = append(made, words(`return "(\w+)"`, code)...)
	require.NotEmpty(t, made)
	require.Subset(t, constants, made)
}
