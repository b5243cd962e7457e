package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// print prints a value as JSON, or as the text that a function writes.
func (t *tool) print(value any, text func(w io.Writer)) error {
	if t.json {
		var text bytes.Buffer
		to := json.NewEncoder(&text)
		to.SetEscapeHTML(false)
		if err := to.Encode(value); err != nil {
			return err
		}
		_, err := io.WriteString(t.out, escaped(text.String())) // all of it stands in strings
		return err
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// row writes a row of a table.
func row(w io.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, strings.ReplaceAll(escaped(fmt.Sprint(cell)), "\n", `\n`))
	}
	fmt.Fprintln(w)
}

// word returns text of other people as a shell reads it: what the tool shows of a client can be an argument.
func word(text string) string {
	isPlain := func(r rune) bool {
		return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._:/@%+,-", r))
	}
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !isPlain(r) }) {
		return text
	}
	isVisible := func(r rune) bool {
		return r == ' ' || r != utf8.RuneError && unicode.IsGraphic(r) && !unicode.IsSpace(r)
	}
	if !strings.ContainsFunc(text, func(r rune) bool { return r == '\'' || !isVisible(r) }) {
		return "'" + text + "'"
	}
	var quoted strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == '\'' || r == '\\':
			quoted.WriteString(`\` + text[:n])
		case isVisible(r):
			quoted.WriteString(text[:n])
		default:
			for _, b := range []byte(text[:n]) {
				fmt.Fprintf(&quoted, `\x%02x`, b)
			}
		}
		text = text[n:]
	}
	return "$'" + quoted.String() + "'"
}

// listed returns a list for people.
func listed(all []string) string {
	list := make([]string, len(all))
	for i, one := range all {
		list[i] = word(one)
	}
	return strings.Join(list, ", ")
}

// escaped returns text without what can move the cursor of a terminal or turn what it shows: each such character but a
// line break is written as in JSON.
func escaped(text string) string {
	isShown := func(r rune) bool { return r == '\n' || unicode.IsGraphic(r) }
	if !strings.ContainsFunc(text, func(r rune) bool { return !isShown(r) }) {
		return text
	}
	var all strings.Builder
	for _, r := range text {
		if isShown(r) {
			all.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&all, `\u%04x`, unit)
		}
	}
	return all.String()
}

// confirm asks whether to go on. Without a terminal it refuses, unless there is --yes.
func (t *tool) confirm(ctx context.Context, question string) error {
	if t.yes {
		return nil
	}
	if !t.terminal {
		return usage("%s? Nobody can be asked here: give --yes", question)
	}
	fmt.Fprintf(t.errs, "%s? [y/N] ", escaped(question))
	answers := make(chan string, 1)
	go func() { // which nobody can interrupt, so it ends with the program
		answer, _ := bufio.NewReader(t.in).ReadString('\n')
		answers <- answer
	}()
	answer := ""
	select {
	case answer = <-answers:
	case <-ctx.Done():
		fmt.Fprintln(t.errs)
	}
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
