package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is a package as go list describes it.
type listed struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
	ForTest    string
	DepOnly    bool
	ImportMap  map[string]string
	Error      *struct{ Err string }
}

// pkg is a package with its types.
type pkg struct {
	fset     *token.FileSet
	files    []*ast.File
	info     *types.Info
	defaults bool // its limiters have options that are part of policies' names
}

// load returns the packages that match patterns, their tests among them. A file is in one of them.
func load(tags string, patterns []string) ([]*pkg, error) {
	args := []string{"list", "-e", "-export", "-deps", "-test", "-tags", tags,
		"-json=ImportPath,Dir,Export,GoFiles,ForTest,DepOnly,ImportMap,Error", "--"}
	cmd := exec.Command("go", append(args, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[one.ImportPath] = one.Export
		if !one.DepOnly && !strings.HasSuffix(one.ImportPath, ".test") {
			all = append(all, one)
		}
	}
	var packages []*pkg
	seen := map[string]bool{}
	for _, withTests := range []bool{true, false} { // a package with its tests has all files of the one without
		for _, one := range all {
			if (one.ForTest != "") != withTests {
				continue
			}
			p, err := check(one, exports, seen)
			if err != nil {
				return nil, err
			}
			packages = append(packages, p)
		}
	}
	return packages, nil
}

// check parses a package and finds its types, as far as it compiles. Files that were seen are not
// kept.
func check(one listed, exports map[string]string, seen map[string]bool) (*pkg, error) {
	p := &pkg{fset: token.NewFileSet(), info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
	}}
	var files []*ast.File
	for _, name := range one.GoFiles {
		name = filepath.Join(one.Dir, name)
		file, err := parser.ParseFile(p.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		if !seen[name] {
			seen[name] = true
			p.files = append(p.files, file)
		}
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if mapped := one.ImportMap[path]; mapped != "" {
			path = mapped
		}
		if exports[path] == "" {
			return nil, fmt.Errorf("%s does not compile", path)
		}
		return os.Open(exports[path])
	}
	var first error
	config := types.Config{
		Importer: importer.ForCompiler(p.fset, "gc", lookup),
		Error: func(err error) {
			if first == nil {
				first = err
			}
		},
	}
	_, _ = config.Check(one.ImportPath, p.fset, files, p.info) // its error is the first
	if first != nil {
		fmt.Fprintf(os.Stderr, "%s: does not compile, so some of it may stay as it is: %v\n", one.ImportPath, first)
	}
	return p, nil
}
