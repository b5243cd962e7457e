package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

func (t *tool) apply() *cobra.Command {
	var prune, dry bool
	c := &cobra.Command{
		Use:   "apply FILE",
		Short: "Make overrides as a file has them: show what would change, then change it",
		Long: `Make overrides as a YAML file has them: show what would change, then change it.

The file, or "-" for standard input, is a list of overrides, as overrides --json prints it:

  - policy: login
    client: 203.0.113.7            # or all: true
    limits: [100/h, 4 in flight]
    until: 2026-12-31T18:00:00Z    # or for: 2h
    note: load test

A client that is a hash needs hash: true beside it; one whose name reads as a hash needs hash: false.
Each 1,000 are a call of their own; after an error apply the file again.
Overrides that the file does not have stay, unless there is --prune. Those of policies that no process serves yet
are left out, with exit code 1: apply the file again later.`,
		Args: cobra.ExactArgs(1),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			entries, err := t.readFile(args[0])
			if err != nil {
				return err
			}
			entries, left, err := s.Served(ctx, entries)
			switch {
			case err != nil:
				return err
			case len(left) > 0 && prune:
				return fmt.Errorf("%w; --prune needs all", leftOut(left))
			}
			if err := s.apply(ctx, entries, len(left) > 0, prune, dry); err != nil || len(left) == 0 {
				return err
			}
			return fmt.Errorf("%w: apply the file again later", leftOut(left))
		}),
	}
	c.Flags().BoolVar(&prune, "prune", false, "end the overrides that the file does not have")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would change")
	return c
}

// leftOut says what of a file waits for processes that serve its policies.
func leftOut(left map[string]int) error { return errors.New(operate.LeftOut(left, word)) }

func overridesText(n int) string { return operate.Plural(n, "override", "overrides") }

// apply makes the overrides of a file of which processes serve the policies: all of it, or some are left.
func (s *session) apply(ctx context.Context, entries []operate.Entry, isLeft, prune, dry bool) error {
	steps, err := s.Steps(ctx, entries, prune)
	if err != nil {
		return err
	}
	t := s.tool
	if err := t.print(steps, func(w io.Writer) { printSteps(w, steps, isLeft) }); err != nil || len(steps) == 0 || dry {
		return err
	}
	if err := t.confirm(ctx, "Change "+overridesText(len(steps))); err != nil {
		return err
	}
	if err := s.Take(ctx, steps); err != nil {
		return err
	}
	fmt.Fprintln(t.errs, "ginlimit: changed", overridesText(len(steps)))
	return nil
}

func (t *tool) readFile(name string) ([]operate.Entry, error) {
	from := t.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fileError(err)
		}
		defer file.Close()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, operate.MaxFile+1))
	if err != nil {
		return nil, err
	}
	return operate.ParseFile(text, operate.MaxFile, operate.MaxEntries)
}

func printSteps(w io.Writer, steps []operate.Step, isLeft bool) {
	switch {
	case len(steps) > 0:
	case isLeft:
		row(w, "nothing changes yet")
	default:
		row(w, "nothing changes")
	}
	for _, s := range steps {
		of := s.New
		if of == nil {
			of = s.Old
		}
		text := of.String()
		if s.Change == operate.Changes {
			text = s.Old.String() + " -> " + text
		}
		row(w, s.Change, word(of.Policy), whom(of.Client), text)
	}
}
