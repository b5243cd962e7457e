package main

import (
	"context"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/contrib/top"
)

// ranked is a client in the output of top.
type ranked struct {
	Client  string `json:"client"`
	Hashed  bool   `json:"hashed,omitempty"`
	Denials int64  `json:"denials,omitempty"`
	Tokens  int64  `json:"tokens,omitempty"`
	Error   int64  `json:"error"`
}

// argument returns the client as other commands take it.
func (d ranked) argument() string {
	switch {
	case d.Hashed:
		return word(d.Client) + " --hash"
	case operate.ReadsAsHash(d.Client):
		return word(d.Client) + " --hash=false"
	}
	return word(d.Client)
}

func (t *tool) top() *cobra.Command {
	most, used := 20, false
	c := &cobra.Command{
		Use:   "top POLICY",
		Short: "List the clients that a policy has denied most in the last ten minutes, or that use most",
		Long: "List the clients that a policy has denied most in the last ten minutes, or that use most.\n\n" +
			"The application has to report them, by contrib/top; for --used with its WithUsage. A client had DENIALS\n" +
			"denials, or up to ERROR fewer; it used TOKENS tokens, or up to ERROR fewer.\n" +
			"CLIENT can be given to status, block, reset and slots as it is here, with --hash; but tenants that share\n" +
			"a limit have no blocks, and a status by the client alone.",
		Args: cobra.MaximumNArgs(1),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			if most < 1 {
				return usage("--number %d: want at least 1", most)
			}
			if len(args) == 0 {
				return s.errNoPolicy(ctx)
			}
			read := top.Denied
			if used {
				read = top.Used
			}
			clients, err := read(ctx, s.rdb, t.prefix, args[0])
			if err != nil {
				return err
			}
			if len(clients) == 0 {
				if _, err := s.Variants(ctx, args[0]); err != nil { // it has no clients
					return err
				}
			}
			list := []ranked{}
			for _, c := range clients[:min(len(clients), most)] {
				list = append(list, ranked{c.Key, c.Hashed, c.Denials, c.Tokens, c.Error})
			}
			nothing := ""
			if len(list) == 0 {
				if nothing, err = s.nothingReported(ctx, args[0], used); err != nil {
					return err
				}
			}
			return t.print(list, func(w io.Writer) {
				if nothing != "" {
					row(w, nothing)
					return
				}
				printRanked(w, list, used)
			})
		}),
	}
	c.Flags().IntVarP(&most, "number", "n", most, "how many clients, at most 100")
	c.Flags().BoolVar(&used, "used", false, "by the tokens that they took, less what settlements gave back")
	return c
}

// errNoPolicy says which policies there are.
func (s *session) errNoPolicy(ctx context.Context) error {
	all, err := s.Policies(ctx)
	if err != nil {
		return usage("give a POLICY; which there are cannot be read: %w", err)
	}
	names := []string{}
	for _, p := range all {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return usage("give a POLICY; %s", s.Nothing())
	}
	return usage("give a POLICY: there are %s", listed(slices.Compact(names)))
}

// nothingReported says why there is no client: processes report that nobody was denied, or nothing.
func (s *session) nothingReported(ctx context.Context, policy string, used bool) (string, error) {
	if used {
		return "no process reports use of " + word(policy) + ": nobody has used it in the last ten minutes, or the " +
			"application has no contrib/top WithUsage", nil
	}
	minutes, err := top.Minutes(ctx, s.rdb, s.tool.prefix, policy)
	if len(minutes) > 0 {
		return "no denials in the last ten minutes, as contrib/top reports", nil
	}
	return "no process reports " + word(policy) + ": it has denied nobody in the last ten minutes, or the application " +
		"has no contrib/top", err
}

func printRanked(w io.Writer, list []ranked, used bool) {
	row(w, "CLIENT", map[bool]string{false: "DENIALS", true: "TOKENS"}[used], "ERROR")
	for _, c := range list {
		row(w, c.argument(), c.Denials+c.Tokens, c.Error) // one is 0
	}
}

// with returns what cobra runs, for a function that needs Redis.
func (t *tool) with(
	f func(ctx context.Context, rdb redis.UniversalClient, args []string) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		rdb, err := t.server.connect(t.env, t.timeout)
		if err != nil {
			return err
		}
		defer rdb.Close()
		return f(c.Context(), rdb, args)
	}
}
