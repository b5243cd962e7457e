package main

import (
	"context"
	"io"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/contrib/top"
)

// denied is a client in the output of top.
type denied struct {
	Client  string `json:"client"`
	Hashed  bool   `json:"hashed,omitempty"`
	Denials int64  `json:"denials"`
	Error   int64  `json:"error"`
}

// argument returns the client as other commands take it.
func (d denied) argument() string {
	switch {
	case d.Hashed:
		return word(d.Client) + " --hash"
	case operate.ReadsAsHash(d.Client):
		return word(d.Client) + " --hash=false"
	}
	return word(d.Client)
}

func (t *tool) top() *cobra.Command {
	most := 20
	c := &cobra.Command{
		Use:   "top POLICY",
		Short: "List the clients that a policy has denied most in the last ten minutes",
		Long: "List the clients that a policy has denied most in the last ten minutes.\n\n" +
			"The application has to report them, by contrib/top. A client had DENIALS denials, or up to ERROR fewer.\n" +
			"CLIENT can be given to status, block, reset and slots as it is here, with --hash.",
		Args: cobra.ExactArgs(1),
		RunE: t.withOperator(func(ctx context.Context, s *session, args []string) error {
			if most < 1 {
				return usage("--number %d: want at least 1", most)
			}
			clients, err := top.Denied(ctx, s.rdb, t.prefix, args[0])
			if err != nil {
				return err
			}
			if len(clients) == 0 {
				if _, err := s.Variants(ctx, args[0]); err != nil { // nobody can be denied
					return err
				}
			}
			list := []denied{}
			for _, c := range clients[:min(len(clients), most)] {
				list = append(list, denied{c.Key, c.Hashed, c.Denials, c.Error})
			}
			return t.print(list, func(w io.Writer) {
				if len(list) == 0 {
					row(w, "no denials are reported; does the application use contrib/top?")
					return
				}
				row(w, "CLIENT", "DENIALS", "ERROR")
				for _, c := range list {
					row(w, c.argument(), c.Denials, c.Error)
				}
			})
		}),
	}
	c.Flags().IntVarP(&most, "number", "n", most, "how many clients, at most 100")
	return c
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
