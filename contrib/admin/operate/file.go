package operate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/overrides"
)

const (
	// MaxFile is how many bytes a file of overrides has, and MaxEntries how many overrides: all of a prefix.
	MaxFile    = 16 << 20
	MaxEntries = overrides.Max
	// MaxChanges is how many overrides one call changes.
	MaxChanges = overrides.MaxChanges
)

// Entry is an override in a file.
type Entry struct {
	ginlimit.Override        // its client first as the file has it, then as Redis has it
	of                Client // as the policy knows it
	all               bool   // clients
	hash              Hash
	number, line      int // in the file, from 1
}

// FileError is an error in an entry of a file.
type FileError struct {
	Number int // of the entry, from 1
	Line   int
	Err    error
}

func (e *FileError) Error() string {
	return fmt.Sprintf("override %d, line %d: %s", e.Number, e.Line, strings.TrimPrefix(e.Err.Error(), "ginlimit: "))
}

func (e *FileError) Unwrap() error { return e.Err }

// faults are what is wrong with a file.
type faults []error

func (f *faults) add(e Entry, line int, format string, args ...any) {
	*f = append(*f, &FileError{e.number, line, fmt.Errorf(format, args...)})
}

// err returns all faults in the order of their lines, or nil.
func (f faults) err() error {
	if f == nil {
		return nil
	}
	slices.SortStableFunc(f, func(a, b error) int {
		return cmp.Compare(a.(*FileError).Line, b.(*FileError).Line)
	})
	return &Fault{Err: errors.Join(f...)}
}

// ParseFile reads the overrides of a file, or returns every error in them. The file has at most maxBytes bytes and
// maxEntries overrides.
// JSON is YAML, too.
func ParseFile(text []byte, maxBytes, maxEntries int) (all []Entry, err error) {
	if len(text) > maxBytes {
		return nil, fault("the file has more than %d bytes", maxBytes)
	}
	var document, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err = documents.Decode(&document); err == nil {
		err = documents.Decode(&second)
	}
	switch {
	case err == nil:
		return nil, fault("line %d: another document; want one list", second.Line)
	case err != io.EOF:
		return nil, fault("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	case document.Kind == 0:
		return nil, fault("the file is empty")
	}
	list := document.Content[0]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, fault("line %d: want a list of overrides, each beginning with \"- policy:\"", list.Line)
	}
	if len(list.Content) > maxEntries {
		return nil, fault("%d overrides; want at most %d", len(list.Content), maxEntries)
	}
	var faults faults
	for i, node := range list.Content {
		all = append(all, parseEntry(node, i+1, &faults))
	}
	return all, faults.err()
}

func parseEntry(node *yaml.Node, number int, faults *faults) Entry {
	e := Entry{line: node.Line, number: number}
	if node.Kind != yaml.MappingNode {
		faults.add(e, node.Line, "want an override: policy, client or all, limits, until or for, note")
		return e
	}
	given := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if given[key.Value] {
			faults.add(e, key.Line, "%s is given twice", fieldText(key.Value))
		}
		given[key.Value] = true
		if err := e.set(key.Value, value); err != nil {
			faults.add(e, value.Line, "%s: %w", fieldText(key.Value), err)
		}
	}
	for _, name := range []string{"policy", "limits"} {
		if !given[name] {
			faults.add(e, e.line, "%s is missing", name)
		}
	}
	if given["client"] == given["all"] {
		faults.add(e, e.line, "want one of client and all: true")
	}
	if given["hash"] && !given["client"] {
		faults.add(e, e.line, "hash is without a client")
	}
	if given["until"] == given["for"] {
		faults.add(e, e.line, "want one of until and for")
	}
	return e
}

// fieldText returns the name of a field, which whoever wrote the file has chosen.
func fieldText(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < 'a' || r > 'z' }) {
		return fmt.Sprintf("%.64q", name)
	}
	return name
}

// set sets a field of an entry.
func (e *Entry) set(name string, value *yaml.Node) (err error) {
	if name == "limits" && value.Kind == yaml.SequenceNode {
		var texts []string
		for _, item := range value.Content {
			texts = append(texts, item.Value)
		}
		if len(texts) == 0 {
			return errors.New("want at least one")
		}
		e.Limits, err = ParseLimits(texts)
		return err
	}
	if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
		return errors.New("want a text")
	}
	switch text := value.Value; name {
	case "policy":
		e.Policy = text
	case "client":
		if e.Client = text; text == "" {
			err = errors.New("it is empty; all: true is for all clients")
		}
	case "all":
		if e.all = text == "true"; !e.all {
			err = errors.New("want true, or a client")
		}
	case "hash":
		yes := false
		if yes, err = strconv.ParseBool(text); err != nil {
			err = errors.New("want true or false")
		}
		if e.hash = IsName; yes {
			e.hash = IsHash
		}
	case "limits":
		e.Limits, err = ParseLimits([]string{text})
	case "until":
		e.Until, err = ParseUntil(text, "")
	case "for":
		e.Until, err = ParseUntil("", text)
	case "note":
		e.Note = text
	default:
		err = errors.New("no such field; there are policy, client, all, hash, limits, until, for and note")
	}
	return err
}
