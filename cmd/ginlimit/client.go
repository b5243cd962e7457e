package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

const limitUsage = "a limit of the client, such as \"100/m\", of a policy with limits of each client; may be repeated"

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
	Override *override         `json:"override"`
}

func (t *tool) status() *cobra.Command {
	var limits []string
	var tenant string
	var hash answer
	c := &cobra.Command{
		Use:   "status POLICY CLIENT",
		Short: "Show what a client has left, and whether it is denied",
		Long: "Show what a client has left, and whether it is denied. Exit code 3 says that it is.\n\n" +
			"An IPv6 address finds its /64 if the policy's key is ByClientIP.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err != nil {
				return err
			}
			switch shared := slices.Contains(to.info.Options, "WithShares"); {
			case shared && tenant == "":
				return usage("policy %q is shared by tenants: give --tenant", to.info.Name)
			case !shared && tenant != "":
				return usage("policy %q has no tenants", to.info.Name)
			case shared && to.client.hashed:
				return usage("policy %q is shared by tenants: --tenant needs the client, and no hash", to.info.Name)
			case shared:
				to.policy = to.policy.Share(tenant, 1)
			}
			results, err := to.policy.Status(ctx, to.client.key)
			if err != nil {
				return err
			}
			found := status{to.info.Name, to.client.key, true, results, isDryRun(to.info), to.override}
			for _, r := range results {
				found.Allowed = found.Allowed && r.Allowed
			}
			err = t.print(found, func(w io.Writer) { printStatus(w, found, to.hidden) })
			if err == nil && !found.Allowed && !found.DryRun {
				err = errDenied
			}
			return err
		}),
	}
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	c.Flags().StringVar(&tenant, "tenant", "", "tenant, of a policy with shares")
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
		row(w, r.Limit, r.Allowed, left, span(r.RetryAfter), span(r.ResetAfter), r.Cause)
	}
	if hidden {
		row(w, "in flight: what the client's own limits have, which only the application knows: give all by --limit")
	}
	if s.DryRun {
		row(w, "a dry run: nobody is denied")
	}
	if o := s.Override; o != nil {
		row(w, "override: "+o.text())
	}
}

func (t *tool) block() *cobra.Command {
	var limits []string
	var hash answer
	c := &cobra.Command{
		Use:   "block POLICY CLIENT DURATION",
		Short: "Deny a client everything for a time such as 15m or 7d",
		Long: "Deny a client everything for a time such as 15m or 7d, in every process at once. Only unblock ends it\n" +
			"earlier, or an override of another period.\n\n" + clientUsage,
		Args: cobra.ExactArgs(3),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			d, err := parseSpan(args[2])
			if err != nil {
				return err
			}
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err != nil {
				return err
			}
			if err := t.confirm(ctx, fmt.Sprintf("Block %s for %s", to, span(d))); err != nil {
				return err
			}
			err = to.change(func(p *ginlimit.Policy) error { return p.Block(ctx, to.client.key, d) })
			if err != nil {
				return err
			}
			return t.done("blocked", to)
		}),
	}
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	hash.flag(c.Flags())
	return c
}

func (t *tool) reset() *cobra.Command {
	var limits []string
	var hash answer
	c := &cobra.Command{
		Use:     "reset POLICY CLIENT",
		Aliases: []string{"unblock"},
		Short:   "End a client's block and ban, and fill its buckets",
		Long: "End a client's block and ban, and fill its buckets. Other processes may deny it for a second more.\n\n" +
			"It ends no override, and frees no slots: see override --end and slots.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			to, err := s.target(ctx, args[0], args[1], hash, limits)
			if err != nil {
				return err
			}
			if err := t.confirm(ctx, "Reset "+to.String()); err != nil {
				return err
			}
			err = to.change(func(p *ginlimit.Policy) error { return p.Reset(ctx, to.client.key) })
			if err != nil {
				return err
			}
			return t.done("reset", to)
		}),
	}
	c.Flags().StringArrayVar(&limits, "limit", nil, limitUsage)
	hash.flag(c.Flags())
	return c
}

// done says what was done to a client.
func (t *tool) done(what string, to target) error {
	return t.print(map[string]string{"done": what, "policy": to.info.Name, "client": to.client.key}, func(w io.Writer) {
		row(w, what+" "+to.String())
	})
}

// holder is a process in the output of slots.
type holder struct {
	Process string `json:"process"`
	Slots   int    `json:"slots"`
}

func (t *tool) slots() *cobra.Command {
	var hash answer
	c := &cobra.Command{
		Use:   "slots POLICY CLIENT",
		Short: "Show which processes hold a client's slots",
		Long: "Show which processes hold a client's slots, and how many: its requests in flight.\n\n" +
			"A process that has died holds them for 10 s.\n\n" + clientUsage,
		Args: cobra.ExactArgs(2),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			info, err := s.find(ctx, args[0])
			if err != nil {
				return err
			}
			client, err := t.client(info, args[1], hash)
			if err != nil {
				return err
			}
			key, err := t.slotsKey(info, client)
			if err != nil {
				return err
			}
			entries, err := s.rdb.HGetAll(ctx, key).Result()
			if err != nil {
				return err
			}
			ttl, err := s.rdb.PTTL(ctx, key).Result()
			if err != nil {
				return err
			}
			list := holders(entries, ttl)
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

// slotsKey returns the key of a client's slots.
func (t *tool) slotsKey(of ginlimit.PolicyInfo, c client) (string, error) {
	secret, err := t.keySecret()
	if err != nil {
		return "", err
	}
	keys, prefix := clientkey.NewText(secret), ginlimit.Key(of.Name, "")
	if c.hashed {
		keys = clientkey.Hashes()
	}
	if isDryRun(of) {
		prefix = ginlimit.Key(of.Name, "dry run", "")
	}
	key := "{" + string(keys.Append(nil, prefix, c.key)) + "}:slots"
	if t.prefix != "" {
		key = t.prefix + ":" + key
	}
	return key, nil
}

// holders reads a client's slots, with their TTL, by name. internal/wire/lua/slots.lua documents the entries.
func holders(entries map[string]string, ttl time.Duration) []holder {
	var now, known, held, all, until int64
	if _, err := fmt.Sscan(entries["all"], &now); err == nil { // until then the key lasts
		now -= ttl.Milliseconds()
	}
	delete(entries, "all")
	list := []holder{}
	for _, process := range slices.Sorted(maps.Keys(entries)) {
		_, err := fmt.Sscan(entries[process], &known, &held, &all, &until)
		if err == nil && all > 0 && until > now {
			list = append(list, holder{process, int(all)})
		}
	}
	return list
}
