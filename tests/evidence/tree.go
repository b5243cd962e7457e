package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// tree is what the repository has.
type tree struct {
	root  string
	tests map[string]test // by folder and name, such as "tests/limits TestSettle"
	seen  map[string]seen // by the run's name
}

// test is where a test or a fuzz target lies.
type test struct {
	file     string // from the root, with slashes
	needsTag bool   // integration
}

// records is where the figures of long runs are kept.
const records = "tests/evidence/runs.json"

// rootOf returns the nearest folder above that has the module.
func rootOf(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/ginlimit/ginlimit\n") {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", errors.New("not in the repository")
		}
		folder = filepath.Dir(folder)
	}
}

var (
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	tagged   = regexp.MustCompile(`(?m)^//go:build .*\bintegration\b`)
)

// readTree finds all tests, and what has been recorded.
func readTree(root string) (*tree, error) {
	t := &tree{root: root, tests: map[string]test{}, seen: map[string]seen{}}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "bin" || name != root && strings.HasPrefix(entry.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		file = filepath.ToSlash(file)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			t.tests[path.Dir(file)+" "+string(m[1])] = test{file, tagged.Match(text)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, records))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	return t, json.Unmarshal(text, &t.seen)
}

// keep writes what has been recorded.
func (t *tree) keep() error {
	text, err := json.MarshalIndent(t.seen, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.root, records), append(text, '\n'), 0o644)
}

// module returns the folder of the module that has a folder.
func (t *tree) module(folder string) string {
	for ; folder != "."; folder = path.Dir(folder) {
		if _, err := os.Stat(filepath.Join(t.root, folder, "go.mod")); err == nil {
			return folder
		}
	}
	return "."
}

// rows counts the elements of the first composite literal in a variable or function of a file: a table's rows.
func (t *tree) rows(file, name string) (int, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(t.root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	rows := 0
	count := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if literal, ok := n.(*ast.CompositeLit); ok && rows == 0 {
				rows = len(literal.Elts)
			}
			return rows == 0
		})
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == name {
				count(d.Body)
			}
		case *ast.ValueSpec:
			if d.Names[0].Name == name {
				count(d)
			}
		}
		return true
	})
	if rows == 0 {
		return 0, fmt.Errorf("%s has no table %s", file, name)
	}
	return rows, nil
}
