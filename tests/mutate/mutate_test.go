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

// TestASurvivorFails if too few others were seen.
func TestASurvivorFails(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module p\n",
		"p.go":   "package p\n\nfunc less(a, b int) bool {\n\treturn a < b\n}\n",
		"p_test.go": `package p

import "testing"

func TestLess(t *testing.T) {
	if !less(1, 2) {
		t.Error()
	}
}
`,
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for only, want := range map[string]bool{"p.go": false, "p.go:3": true} {
		if ok, err := run(t.Context(), []target{{"p.go", []stage{{".", nil}}}}, root, only, 1, false); ok != want ||
			err != nil {
			t.Errorf("%s: got %t, error %v", only, ok, err)
		}
	}
}

// TestEveryScriptIsATarget, but the one that the others begin with, and each target is there.
func TestEveryScriptIsATarget(t *testing.T) {
	root := filepath.Join("..", "..")
	targets, err := targetsIn(root)
	if err != nil || len(targets) <= len(testsOfScripts) {
		t.Fatal(len(targets), err)
	}
	for _, target := range targets {
		if _, err := os.Stat(filepath.Join(root, target.file)); err != nil {
			t.Error(err)
		}
	}
	for _, folder := range []string{"", "fast", "kind"} {
		scripts, err := filepath.Glob(filepath.Join(root, "internal/wire/lua", folder, "*.lua"))
		if err != nil {
			t.Fatal(err)
		}
		for _, script := range scripts {
			file, _ := filepath.Rel(root, script)
			if filepath.Base(file) != "prelude.lua" && testsOfScripts[filepath.ToSlash(file)] == nil {
				t.Errorf("%s is no target", file)
			}
		}
	}
}
