package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

const (
	maxFile    = 1 << 20 // bytes
	maxEntries = 1000
)

// entry is an override in a file.
type entry struct {
	ginlimit.Override                // its client first as the file has it, then as Redis has it
	of                operate.Client // as the policy knows it
	all               bool           // clients
	hash              answer         // whether the client is a hash
	line              int
}

// faults are what is wrong with a file, by line.
type faults []fault

type fault struct {
	line int
	err  error
}

func (f *faults) add(line int, format string, args ...any) {
	*f = append(*f, fault{line, fmt.Errorf(format, args...)})
}

// err returns all faults in the order of their lines, or nil.
func (f faults) err() error {
	slices.SortStableFunc(f, func(a, b fault) int { return cmp.Compare(a.line, b.line) })
	var all []error
	for _, fault := range f {
		all = append(all, fmt.Errorf("line %d: %w", fault.line, fault.err))
	}
	if all == nil {
		return nil
	}
	return usageError{errors.Join(all...)}
}

// parseFile reads overrides, or returns every line with an error.
func parseFile(text []byte) (all []entry, err error) {
	if len(text) > maxFile {
		return nil, usage("the file has more than %d bytes", maxFile)
	}
	var document, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err = documents.Decode(&document); err == nil {
		err = documents.Decode(&second)
	}
	switch {
	case err == nil:
		return nil, usage("line %d: another document; want one list", second.Line)
	case err != io.EOF:
		return nil, usageError{errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
	case document.Kind == 0:
		return nil, usage("the file is empty")
	}
	list := document.Content[0]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, usage("line %d: want a list of overrides, each beginning with \"- policy:\"", list.Line)
	}
	if len(list.Content) > maxEntries {
		return nil, usage("%d overrides; want at most %d", len(list.Content), maxEntries)
	}
	var faults faults
	for _, node := range list.Content {
		all = append(all, parseEntry(node, &faults))
	}
	return all, faults.err()
}

func parseEntry(node *yaml.Node, faults *faults) entry {
	e := entry{line: node.Line}
	if node.Kind != yaml.MappingNode {
		faults.add(node.Line, "want an override: policy, client or all, limits, until or for, note")
		return e
	}
	given := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if given[key.Value] {
			faults.add(key.Line, "%s is given twice", word(key.Value))
		}
		given[key.Value] = true
		if err := e.set(key.Value, value); err != nil {
			faults.add(value.Line, "%s: %w", word(key.Value), err)
		}
	}
	for _, name := range []string{"policy", "limits"} {
		if !given[name] {
			faults.add(e.line, "%s is missing", name)
		}
	}
	if given["client"] == given["all"] {
		faults.add(e.line, "want one of client and all: true")
	}
	if given["hash"] && !given["client"] {
		faults.add(e.line, "hash is without a client")
	}
	if given["until"] == given["for"] {
		faults.add(e.line, "want one of until and for")
	}
	return e
}

// set sets a field of an entry.
func (e *entry) set(name string, value *yaml.Node) (err error) {
	if name == "limits" && value.Kind == yaml.SequenceNode {
		var texts []string
		for _, item := range value.Content {
			texts = append(texts, item.Value)
		}
		if len(texts) == 0 {
			return errors.New("want at least one")
		}
		e.Limits, err = operate.ParseLimits(texts)
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
		if err = e.hash.Set(text); err != nil {
			err = errors.New("want true or false")
		}
	case "limits":
		e.Limits, err = operate.ParseLimits([]string{text})
	case "until":
		e.Until, err = until(text, "")
	case "for":
		e.Until, err = until("", text)
	case "note":
		e.Note = text
	default:
		err = errors.New("no such field; there are policy, client, all, hash, limits, until, for and note")
	}
	return err
}

// until returns the end of an override, which one of two texts says.
func until(at, span string) (time.Time, error) {
	if (at == "") == (span == "") {
		return time.Time{}, usage("give one of --until and --for")
	}
	return operate.ParseUntil(at, span)
}
