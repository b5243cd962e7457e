package main

import (
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
		"local a = ARGV[1] + 0":         {"local a = ARGV[2] + 0", "local a = ARGV[0] + 0", "local a = ARGV[1] + 1", "local a = ARGV[1] + -1"},
		"if not a then return -1 end":   {"if  a then return -1 end", "if not a then return -2 end", "if not a then return -0 end", removed},
		"local a = max(b - c, ceil(d))": {"local a = min(b - c, ceil(d))", "local a = max(b + c, ceil(d))", "local a = max(b - c, floor(d))"},
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
	list, err := read("# about\n\na.go\n- x < 1\n+ x <= 1\n+ x < 2\n= equivalent\n")
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[string]bool{"x <= 1": true, "x < 2": true, "x > 1": false} {
		if got := list.accept(mutant{file: "a.go", before: "x < 1", after: after}); got != want {
			t.Errorf("%s: %t", after, got)
		}
	}
	if list.accept(mutant{file: "b.go", before: "x < 1", after: "x < 2"}) || len(list.unused("a.go")) > 0 {
		t.Error("an entry is of one file")
	}
	for _, text := range []string{"a.go\n- x\n+ y\n", "a.go\n- x\n+ y\nb.go\n", "a.go\n+ y\n= z\n", "- x\n+ y\n= z\n"} {
		if _, err := read(text); err == nil {
			t.Errorf("%q is no list", text)
		}
	}
}

// TestListedSurvivorsAreMutants of a target: an entry whose line was changed or removed matches nothing any more.
func TestListedSurvivorsAreMutants(t *testing.T) {
	list, err := readAccepted("accepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		source, err := os.ReadFile(filepath.Join("..", target.file))
		if err != nil {
			t.Fatal(err)
		}
		mutants, err := mutantsOf(target.file, string(source))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mutants {
			list.accept(m)
		}
	}
	for _, e := range list {
		if !e.used {
			t.Errorf("accepted.txt:%d matches no mutant of %s: %s", e.line, e.file, e.after)
		}
	}
}
