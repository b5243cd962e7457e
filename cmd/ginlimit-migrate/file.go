package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"os"
	"slices"
	"strings"
)

// file is a file that is rewritten.
type file struct {
	name  string
	base  *token.File
	text  []byte
	edits []edit
	notes []string
}

// edit replaces bytes of a file.
type edit struct {
	from, to int
	text     string
}

// replace replaces the text of a node.
func (f *file) replace(node ast.Node, text string) { f.replaceRange(node.Pos(), node.End(), text) }

func (f *file) replaceRange(from, to token.Pos, text string) {
	f.edits = append(f.edits, edit{f.base.Offset(from), f.base.Offset(to), text})
}

// insert inserts a text at a position.
func (f *file) insert(at token.Pos, text string) { f.replaceRange(at, at, text) }

// remove removes an argument of a call that is not the first, and a comma. Comments stay.
func (f *file) remove(call *ast.CallExpr, i int) {
	before, arg := call.Args[i-1].End(), call.Args[i]
	gap := string(f.text[f.base.Offset(before):f.base.Offset(arg.Pos())])
	after := string(f.text[f.base.Offset(arg.End()):f.base.Offset(call.Rparen)])
	comma := before + token.Pos(strings.IndexByte(gap, ','))
	switch {
	case strings.TrimSpace(gap) == ",":
		f.replaceRange(before, arg.End(), "")
	case strings.HasPrefix(after, ","):
		f.replaceRange(arg.Pos(), arg.End()+1, "")
	default:
		f.replaceRange(comma, comma+1, "")
		f.replace(arg, "")
	}
}

// source returns the text of a node.
func (f *file) source(node ast.Node) string {
	return string(f.text[f.base.Offset(node.Pos()):f.base.Offset(node.End())])
}

// between returns the text between two positions.
func (f *file) between(from, to token.Pos) string {
	return string(f.text[f.base.Offset(from):f.base.Offset(to)])
}

// note notes what is left to do by hand.
func (f *file) note(node ast.Node, format string, args ...any) {
	f.notes = append(f.notes, fmt.Sprintf("%s:%d: %s", f.name, f.base.Line(node.Pos()), fmt.Sprintf(format, args...)))
}

func (f *file) changed() bool { return len(f.edits) > 0 }

// rewritten returns the file's new text. An edit inside a text that another edit replaces is
// dropped.
func (f *file) rewritten() ([]byte, error) {
	slices.SortStableFunc(f.edits, func(a, b edit) int {
		if a.from == b.from && (a.from == a.to) != (b.from == b.to) { // an insertion goes first
			return cmp.Compare(a.to, b.to)
		}
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
	})
	var text []byte
	at := 0
	for _, e := range f.edits {
		if e.from < at {
			continue
		}
		text = append(append(text, f.text[at:e.from]...), e.text...)
		at = e.to
	}
	text, err := format.Source(append(text, f.text[at:]...))
	if err != nil {
		return nil, err
	}
	return format.Source(text) // again, as comments may have moved
}

func (f *file) write() error {
	text, err := f.rewritten()
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return os.WriteFile(f.name, text, 0o644)
}
