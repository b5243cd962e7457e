package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

const limitUsage = "a limit of the client, such as \"100/m\", of a policy with limits of each client; may be repeated"

const tenantUsage = "tenant, of a policy with shares"

// clientUsage is part of the help of commands that take a client.
const clientUsage = "CLIENT is as the policy's key function returns it or its methods take it, " +
	"or a hash and --hash, as\ntop shows it.\n" +
	"In scripts put flags before -- and CLIENT after it, as clients choose their names: --help may be one."

// status is the output of status.
type status struct {
	Policy   string            `json:"policy"`
	Client   string            `json:"client"`
	Allowed  bool              `json:"allowed"`
	Limits   []ginlimit.Result `json:"limits"`
	DryRun   bool              `json:"dry_run,omitempty"`
	Override *operate.Written  `json:"override"`

	Blocked *bool      `json:"blocked"` // null if Redis does not say it
	Until   *time.Time `json:"blocked_until,omitempty"`
	Hidden  *time.Time `json:"hidden_block_until,omitempty"` // by the override
	holds   operate.Holds
	unread  error // what Redis says instead of holds
}

// hold adds what denies the client whatever its limits have left.
func (s *status) hold(holds operate.Holds, err error) {
	if s.holds, s.unread = holds, err; err != nil {
		return
	}
	blocked := !holds.Block.IsZero()
	s.Blocked = &blocked
	if blocked {
		s.Until = &holds.Block
	}
	if !holds.Hidden.IsZero() {
		s.Hidden = &holds.Hidden
	}
}

func (t *tool) status() *cobra.Command {
	var limits []string
	var tenant string
	var hash answer
	c := &cobra.Command{
		Use:   "status POLICY CLIENT",
		Short: "Show what a client has left, and whether it is denied",
		Long: "Show what a client has left, and whether it is denied. Exit code 3 says that it is.\n\n" +
			"--json has blocked, blocked_until, and hidden_block_until if an override hides a block.\n\n" +
			"An IPv6 address finds its /64 if the policy's key is ByClientIP.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err != nil {
				return err
			}
			results, err := s.Status(ctx, to.Target, tenant)
			if err != nil {
				return err
			}
			found := status{Policy: to.Info.Name, Client: to.Client.Key, Allowed: true, Limits: results,
				DryRun: operate.IsDryRun(to.Info)}
			found.hold(s.Holds(ctx, to.Target))
			if to.Override != nil {
				found.Override = new(operate.Written)
				*found.Override = operate.WrittenOf(*to.Override)
			}
			for _, r := range results {
				found.Allowed = found.Allowed && r.Allowed
			}
			err = t.print(found, func(w io.Writer) { printStatus(w, found, to.Hidden) })
			if err == nil && !found.Allowed && !found.DryRun {
				err = errDenied
			}
			return err
		}),
	}
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	c.Flags().StringVar(&tenant, "tenant", "", tenantUsage)
	hash.flag(c.Flags())
	return c
}

func printStatus(w io.Writer, s status, hidden bool) {
	row(w, "LIMIT", "ALLOWED", "LEFT", "RETRY AFTER", "FULL AFTER", "CAUSE")
	for _, r := range s.Limits {
		left := strconv.Itoa(r.Remaining)
		if r.Limit == ginlimit.Unlimited() {
			left = "unlimited"
		}
		row(w, r.Limit, r.Allowed, left, operate.Span(r.RetryAfter), operate.Span(r.ResetAfter), r.Cause)
	}
	switch {
	case s.unread != nil:
		row(w, "whether it is blocked cannot be read: "+operate.ErrorText(s.unread))
	case s.Until != nil:
		row(w, "blocked until "+operate.TimeText(*s.Until)+": unblock ends it")
	case slices.ContainsFunc(s.Limits, operate.IsHeld):
		row(w, operate.OverdrawnText)
	}
	if hidden {
		row(w, "in flight: what the client's own limits have, which only the application knows: give all by --limit")
	}
	if s.DryRun {
		row(w, "a dry run: nobody is denied")
	}
	if o := s.Override; o != nil {
		whose := "override: "
		if o.All {
			whose = "override of all clients: "
		}
		row(w, whose+o.String())
	}
	if s.Hidden != nil {
		row(w, "the override hides a block until "+operate.TimeText(*s.Hidden))
	}
}

func (t *tool) block() *cobra.Command {
	var limits []string
	var hash answer
	c := &cobra.Command{
		Use:   "block POLICY CLIENT DURATION",
		Short: "Deny a client everything for a time such as 15m or 7d",
		Long: "Deny a client everything for a time such as 15m or 7d, in every process at once. Only unblock ends it\n" +
			"earlier. A later override of another period suspends it, and override --end brings it back.\n\n" +
			"Nothing lists blocks: status shows one, and top who was denied.\n\n" + clientUsage,
		Args: cobra.ExactArgs(3),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			d, err := operate.ParseSpan(args[2])
			if err != nil {
				return err
			}
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err == nil {
				err = s.CheckBlock(to.Target, d)
			}
			if err != nil {
				return err
			}
			if err := t.confirm(ctx, fmt.Sprintf("Block %s for %s", to, operate.Span(d))); err != nil {
				return err
			}
			if err := to.Block(ctx, d); err != nil {
				return err
			}
			return t.done("blocked", to, "")
		}),
	}
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	hash.flag(c.Flags())
	return c
}

func (t *tool) reset() *cobra.Command {
	var limits []string
	var tenant string
	var hash answer
	c := &cobra.Command{
		Use:     "reset POLICY CLIENT",
		Aliases: []string{"unblock"},
		Short:   "End a client's block and ban, and fill its buckets",
		Long: "End a client's block and ban, and fill its buckets. Processes may deny it for a second more.\n\n" +
			"It ends no override, and frees no slots: see override --end and slots. Of a policy with shares it is of\n" +
			"all tenants without --tenant.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err == nil {
				to.Target, err = to.Of(tenant)
			}
			if err != nil {
				return err
			}
			found, _ := s.Found(ctx, to.Target)
			if err := t.confirm(ctx, "Reset "+to.String()+found+" and fill its buckets"); err != nil {
				return err
			}
			if err := to.Reset(ctx); err != nil {
				return err
			}
			return t.done("reset", to, strings.TrimSuffix(found, ","))
		}),
	}
	c.Flags().StringVar(&tenant, "tenant", "", tenantUsage)
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	hash.flag(c.Flags())
	return c
}

// done says what was done to a client, and what was found before.
func (t *tool) done(what string, to target, found string) error {
	fields := map[string]string{"done": what, "policy": to.Info.Name, "client": to.Client.Key}
	if found != "" {
		fields["found"] = strings.TrimPrefix(found, ", found ")
	}
	return t.print(fields, func(w io.Writer) { row(w, what+" "+to.String()+found) })
}

func (t *tool) slots() *cobra.Command {
	var hash answer
	c := &cobra.Command{
		Use:   "slots POLICY CLIENT",
		Short: "Show which processes hold a client's slots",
		Long: "Show which processes hold a client's slots, and how many: its requests in flight.\n\n" +
			"A process that has died holds them for 10 s.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			info, err := s.find(ctx, args[0])
			if err != nil {
				return err
			}
			client, err := s.Client(info, args[1], hash.of())
			if err != nil {
				return err
			}
			list, err := s.Slots(ctx, info, client)
			if err != nil {
				return err
			}
			return t.print(list, func(w io.Writer) {
				row(w, "PROCESS", "SLOTS")
				for _, h := range list {
					row(w, word(h.Process), h.Slots)
				}
			})
		}),
	}
	hash.flag(c.Flags())
	return c
}
