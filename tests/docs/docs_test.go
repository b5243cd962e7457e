package docs_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What the documents say of log lines, links and commands. Their Go is in readme_test.go.

// documents returns the names of all documents.
func documents(t *testing.T) []string {
	t.Helper()
	names := filesThatMatch(t, ".md")
	require.Contains(t, names, "docs/operations.md")
	return names
}

// filesThatMatch returns the files of the repository, of all its modules, whose names end so;
// without bin/, which tools fill.
func filesThatMatch(t *testing.T, end string) []string {
	t.Helper()
	var names []string
	for _, folder := range []string{"", "*/", "*/*/", "*/*/*/"} {
		more := testkit.Must(filepath.Glob(folder + "*" + end))
		names = append(names, more...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(filepath.ToSlash(name), "bin/") })
}

// TestLinksOfDocumentsLead looks for each file, and heading, that a document links to.
func TestLinksOfDocumentsLead(t *testing.T) {
	t.Parallel()
	code := regexp.MustCompile("(?s)```.*?```")
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	anchors := func(document string) []string {
		var names []string
		for _, m := range heading.FindAllStringSubmatch(code.ReplaceAllString(testkit.Read(t, document), ""), -1) {
			names = append(names, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
		}
		return names
	}
	for _, document := range documents(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(testkit.Read(t, document), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, named := strings.Cut(m[1], "#")
			target := document
			if file != "" {
				target = filepath.Join(filepath.Dir(document), file)
			}
			_, err := os.Stat(target)
			assert.NoError(t, err, "%s links to %s", document, m[1])
			if named {
				assert.Contains(t, anchors(target), anchor, "%s links to %s", document, m[1])
			}
		}
	}
}

// TestRequirementsAreThoseOfGoMod: the README names the oldest versions that the module works with, and go.mod says why
// an older minor version of a package does not.
func TestRequirementsAreThoseOfGoMod(t *testing.T) {
	t.Parallel()
	module, readme := testkit.Read(t, "go.mod"), testkit.Read(t, "README.md")
	for name, line := range map[string]string{"Go": `go`, "Gin": `\tgithub.com/gin-gonic/gin`,
		"go-redis": `\tgithub.com/redis/go-redis/v9`} {
		required := regexp.MustCompile(`(?m)^` + line + ` v?(\d+\.\d+)\.0( // .*)?$`).FindStringSubmatch(module)
		require.NotNil(t, required, "go.mod requires a version of %s whose last number is 0", name)
		assert.Regexp(t, `(^|\W)`+name+` `+regexp.QuoteMeta(required[1])+`\b[^.]`, readme)
		if name != "Go" {
			assert.True(t, strings.HasPrefix(required[2], " // "+required[1]+": "), "%s: %q", name, required[2])
		}
	}
}

// TestTestsThatDocumentsNameExist looks for each test that a document names; of a name that ends
// with … for tests that begin so.
func TestTestsThatDocumentsNameExist(t *testing.T) {
	t.Parallel()
	var declared []string
	for _, file := range filesThatMatch(t, "_test.go") {
		for _, m := range regexp.MustCompile(
			`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllStringSubmatch(testkit.Read(t, file), -1) {
			declared = append(declared, m[1])
		}
	}
	for _, document := range documents(t) {
		for _, m := range regexp.MustCompile(
			"`((?:Test|Fuzz|Benchmark)\\w+)(…?)`").FindAllStringSubmatch(testkit.Read(t, document), -1) {
			exists := slices.ContainsFunc(declared, func(name string) bool {
				return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1])
			})
			assert.True(t, exists, "%s names %s", document, m[0])
		}
	}
}

// TestReadmeIsReadInOnePass: it has at most 220 lines, and none of them is long, but for tables,
// lines with links, and the answer that it shows.
func TestReadmeIsReadInOnePass(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimRight(testkit.Read(t, "README.md"), "\n"), "\n")
	assert.LessOrEqual(t, len(lines), 220)
	for i, line := range lines {
		if !strings.HasPrefix(line, "|") && !strings.Contains(line, "](") && !strings.HasPrefix(line, `{"type"`) {
			assert.LessOrEqual(t, len([]rune(line)), 120, "line %d", i+1)
		}
	}
}

// TestDocumentsAreShort: somebody reads them. Articles, which stand for themselves, have a length of their own.
func TestDocumentsAreShort(t *testing.T) {
	t.Parallel()
	words := func(document string) int { return len(strings.Fields(testkit.Read(t, document))) }
	all := 0
	for _, document := range documents(t) {
		if strings.Contains(filepath.ToSlash(document), "docs/articles/") {
			assert.InDelta(t, 1200, words(document), 60, document)
		} else {
			all += words(document)
		}
	}
	assert.LessOrEqual(t, words("README.md"), 1500)
	assert.LessOrEqual(t, all, 22_500)
}

// TestLogLinesAreDocumented compares docs/operations.md with what the package writes.
func TestLogLinesAreDocumented(t *testing.T) {
	t.Parallel()
	files := testkit.Must(filepath.Glob("*.go"))
	internal := testkit.Must(filepath.Glob("internal/*/*.go"))
	files = append(files, internal...)
	var written []string
	call := regexp.MustCompile(`\.(Warn|Info|Error|Debug)(?:Context)?\((?:[^"\n]*,)?\s*"(ginlimit: [^"]*)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(testkit.Read(t, file), -1) {
			written = append(written, strings.ToUpper(m[1])+" "+m[2])
		}
	}
	require.GreaterOrEqual(t, len(written), 7)
	documented := regexp.MustCompile(
		"(?m)^- (ERROR |INFO |)`(ginlimit: [^`…]*)…?`").FindAllStringSubmatch(testkit.Read(t, "docs/operations.md"), -1)
	for _, line := range written {
		found := false
		for _, m := range documented {
			level := cmp.Or(m[1], "WARN ")
			found = found || strings.HasPrefix(line, level+m[2])
		}
		assert.True(t, found, "docs/operations.md does not say what %q means", line)
	}
	assert.Len(t, documented, len(written), "it documents a line that is not written")
}

// isForThisModule reports whether nobody else can name an argument of a function.
func isForThisModule(d *ast.FuncDecl) bool {
	return slices.ContainsFunc(d.Type.Params.List, func(field *ast.Field) bool {
		of, is := field.Type.(*ast.SelectorExpr)
		return is && of.X.(*ast.Ident).Name == "traits"
	})
}

// TestReferenceNamesWhatIsExported looks for each exported name of the package in
// docs/reference.md, and for each option in the README.
func TestReferenceNamesWhatIsExported(t *testing.T) {
	t.Parallel()
	reference, readme := testkit.Read(t, "docs/reference.md"), testkit.Read(t, "README.md")
	files := testkit.Must(filepath.Glob("*.go"))
	names := 0
	wants := func(id *ast.Ident) {
		if goDocHas := []string{"String", "MarshalText", "UnmarshalText", "Error", "Unwrap"}; id.IsExported() &&
			!slices.Contains(goDocHas, id.Name) {
			names++
			assert.True(t, regexp.MustCompile(`\b`+id.Name+`\b`).MatchString(reference),
				"docs/reference.md does not name %s", id.Name)
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))
		for _, decl := range parsed.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if !isForThisModule(d) && (d.Recv == nil || len(d.Recv.List[0].Names) == 0 || exportedReceiver(d)) {
					wants(d.Name)
				}
				if name := d.Name.Name; strings.HasPrefix(name, "With") && d.Recv == nil {
					assert.True(t, strings.Contains(readme, "`"+name+"("), "README.md does not name %s", name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.ValueSpec:
						for _, id := range s.Names {
							if !strings.HasPrefix(id.Name, "Reason") { // see TestReasonsAreConstants
								wants(id)
							}
						}
					case *ast.TypeSpec:
						wants(s.Name)
						if fields, ok := s.Type.(*ast.StructType); ok && s.Name.IsExported() {
							for _, field := range fields.Fields.List {
								for _, id := range field.Names {
									wants(id)
								}
							}
						}
					}
				}
			}
		}
	}
	require.Greater(t, names, 120)
}

// exportedReceiver reports whether a method is one of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	id, ok := of.(*ast.Ident)
	return ok && id.IsExported()
}

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

// namesOfTests returns the names of all tests.
func namesOfTests(t *testing.T) map[string]bool {
	tests := map[string]bool{}
	for _, file := range filesThatMatch(t, "_test.go") {
		for _, m := range regexp.MustCompile(
			`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(testkit.Read(t, file), -1) {
			tests[m[1]] = true
		}
	}
	return tests
}

// TestNamedTestsAreThere: each test that a document names, such as the threat model, exists.
func TestNamedTestsAreThere(t *testing.T) {
	t.Parallel()
	tests, named := namesOfTests(t), 0
	for _, document := range filesThatMatch(t, ".md") {
		name := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
		for _, m := range name.FindAllStringSubmatch(testkit.Read(t, document), -1) {
			named++
			assert.True(t, tests[m[1]], "%s: there is no %s", document, m[1])
		}
	}
	require.Greater(t, named, 100)
}

// TestEveryPairIsTested: each row of two features in docs/reference.md is there once, with a sentence and at least one
// test, and each test that it names exists.
func TestEveryPairIsTested(t *testing.T) {
	t.Parallel()
	tests := namesOfTests(t)
	name := regexp.MustCompile("`(\\w+)`")
	seen := map[string]bool{}
	_, section, found := strings.Cut(testkit.Read(t, "docs/reference.md"), "## What two features do together\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.Contains(line, "| tests |") {
			continue
		}
		if !assert.Len(t, cells, 3, "want three cells: %s", line) {
			continue
		}
		pair := strings.TrimSpace(cells[0])
		assert.False(t, seen[pair], "%s is here twice", pair)
		seen[pair] = true
		assert.Regexp(t, `^\S+ \S+ .*\.$`, cells[1], "want a sentence about %s", pair)
		named := name.FindAllStringSubmatch(cells[2], -1)
		assert.NotEmpty(t, named, "no test holds %s", pair)
		for _, m := range named {
			assert.True(t, tests[m[1]], "%s: there is no %s", pair, m[1])
		}
	}
	require.NotEmpty(t, seen)
	require.LessOrEqual(t, len(seen), 40)
}
