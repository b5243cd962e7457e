package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

const head = `# Evidence

For whoever has to sign off that ginlimit may guard a service: each guarantee, what threatens it, what has tried to
break it, and how much. %[1]sgo run ./tests/evidence%[1]s writes this page from the code and from [runs](#runs): no figure
is typed. Figures of a run stand where it is first named. Each test fails once the guarantee is broken.

%[1]sgo run ./tests/evidence -check 1%[1]s runs the tests of guarantee 1, and %[1]s-check 0%[1]s all; some need
redis-server. No test covers what an [eviction](operations.md#maxmemory) or a failover that loses writes admits, or who
[writes to Redis](SECURITY.md#threat-model).
`

const runsHead = `
## Runs

%[1]sgo run ./tests/evidence -record NAME%[1]s makes one again, by the command that it prints. `

// write returns the page, or what is missing in the code or the records.
func write(t *tree) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, head, "`")
	told := map[string]bool{}
	for i, g := range guarantees {
		fmt.Fprintf(&b, "\n## %d. %s\n\n%s\n\n%s\n\n", i+1, g.title, wrapped(g.says, ""),
			wrapped("Threats: "+lower(g.breaks), ""))
		for _, a := range g.tried {
			item, err := t.item(a, told)
			if err != nil {
				return "", fmt.Errorf("guarantee %d: %w", i+1, err)
			}
			b.WriteString(item)
		}
	}
	fmt.Fprintf(&b, runsHead, "`")
	made := map[string][]string{} // by the date
	for _, r := range runs {
		seen, err := t.recorded(r)
		if err != nil {
			return "", err
		}
		made[seen.Date] = append(made[seen.Date], "`"+r.name+"`")
	}
	b.WriteString(dates(made))
	return b.String(), nil
}

// dates says when runs were made, by their names.
func dates(made map[string][]string) string {
	all := slices.Sorted(maps.Keys(made))
	if len(all) == 1 {
		return "All are of " + all[0] + ".\n"
	}
	var b strings.Builder
	b.WriteString("They are of:\n\n")
	for _, date := range all {
		b.WriteString(wrapped("- "+date+": "+strings.Join(made[date], ", "), "  ") + "\n")
	}
	return b.String()
}

// recorded returns what a run has seen, if that was by its command.
func (t *tree) recorded(r run) (seen, error) {
	s, ok := t.seen[r.name]
	if !ok || s.Command != r.command || len(s.Figures) != len(r.figures) {
		return s, fmt.Errorf("the run %s is not recorded: go run ./tests/evidence -record %s", r.name, r.name)
	}
	return s, nil
}

// item is that of an attempt: what it is, how much was tried, and the tests. Of runs whose figures are told already it
// has only the names.
func (t *tree) item(a attempt, told map[string]bool) (string, error) {
	parts := []string{a.what}
	var ran []string
	for _, name := range a.runs {
		i := slices.IndexFunc(runs, func(r run) bool { return r.name == name })
		if i < 0 {
			return "", fmt.Errorf("there is no run %s", name)
		}
		seen, err := t.recorded(runs[i])
		if err != nil {
			return "", err
		}
		text := "`" + name + "`"
		if !told[name] {
			text = fmt.Sprintf("%s (%s)", runs[i].tell(seen), text)
		}
		told[name] = true
		ran = append(ran, text)
	}
	if ran != nil {
		parts = append(parts, strings.Join(ran, ", "))
	}
	if a.table != nil {
		rows, err := t.rows(a.table.file, a.table.name)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%d %s", rows, a.table.unit))
	}
	var tests []string
	for _, named := range a.tests {
		at, ok := t.tests[named]
		if !ok {
			return "", fmt.Errorf("there is no test %s", named)
		}
		_, name, _ := strings.Cut(named, " ")
		tests = append(tests, fmt.Sprintf("[`%s`](%s)", name, path.Join("..", at.file)))
	}
	if tests != nil {
		parts = append(parts, strings.Join(tests, ", "))
	}
	return wrapped("- "+strings.Join(parts, ": "), "  ") + "\n", nil
}

// lower begins a sentence in small letters, after a colon.
func lower(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// wrapped breaks a paragraph into lines of at most 120 characters, but for longer words; lines after the first are
// indented.
func wrapped(text, indent string) string {
	var b strings.Builder
	line := 0
	for _, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case line == 0:
		case line+1+n > 120:
			b.WriteString("\n" + indent)
			line = len(indent)
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(word)
		line += n
	}
	return b.String()
}
