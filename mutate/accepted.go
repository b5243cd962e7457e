package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// accepted is the list of survivors that are known. An entry is matched by the file and by the
// texts of the lines, not by their number, so that it outlives changes elsewhere in the file.
type accepted []*entry

type entry struct {
	file, before, after, reason string
	line                        int   // in the list
	mutants, survivors          int   // how many match, and how many of these survive
	survived                    []int // the lines of those that have
}

// count matches the end of a line that stands for several mutants.
var count = regexp.MustCompile(`^(.*) ×(\d+)(?:/(\d+))?$`)

// newEntry returns the entry of a text that may end with a count.
func newEntry(file, before, after string, line int) *entry {
	e := &entry{file: file, before: before, after: after, line: line, mutants: 1, survivors: 1}
	if m := count.FindStringSubmatch(after); m != nil {
		e.after = m[1]
		e.survivors, _ = strconv.Atoi(m[2])
		if e.mutants = e.survivors; m[3] != "" {
			e.mutants, _ = strconv.Atoi(m[3])
		}
	}
	return e
}

func (e *entry) matches(m mutant) bool {
	return e.file == m.file && e.before == m.before && e.after == m.after
}

// in returns how many of the mutants match.
func (e *entry) in(mutants []mutant) (n int) {
	for _, m := range mutants {
		if e.matches(m) {
			n++
		}
	}
	return n
}

// readAccepted reads entries of four lines:
//
//	internal/bucket/bucket.go
//	- the line
//	+ what it becomes
//	= the reason
//
// Several pairs of lines that begin with - and + may share a file and a reason. Empty lines and
// those that begin with # are skipped.
//
// An entry stands for one mutant. Where equal lines of a file have several, a count ends the line
// with +: "+ x <= 1 ×3" stands for three mutants, all of which survive, and "+ x <= 1 ×1/3" for
// three, one of which does.
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
			list = append(list, newEntry(of, before, text, n))
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

// find returns the entry of a mutant, or nil.
func (a accepted) find(m mutant) *entry {
	for _, e := range a {
		if e.matches(m) {
			return e
		}
	}
	return nil
}

// accept reports whether a survivor is listed, and not one more than the entry stands for.
func (a accepted) accept(m mutant) bool {
	e := a.find(m)
	if e == nil {
		return false
	}
	e.survived = append(e.survived, m.line)
	return len(e.survived) <= e.survivors
}

// leaveOut returns the mutants without those that are known to survive. Where some of an entry do, all are kept.
func (a accepted) leaveOut(mutants []mutant) []mutant {
	return slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool {
		e := a.find(m)
		return e != nil && e.in(mutants) <= e.survivors
	})
}

// differ says of which entries of a file more mutants have survived than they stand for, or fewer if all were tried. It
// returns the number of entries with fewer.
func (a accepted) differ(file string, all bool) (lines []string, fewer int) {
	for _, e := range a {
		n := len(e.survived)
		less := all && n < e.survivors
		if e.file != file || n <= e.survivors && !less {
			continue
		}
		if less {
			fewer++
		}
		lines = append(lines,
			fmt.Sprintf("accepted.txt:%d stands for %d, but %d survived, of lines %v: %s",
				e.line, e.survivors, n, e.survived, e.after))
	}
	return lines, fewer
}
