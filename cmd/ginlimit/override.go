package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// whom returns the client of an override, as part of a sentence.
func whom(client string) string {
	if client == "" {
		return "all clients"
	}
	return "client " + word(client)
}

// overriding is what the flags of override and override-all say.
type overriding struct {
	at, span, note string
	end            bool
}

// command gives a command these flags, and says how many arguments it takes. No argument can be left out, or one that
// reads as a flag might change which client a command is about.
func (o *overriding) command(
	c *cobra.Command, args int, run func(c *cobra.Command, args []string) error,
) *cobra.Command {
	c.Flags().StringVar(&o.at, "until", "", "when it ends, such as 2026-12-31T18:00:00Z")
	c.Flags().StringVar(&o.span, "for", "", "how long it lasts, such as 2h or 7d")
	c.Flags().StringVar(&o.note, "note", "", "why, for people")
	c.Flags().BoolVar(&o.end, "end", false, "end the override; without LIMITS")
	c.Args = func(c *cobra.Command, given []string) error {
		want := args
		if o.end {
			want--
		}
		return cobra.ExactArgs(want)(c, given)
	}
	c.RunE = run
	return c
}

func (t *tool) override() *cobra.Command {
	var flags overriding
	var hash answer
	c := flags.command(&cobra.Command{
		Use:   "override POLICY CLIENT LIMITS",
		Short: "Replace the limits of a client for a time",
		Long: "Replace the limits of a client for a time, in every process within a second.\n" +
			"LIMITS are such as \"100/m burst 20\", \"unlimited\" or \"100/m, 4 in flight\".\n\n" + clientUsage,
		Example: `  ginlimit override login 203.0.113.7 100/h --for 2h --note "load test"
  ginlimit override login 203.0.113.7 --end`,
	}, 3, t.withOperator(func(ctx context.Context, s *session, args []string) error {
		info, err := s.find(ctx, args[0])
		if err != nil && !flags.end { // what ends may be of a policy that has gone
			return err
		}
		client, err := s.Client(info, args[1], hash.of())
		if err != nil {
			return err
		}
		if err := operate.Overridable(info, client); err != nil {
			return err
		}
		return s.override(ctx, args[0], info, client, args[2:], flags)
	}))
	hash.flag(c.Flags())
	return c
}

func (t *tool) overrideAll() *cobra.Command {
	var flags overriding
	return flags.command(&cobra.Command{
		Use:   "override-all POLICY LIMITS",
		Short: "Replace the limits of all clients for a time",
		Long: "Replace the limits of a policy for all clients without an override of their own, for a time, in every\n" +
			"process within a second. LIMITS are such as \"100/m burst 20\", \"unlimited\" or \"100/m, 4 in flight\".",
		Example: `  ginlimit override-all search unlimited --until 2026-12-31T18:00:00Z
  ginlimit override-all search --end`,
	}, 2, t.withOperator(func(ctx context.Context, s *session, args []string) error {
		info, err := s.find(ctx, args[0])
		if err != nil && !flags.end {
			return err
		}
		return s.override(ctx, args[0], info, operate.Client{}, args[1:], flags)
	}))
}

// override makes or ends the override of a client, or of all if it is the zero client. The info may be empty if it ends.
func (s *session) override(
	ctx context.Context, policy string, info ginlimit.PolicyInfo, of operate.Client, limits []string, flags overriding,
) (err error) {
	o := ginlimit.Override{Policy: policy, Note: flags.note}
	o.Client = s.Stored(policy, of)
	question, done := "", "done: "
	if flags.end {
		if flags.at != "" || flags.span != "" || flags.note != "" {
			return usage("--end takes no time or note")
		}
		ended, err := s.inForce(ctx, o, of)
		if err != nil {
			return err
		}
		text := "what cannot be read"
		if ended.Limits != nil {
			text = operate.OverrideText(ended)
		}
		question = fmt.Sprintf("End the override of policy %s for %s: %s", word(policy), whom(of.Key), text)
		done += "ended " + text
	} else {
		if strings.Contains(limits[0], "://") { // it may have a comma too
			return usage("%q has no limits such as 100/m", limits[0])
		}
		if o.Limits, err = operate.ParseLimits(strings.Split(limits[0], ",")); err != nil {
			return err
		}
		if o.Until, err = until(flags.at, flags.span); err != nil {
			return err
		}
		if question, err = s.overrideQuestion(ctx, o, info, of); err != nil {
			return err
		}
		done += operate.OverrideText(o)
	}
	if text := s.Afterwards(ctx, s.Overridden(ctx, info, of), o.Limits, o.Until); text != "" {
		fmt.Fprintln(s.tool.errs, "ginlimit:", text)
	}
	if err := s.tool.confirm(ctx, question); err != nil {
		return err
	}
	if err := s.Change(ctx, o); err != nil {
		return err
	}
	o.Client = of.Key
	return s.tool.print(operate.WrittenOf(o), func(w io.Writer) { row(w, done) })
}

// overrideQuestion returns what to ask before an override is made, or what is wrong with it.
func (s *session) overrideQuestion(
	ctx context.Context, o ginlimit.Override, info ginlimit.PolicyInfo, of operate.Client,
) (string, error) {
	if err := s.Check(ctx, o); err != nil {
		return "", err
	}
	replaced, err := s.Replaces(ctx, info, of, o.Limits)
	if replaced.LeftOut != "" {
		fmt.Fprintln(s.tool.errs, "ginlimit:", replaced.LeftOut)
	}
	kept := ""
	if replaced.Kept != "" {
		kept = "; " + replaced.Kept + " stay"
	}
	denies := ""
	switch {
	case !operate.Prohibits(o.Limits):
	case o.Client == "":
		denies = ", which denies everybody without an override of their own"
	default:
		denies = ", which denies it everything"
	}
	return fmt.Sprintf("Override policy %s for %s%s: %s, instead of %s%s", word(o.Policy), whom(of.Key), denies,
		operate.OverrideText(o), replaced.Of, kept), err
}

// inForce returns the override that is to end, without limits if it cannot be read.
func (s *session) inForce(ctx context.Context, o ginlimit.Override, of operate.Client) (ginlimit.Override, error) {
	all, err := s.Overrides(ctx)
	if err != nil {
		return o, err
	}
	isOf := func(client string) func(operate.Listed) bool {
		return func(other operate.Listed) bool { return other.Policy == o.Policy && other.Client == client }
	}
	switch i := slices.IndexFunc(all, isOf(o.Client)); {
	case i >= 0:
		if read, err := s.Read(all[i]); err == nil {
			o = read[0]
		}
		return o, nil
	case slices.ContainsFunc(all, isOf("")):
		return o, fmt.Errorf("policy %s has no override for %s; one for all clients ends by override-all", word(o.Policy),
			whom(of.Key))
	}
	return o, fmt.Errorf("policy %s has no override for %s", word(o.Policy), whom(of.Key))
}

func (t *tool) overrides() *cobra.Command {
	return &cobra.Command{
		Use:   "overrides [POLICY]",
		Short: "List the overrides in force",
		Long:  "List the overrides in force. What --json prints is a file for apply.",
		Args:  cobra.MaximumNArgs(1),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			policy := ""
			if len(args) > 0 {
				policy = args[0]
			}
			all, err := s.OfPolicy(ctx, policy)
			if err != nil {
				return err
			}
			slices.SortFunc(all, operate.Listed.Compare)
			list, err := s.File(ctx, all...)
			if err != nil {
				return err
			}
			if policy != "" && len(list) == 0 {
				if _, err := s.Variants(ctx, policy); err != nil { // it has none
					return err
				}
			}
			served, err := s.Policies(ctx)
			if err != nil {
				return err
			}
			return t.print(list, func(w io.Writer) {
				row(w, "POLICY", "CLIENT", "LIMITS", "UNTIL", "NOTE")
				for _, o := range list {
					client := "(all)"
					if o.Client != "" {
						client = word(o.Client)
					}
					row(w, word(o.Policy), client, operate.LimitsText(o.Limits, nil)+
						operate.Below(served, ginlimit.Override{Policy: o.Policy, Limits: o.Limits}),
						o.Until.Format(time.RFC3339), o.Note)
				}
			})
		}),
	}
}

// until returns the end of an override, which one of two flags says.
func until(at, span string) (time.Time, error) {
	if (at == "") == (span == "") {
		return time.Time{}, usage("give one of --until and --for")
	}
	end, err := operate.ParseUntil(at, span)
	if err != nil && span != "" {
		err = usage("%w; --until takes a time such as 2026-12-31T18:00:00Z", err)
	}
	return end, err
}
