package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// accepted is the list of survivors that are known. An entry is matched by the file and by the texts of the lines, not by
// their number, so it holds for all such lines of the file.
type accepted []*entry

type entry struct {
	file, before, after, reason string
	line                        int // in the list
	used                        bool
}

// readAccepted reads entries of four lines:
//
//	internal/bucket/bucket.go
//	- the line
//	+ what it becomes
//	= the reason
//
// Several pairs of lines that begin with - and + may share a file and a reason. Empty lines and those that begin with # are
// skipped.
func readAccepted(name string) (accepted, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var list accepted
	var of, before string
	open := 0 // entries that have no reason yet
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		mark, text, _ := strings.Cut(line, " ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case mark == "-":
			before = text
		case mark == "+" && before != "" && of != "":
			list = append(list, &entry{file: of, before: before, after: text, line: n})
			open++
		case mark == "=" && open > 0:
			for _, e := range list[len(list)-open:] {
				e.reason = text
			}
			open = 0
		case text == "" && mark != "=" && open == 0:
			of, before = line, ""
		default:
			return nil, fmt.Errorf("%s:%d: %q is out of place", name, n, line)
		}
	}
	if open > 0 {
		return nil, fmt.Errorf("%s: the last entry has no reason", name)
	}
	return list, lines.Err()
}

// accept reports whether a survivor is listed.
func (a accepted) accept(m mutant) bool {
	found := false
	for _, e := range a {
		if e.file == m.file && e.before == m.before && e.after == m.after {
			e.used, found = true, true
		}
	}
	return found
}

// unused returns the entries of a file that no survivor has used.
func (a accepted) unused(file string) []*entry {
	var list []*entry
	for _, e := range a {
		if e.file == file && !e.used {
			list = append(list, e)
		}
	}
	return list
}
