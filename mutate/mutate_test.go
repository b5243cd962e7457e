package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changes returns what becomes of lines.
func changes(mutants []mutant) []string {
	var list []string
	for _, m := range mutants {
		list = append(list, m.after)
	}
	return list
}

func TestGoMutants(t *testing.T) {
	const source = `package p

func f(a, b int) int {
	if a < b && !ok(a) {
		a = max(a, 1)
	}
	return a
}
`
	mutants, err := goMutants("p.go", source)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"func f(a, b int) int { return *new(int);",
		"if a < b || !ok(a) {", "if a <= b && !ok(a) {", "if a >= b && !ok(a) {", "if a < b && ok(a) {",
		removed, "a = min(a, 1)", "a = max(a, (1+1))", "a = max(a, (1-1))",
	}
	if got := changes(mutants); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := strings.Replace(source, "a < b", "a <= b", 1); mutants[2].apply(source) != got || mutants[2].line != 4 {
		t.Errorf("line %d: %s", mutants[2].line, mutants[2].apply(source))
	}
}

func TestLuaMutants(t *testing.T) {
	for line, want := range map[string][]string{
		"local a = ARGV[1] + 0": {"local a = ARGV[2] + 0", "local a = ARGV[0] + 0",
			"local a = ARGV[1] + 1", "local a = ARGV[1] + -1"},
		"if not a then return -1 end": {"if  a then return -1 end", "if not a then return -2 end",
			"if not a then return -0 end", removed},
		"local a = max(b - c, ceil(d))": {"local a = min(b - c, ceil(d))",
			"local a = max(b + c, ceil(d))", "local a = max(b - c, floor(d))"},
		"call('LTRIM', key, '-1') -- 1": {"call('LTRIM', key, '0') -- 1", "call('LTRIM', key, '-2') -- 1", "-- 1"},
		"else -- a < b":                 nil,
		"#!lua flags=a-b":               nil,
		"local max, min = 0":            {"local max, min = 1", "local max, min = -1"},
		"if a <= 'b' then":              {"if a < 'b' then", "if a > 'b' then"},
	} {
		if got := changes(luaMutants("a.lua", line+"\n")); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestFit(t *testing.T) {
	const source = "-- what it does\nreturn a + 1\n"
	for changed, want := range map[string]string{
		"-- what it does\nreturn a - 1\n":   "-- what it does\nreturn a - 1\n",
		"-- what it does\nreturn a\n":       "-- what it does\nreturn a\n    ",
		"-- what it does\nreturn a + 100\n": "-- what it do\nreturn a + 100\n",
	} {
		if got, err := fit(source, changed); got != want || err != nil {
			t.Errorf("got %q, want %q, error %v", got, want, err)
		}
	}
	if _, err := fit("--\n", "--\n1"); err == nil {
		t.Error("nothing can be left out")
	}
}

func TestAccepted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "accepted.txt")
	read := func(text string) (accepted, error) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readAccepted(name)
	}
	list, err := read("# about\n\na.go\n- x < 1\n+ x <= 1\n+ x < 2 ×2\n+ x > 1 ×1/3\n= equivalent\n")
	if err != nil {
		t.Fatal(err)
	}
	of := func(file, after string, line int) mutant {
		return mutant{file: file, before: "x < 1", after: after, line: line}
	}
	mutants := []mutant{of("a.go", "x <= 1", 1), of("a.go", "x < 2", 1), of("a.go", "x < 2", 2),
		of("a.go", "x > 1", 1), of("a.go", "x > 1", 2), of("a.go", "x > 1", 3),
		of("a.go", "x >= 1", 1), of("b.go", "x < 2", 1)}
	if got := list.leaveOut(mutants); !slices.Equal(got, mutants[3:]) {
		t.Errorf("of those that may be seen, %v are tried", got)
	}
	for i, want := range []bool{true, true, true, true, false, false, false, false} {
		if got := list.accept(mutants[i]); got != want {
			t.Errorf("%+v is listed: %t", mutants[i], got)
		}
	}
	if got, fewer := list.differ("a.go", true); len(got) != 1 || fewer != 0 ||
		!strings.Contains(got[0], "stands for 1, but 3 survived, of lines [1 2 3]: x > 1") {
		t.Errorf("entries that differ: %q", got)
	}
	list[0].survived, list[2].survived = nil, nil
	if got, fewer := list.differ("a.go", false); len(got) != 0 || fewer != 0 {
		t.Errorf("not all were tried, but %q", got)
	}
	if got, fewer := list.differ("a.go", true); len(got) != 2 || fewer != 2 {
		t.Errorf("entries that differ: %q", got)
	}
	for _, text := range []string{"a.go\n- x\n+ y\n", "a.go\n- x\n+ y\nb.go\n", "a.go\n+ y\n= z\n", "- x\n+ y\n= z\n"} {
		if _, err := read(text); err == nil {
			t.Errorf("%q is no list", text)
		}
	}
}

// TestAListedMutantThatIsSeenFails once the whole file was run.
func TestAListedMutantThatIsSeenFails(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module p\n",
		"p.go":   "package p\n\nfunc less(a, b int) bool {\n\treturn a < b\n}\n",
		"p_test.go": `package p

import "testing"

func TestLess(t *testing.T) {
	if !less(1, 2) || less(2, 2) {
		t.Error()
	}
}
`,
		"mutate/accepted.txt": "p.go\n- return a < b\n+ return a <= b\n= a mistake\n",
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for only, want := range map[string]bool{"p.go": false, "p.go:4": true} {
		if ok, err := run(t.Context(), []target{{"p.go", []stage{{".", nil}}}}, root, only,
			1, false, false); ok != want || err != nil {
			t.Errorf("%s: got %t, error %v", only, ok, err)
		}
	}
}

// TestListedSurvivorsAreMutants of a target, as many as the entry says: one whose line was changed
// or removed matches nothing any more, and a new line that equals a listed one matches another.
func TestListedSurvivorsAreMutants(t *testing.T) {
	list, err := readAccepted("accepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	mutants := map[string][]mutant{} // by file
	for _, target := range targets {
		source, err := os.ReadFile(filepath.Join("..", target.file))
		if err != nil {
			t.Fatal(err)
		}
		if mutants[target.file], err = mutantsOf(target.file, string(source)); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range list {
		if n := e.in(mutants[e.file]); n != e.mutants {
			t.Errorf("accepted.txt:%d stands for %d mutants of %s, but matches %d: %s", e.line, e.mutants, e.file, n, e.after)
		}
		if m := (mutant{file: e.file, before: e.before, after: e.after}); list.find(m) != e {
			t.Errorf("accepted.txt:%d is listed twice: %s", e.line, e.after)
		}
	}
}
