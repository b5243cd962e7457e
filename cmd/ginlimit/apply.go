package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// Kinds of changes, as a plan shows them.
const (
	adds    = "+"
	changes = "~"
	ends    = "-"
)

// change is a line of a plan.
type change struct {
	Change string    `json:"change"` // +, ~ or -
	New    *override `json:"new,omitempty"`
	Old    *override `json:"old,omitempty"`
}

func (t *tool) apply() *cobra.Command {
	var prune, dry bool
	c := &cobra.Command{
		Use:   "apply FILE",
		Short: "Make overrides as a file has them: show what would change, then change all or nothing",
		Long: `Make overrides as a YAML file has them: show what would change, then change all or nothing.

The file, or "-" for standard input, is a list of at most 1,000 overrides:

  - policy: login
    client: 203.0.113.7            # or all: true
    limits: [100/h, 4 in flight]
    until: 2026-12-31T18:00:00Z    # or for: 2h
    note: load test

A client that is a hash needs hash: true beside it; one whose name reads as a hash needs hash: false.
Overrides that the file does not have stay, unless there is --prune.`,
		Args: cobra.ExactArgs(1),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			entries, err := t.readFile(args[0])
			if err != nil {
				return err
			}
			all, err := s.fit(ctx, entries)
			if err != nil {
				return err
			}
			plan, todo, err := s.plan(ctx, all, prune)
			if err != nil {
				return err
			}
			if err := t.print(plan, func(w io.Writer) { printPlan(w, plan) }); err != nil || len(plan) == 0 || dry {
				return err
			}
			if err := t.confirm(ctx, fmt.Sprintf("Change %d overrides", len(plan))); err != nil {
				return err
			}
			if err := s.change(ctx, todo); err != nil {
				return err
			}
			fmt.Fprintln(t.errs, "ginlimit: changed", len(plan), "overrides")
			return nil
		}),
	}
	c.Flags().BoolVar(&prune, "prune", false, "end the overrides that the file does not have")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would change")
	return c
}

func (t *tool) readFile(name string) ([]entry, error) {
	from := t.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fileError(err)
		}
		defer file.Close()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		return nil, err
	}
	return parseFile(text)
}

// fit returns the overrides of a file with clients as their policies know them, or every line with an error.
func (s *session) fit(ctx context.Context, entries []entry) (all []entry, err error) {
	known, err := s.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var faults faults
	for _, e := range entries {
		variants := slices.DeleteFunc(slices.Clone(known), func(p ginlimit.PolicyInfo) bool { return p.Name != e.Policy })
		if len(variants) == 0 {
			faults.add(e.line, "no process serves a policy %q", e.Policy)
			continue
		}
		of, _ := operate.LastSeen(variants)
		if err := s.resolve(&e, of); err != nil {
			faults.add(e.line, "%w", hinted(err))
			continue
		}
		same := func(o entry) bool { return o.Policy == e.Policy && o.Client == e.Client }
		if slices.ContainsFunc(all, same) {
			faults.add(e.line, "policy %q has %s twice", e.Policy, whom(e.of.Key))
		}
		all = append(all, e)
	}
	return all, faults.err()
}

// resolve gives an entry its client, as the policy knows it and as Redis has it.
func (s *session) resolve(e *entry, of ginlimit.PolicyInfo) (err error) {
	if e.all {
		return nil
	}
	if e.of, err = s.Operator.Client(of, e.Client, e.hash.of()); err == nil {
		err = operate.Overridable(of, e.of)
	}
	e.Client = s.Stored(of.Name, e.of)
	return err
}

// plan returns what changes, and the overrides that change it.
func (s *session) plan(ctx context.Context, want []entry, prune bool) (
	plan []change, todo []entry, err error,
) {
	have, err := s.Overrides(ctx)
	if err != nil {
		return nil, nil, err
	}
	plan = []change{}
	for _, o := range want {
		same := func(h ginlimit.Override) bool { return h.Policy == o.Policy && h.Client == o.Client }
		i := slices.IndexFunc(have, same)
		c := change{Change: adds, New: new(override)}
		*c.New = outputOf(o.Override)
		c.New.Client = o.of.Key
		if i >= 0 {
			old := outputOf(have[i])
			have = slices.Delete(have, i, i+1)
			if slices.Equal(old.Limits, o.Limits) && old.Until.Equal(o.Until.Truncate(time.Second)) && old.Note == o.Note {
				continue
			}
			c.Change, c.Old = changes, &old
		}
		plan, todo = append(plan, c), append(todo, o)
	}
	if !prune {
		return plan, todo, nil
	}
	for _, h := range have {
		old := outputOf(h)
		plan = append(plan, change{Change: ends, Old: &old})
		todo = append(todo, entry{Override: ginlimit.Override{Policy: h.Policy, Client: h.Client}})
	}
	return plan, todo, nil
}

// change makes the changes, all or none. An error names the lines of the file.
func (s *session) change(ctx context.Context, todo []entry) error {
	var all []ginlimit.Override
	for _, e := range todo {
		all = append(all, e.Override)
	}
	err := s.Change(ctx, all...)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var found faults
	for _, err := range joined.Unwrap() {
		var fault *ginlimit.OverrideError
		if !errors.As(err, &fault) {
			return err
		}
		found.add(todo[fault.Index].line, "%w", fault.Err)
	}
	return found.err()
}

func printPlan(w io.Writer, plan []change) {
	if len(plan) == 0 {
		row(w, "nothing changes")
	}
	for _, c := range plan {
		of := c.New
		if of == nil {
			of = c.Old
		}
		text := of.text()
		if c.Change == changes {
			text = c.Old.text() + " -> " + text
		}
		row(w, c.Change, word(of.Policy), whom(of.Client), text)
	}
}
