package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit/contrib/top"
	"github.com/ginlimit/ginlimit/internal/clientkey"
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
	case clientkey.IsHash(d.Client):
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
			"CLIENT can be given to status, block, reset and slots as it is here, with --hash.",
		Args: cobra.ExactArgs(1),
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			if most < 1 {
				return usage("--number %d: want at least 1", most)
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
				if _, err := s.variants(ctx, args[0]); err != nil { // it has no clients
					return err
				}
			}
			list := []ranked{}
			for _, c := range clients[:min(len(clients), most)] {
				list = append(list, ranked{c.Key, c.Hashed, c.Denials, c.Tokens, c.Error})
			}
			return t.print(list, func(w io.Writer) { printRanked(w, list, used) })
		}),
	}
	c.Flags().IntVarP(&most, "number", "n", most, "how many clients, at most 100")
	c.Flags().BoolVar(&used, "used", false, "by the tokens that they took, less what settlements gave back")
	return c
}

func printRanked(w io.Writer, list []ranked, used bool) {
	what, number := "denials are", "DENIALS"
	if used {
		what, number = "use is", "TOKENS"
	}
	if len(list) == 0 {
		with := map[bool]string{true: " WithUsage"}[used]
		row(w, "no "+what+" reported; does the application use contrib/top"+with+"?")
		return
	}
	row(w, "CLIENT", number, "ERROR")
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

// rates are the decisions of a policy in a second.
type rates struct {
	Policy  string  `json:"policy"`
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	Skipped float64 `json:"skipped"`
	Failed  float64 `json:"failed"`
}

func (t *tool) watch() *cobra.Command {
	every, times := 10*time.Second, 0
	c := &cobra.Command{
		Use:   "watch [POLICY...]",
		Short: "Show how many decisions a second policies make, by outcome",
		Long: "Show how many decisions a second policies make, by outcome, until interrupted.\n\n" +
			"The application has to report them, by contrib/top; other outcomes than denied need its WithOutcomes.",
		RunE: t.withLimiter(func(ctx context.Context, s *session, args []string) error {
			if every < time.Second || every > time.Minute {
				return usage("--every %s: want 1s to 1m", every)
			}
			for _, name := range args {
				if _, err := s.variants(ctx, name); err != nil {
					return err
				}
			}
			if len(args) == 0 {
				all, err := served(ctx, s.Limiter)
				if err != nil {
					return err
				}
				for _, p := range all {
					args = append(args, p.Name)
				}
				if args = slices.Compact(args); len(args) == 0 {
					return usage("%s", s.nothing())
				}
			}
			return t.watching(ctx, s.rdb, args, every, times)
		}),
	}
	c.Flags().DurationVar(&every, "every", every, "time between two lines of a policy; reports come every 5 s")
	c.Flags().IntVar(&times, "times", times, "how often to print before the end; 0 is no end")
	return c
}

// watching prints rates until the context ends, or a number of times; 0 is without end.
func (t *tool) watching(
	ctx context.Context, rdb redis.UniversalClient, policies []string, every time.Duration, times int,
) error {
	before := map[string][]top.Minute{}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := time.Now()
	for n := 0; ; n++ {
		now, list := time.Now(), []rates{}
		for _, policy := range policies {
			all, err := top.Minutes(ctx, rdb, t.prefix, policy)
			if err != nil {
				return ended(ctx, err)
			}
			if n > 0 {
				list = append(list, ratesOf(policy, before[policy], all, now.Sub(last).Seconds()))
			}
			before[policy] = all
		}
		if last = now; n > 0 {
			if err := t.print(list, func(w io.Writer) { printRates(w, now, list) }); err != nil {
				return err
			}
		}
		if times > 0 && n == times {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ended returns the error, unless somebody has interrupted.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ratesOf returns how much was added to each minute, in a second.
func ratesOf(policy string, before, after []top.Minute, seconds float64) rates {
	old := map[int64]top.Minute{}
	for _, m := range before {
		old[m.Start.Unix()] = m
	}
	var sum top.Minute
	for _, m := range after {
		o := old[m.Start.Unix()]
		sum.Allowed, sum.Denied = sum.Allowed+m.Allowed-o.Allowed, sum.Denied+m.Denied-o.Denied
		sum.Skipped, sum.Failed = sum.Skipped+m.Skipped-o.Skipped, sum.Failed+m.Failed-o.Failed
	}
	rate := func(n int64) float64 { return float64(max(n, 0)) / seconds } // Redis may have lost what it had
	return rates{policy, rate(sum.Allowed), rate(sum.Denied), rate(sum.Skipped), rate(sum.Failed)}
}

func printRates(w io.Writer, now time.Time, list []rates) {
	row(w, now.Format(time.TimeOnly), "ALLOWED/S", "DENIED/S", "SKIPPED/S", "FAILED/S")
	for _, r := range list {
		cells := []any{word(r.Policy)}
		for _, n := range []float64{r.Allowed, r.Denied, r.Skipped, r.Failed} {
			cells = append(cells, fmt.Sprintf("%.1f", n))
		}
		row(w, cells...)
	}
}
