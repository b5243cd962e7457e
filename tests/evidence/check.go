package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// runTests runs the tests of a guarantee, or of all if its number is 0, each package's with one command.
func runTests(t *tree, number int) error {
	if number > len(guarantees) {
		return fmt.Errorf("there are %d guarantees", len(guarantees))
	}
	names := map[string][]string{} // by the folder
	for i, g := range guarantees {
		if number != 0 && number != i+1 {
			continue
		}
		for _, a := range g.tried {
			for _, named := range a.tests {
				if _, ok := t.tests[named]; !ok {
					return fmt.Errorf("there is no test %s", named)
				}
				folder, name, _ := strings.Cut(named, " ")
				names[folder] = append(names[folder], name)
			}
		}
	}
	var failed []string
	for _, folder := range slices.Sorted(maps.Keys(names)) {
		if err := t.runOf(folder, names[folder]); err != nil {
			failed = append(failed, folder)
		}
	}
	if failed != nil {
		return errors.New("tests failed in " + strings.Join(failed, ", "))
	}
	return nil
}

// runOf runs tests of a folder.
func (t *tree) runOf(folder string, names []string) error {
	module := t.module(folder)
	slices.Sort(names)
	args := []string{"test", "-count=1", "-timeout", "0", "-run", "^(" + strings.Join(slices.Compact(names), "|") + ")$"}
	for _, name := range names {
		if t.tests[folder+" "+name].needsTag {
			args = append(args, "-tags", "integration")
			break
		}
	}
	within, err := filepath.Rel(filepath.FromSlash(module), filepath.FromSlash(folder))
	if err != nil {
		return err
	}
	cmd := exec.Command("go", append(args, "./"+path.Clean(filepath.ToSlash(within)))...)
	fmt.Printf("cd %s && %s\n", module, strings.Join(cmd.Args, " "))
	cmd.Dir = filepath.Join(t.root, module)
	cmd.Env = append(os.Environ(), "CI=true") // a test that lacks redis-server fails, and is not skipped
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
