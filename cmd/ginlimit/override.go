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
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// override is an override in output.
type override struct {
	Policy string           `json:"policy"`
	Client string           `json:"client,omitempty"`
	Limits []ginlimit.Limit `json:"limits"`
	Until  time.Time        `json:"until"`
	Note   string           `json:"note,omitempty"`
}

func outputOf(o ginlimit.Override) override {
	return override{o.Policy, o.Client, o.Limits, o.Until.Truncate(time.Second), o.Note}
}

// text returns what the override says, for people.
func (o override) text() string {
	text := limitsText(o.Limits, nil) + " until " + o.Until.Format(time.RFC3339)
	if o.Note != "" {
		text += " (" + visible(o.Note) + ")"
	}
	return text
}

// whom returns the client of an override, as part of a sentence.
func whom(client string) string {
	if client == "" {
		return "all clients"
	}
	return "client " + visible(client)
}

// overrideOf returns the override that holds for a client, or nil.
func (s *session) overrideOf(ctx context.Context, to target) (*override, error) {
	all, err := s.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	client, err := s.tool.hidden(to.info.Name, to.client)
	if err != nil {
		return nil, err
	}
	var found *override
	for _, o := range all { // that for all clients before those for one
		if o.Policy == to.info.Name && (o.Client == client || o.Client == "") {
			of := outputOf(o)
			found = &of
		}
	}
	return found, nil
}

// isOverridden reports whether there is an override of a policy for just this client, or for all.
func (s *session) isOverridden(ctx context.Context, policy, client string) (bool, error) {
	all, err := s.Overrides(ctx)
	if err != nil {
		return false, err
	}
	client, err = s.tool.hidden(policy, client)
	return slices.ContainsFunc(all, func(o ginlimit.Override) bool {
		return o.Policy == policy && o.Client == client
	}), err
}

// hidden returns a client as overrides have it: with a secret, an HMAC.
func (t *tool) hidden(policy, client string) (string, error) {
	secret, err := t.keySecret()
	if err != nil || secret == nil || client == "" {
		return client, err
	}
	return string(clientkey.NewText(secret).Append(nil, ginlimit.Key(policy, ""), client)), nil
}

func (t *tool) override() *cobra.Command {
	var at, span, note string
	var end bool
	c := &cobra.Command{
		Use:   "override POLICY [CLIENT] LIMIT...",
		Short: "Replace the limits of a policy for a time, for one client or for all",
		Long: "Replace the limits of a policy for a time, for one client or for all, in every process within a second.\n\n" +
			"The second argument is the client, unless it reads as a limit, such as \"100/m burst 20\" or \"unlimited\".",
		Example: `  ginlimit override login 203.0.113.7 100/h --for 2h --note "load test"
  ginlimit override search unlimited --until 2026-12-31T18:00:00Z
  ginlimit override login 203.0.113.7 --end`,
		Args: cobra.MinimumNArgs(1),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			o := ginlimit.Override{Policy: args[0], Note: note}
			args = args[1:]
			info, err := s.find(ctx, o.Policy)
			if err != nil && !end { // what ends may be of a policy that has gone
				return err
			}
			if len(args) > 0 {
				if _, err := ginlimit.ParseLimit(args[0]); err != nil {
					if o.Client, err = clientKey(info, args[0]); err != nil {
						return err
					}
					args = args[1:]
				}
			}
			question := fmt.Sprintf("End the override of policy %s for %s", visible(o.Policy), whom(o.Client))
			switch {
			case end && (len(args) > 0 || at != "" || span != "" || note != ""):
				return usage("--end takes no limits, time or note")
			case !end:
				if o.Limits, err = parseLimits(args); err != nil {
					return err
				}
				if len(args) == 0 {
					return usage("no limits; --end ends an override")
				}
				if o.Until, err = until(at, span); err != nil {
					return err
				}
				question = fmt.Sprintf("Override policy %s for %s: %s", visible(o.Policy), whom(o.Client), outputOf(o).text())
			}
			if end {
				is, err := s.isOverridden(ctx, o.Policy, o.Client)
				if err != nil {
					return err
				}
				if !is {
					fmt.Fprintf(t.errs, "ginlimit: policy %s has no override for %s\n", visible(o.Policy), whom(o.Client))
				}
			}
			if err := t.confirm(ctx, question); err != nil {
				return err
			}
			if err := s.Override(ctx, o); err != nil {
				return err
			}
			return t.print(outputOf(o), func(w io.Writer) { row(w, "done") })
		}),
	}
	c.Flags().StringVar(&at, "until", "", "when it ends, such as 2026-12-31T18:00:00Z")
	c.Flags().StringVar(&span, "for", "", "how long it lasts, such as 2h or 7d")
	c.Flags().StringVar(&note, "note", "", "why, for people")
	c.Flags().BoolVar(&end, "end", false, "end the override")
	return c
}

func (t *tool) overrides() *cobra.Command {
	return &cobra.Command{
		Use:   "overrides [POLICY]",
		Short: "List the overrides in force",
		Args:  cobra.MaximumNArgs(1),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			all, err := s.Overrides(ctx)
			if err != nil {
				return err
			}
			list := []override{}
			for _, o := range all {
				if len(args) == 0 || o.Policy == args[0] {
					list = append(list, outputOf(o))
				}
			}
			return t.print(list, func(w io.Writer) {
				row(w, "POLICY", "CLIENT", "LIMITS", "UNTIL", "NOTE")
				for _, o := range list {
					client := "(all)"
					if o.Client != "" {
						client = visible(o.Client)
					}
					row(w, visible(o.Policy), client, limitsText(o.Limits, nil), o.Until.Format(time.RFC3339),
						strings.Trim(visible(o.Note), `"`))
				}
			})
		}),
	}
}
