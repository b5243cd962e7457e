package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// published is a policy in the output of policies.
type published struct {
	Policy    string           `json:"policy"`
	Limits    []ginlimit.Limit `json:"limits"`
	Handler   bool             `json:"handler"`
	Key       string           `json:"key"` // of requests; "" without a handler
	Options   []string         `json:"options"`
	Floor     int              `json:"floor,omitempty"`
	Lease     float64          `json:"lease,omitempty"` // seconds
	Version   string           `json:"version,omitempty"`
	Processes int              `json:"processes"`
	Seen      time.Time        `json:"seen"`
	Override  *operate.Written `json:"override,omitempty"` // for all clients
}

func (t *tool) policies() *cobra.Command {
	return &cobra.Command{
		Use:   "policies",
		Short: "List the policies that processes of the prefix serve",
		Long: "List the policies that processes of the prefix serve, each variant apart, as during a rollout.\n\n" +
			"A policy is listed within a second of its first decision, and for three minutes after its last process:\n" +
			"SEEN is when a process last said that it serves it. \"now\" are the limits of an override for all clients.\n" +
			"VERSION is of the application's build. Without version control, set it by\n" +
			"go build -ldflags \"-X github.com/ginlimit/ginlimit.version=1.4.2\".",
		Args: cobra.NoArgs,
		RunE: t.withOperator(func(ctx context.Context, s *session, _ []string) error {
			all, err := s.Policies(ctx)
			if err != nil {
				return err
			}
			if names := operate.Differing(all); len(names) > 0 {
				fmt.Fprintln(t.errs, "ginlimit: processes have different limits or options of", listed(names))
			}
			overridden := s.overridden(ctx)
			list := []published{}
			for _, p := range all {
				list = append(list, published{p.Name, append([]ginlimit.Limit{}, p.Limits...), p.Handler, p.Key,
					append([]string{}, p.Options...), p.Floor, p.Lease.Seconds(), p.Version, p.Processes, p.Seen,
					overridden[p.Name]})
			}
			return t.print(list, func(w io.Writer) {
				if len(list) == 0 {
					row(w, s.Nothing()+hints[operate.NeedsPrefix])
					return
				}
				row(w, "POLICY", "LIMITS", "KEY", "OPTIONS", "VERSION", "PROCESSES", "SEEN")
				for _, p := range all {
					limits := operate.LimitsText(p.Limits, p.Options)
					if o := overridden[p.Name]; o != nil {
						limits += "; now " + operate.LimitsText(o.Limits, nil)
					}
					row(w, word(p.Name), limits, operate.KeyText(p), operate.OptionsText(p), p.Version, p.Processes,
						operate.Span(time.Since(p.Seen).Truncate(time.Second))+" ago")
				}
			})
		}),
	}
}

// overridden returns the overrides for all clients by policy. Policies are shown without them, too.
func (s *session) overridden(ctx context.Context) map[string]*operate.Written {
	listed, err := s.Overrides(ctx)
	all := []ginlimit.Override{}
	if err == nil {
		all, err = s.Read(slices.DeleteFunc(listed, func(o operate.Listed) bool { return o.Client != "" })...)
	}
	if err != nil {
		fmt.Fprintln(s.tool.errs, "ginlimit: the overrides cannot be read:", escaped(operate.ErrorText(err)))
	}
	found := map[string]*operate.Written{}
	for _, o := range all {
		w := operate.WrittenOf(o)
		found[o.Policy] = &w
	}
	return found
}

// session is an operator, and the flags of the tool.
type session struct {
	*operate.Operator
	tool *tool
	rdb  redis.UniversalClient
}

// withOperator is [tool.with] for a function that needs an operator.
func (t *tool) withOperator(
	f func(ctx context.Context, s *session, args []string) error,
) func(*cobra.Command, []string) error {
	return t.with(func(ctx context.Context, rdb redis.UniversalClient, args []string) error {
		secret, err := t.keySecret()
		if err != nil {
			return err
		}
		o, err := operate.New(rdb, operate.Config{Prefix: t.prefix, Secret: secret, Timeout: t.timeout, Hints: hints})
		if err != nil {
			return err
		}
		defer o.Close()
		return f(ctx, &session{o, t, rdb}, args)
	})
}

// keySecret returns the secret of keys, or nil.
func (t *tool) keySecret() ([]byte, error) {
	if t.secret == "" {
		if secret := t.env("GINLIMIT_KEY_SECRET"); secret != "" {
			return []byte(secret), nil
		}
		return nil, nil
	}
	secret, err := os.ReadFile(t.secret)
	if err != nil {
		return nil, usage("--key-secret-file: %w", fileError(err))
	}
	return bytes.TrimSuffix(secret, []byte("\n")), nil
}

// hints say by which flag an operator gives what is missing.
var hints = map[operate.Need]string{
	operate.NeedsLimits:   ": give them by --limit",
	operate.NeedsSecret:   ": give the secret by --key-secret-file, or a hash and --hash",
	operate.NeedsNoSecret: ": leave out --key-secret-file and $GINLIMIT_KEY_SECRET",
	operate.NeedsHash:     ": give --hash if top shows it so, or --hash=false",
	operate.NeedsTenant:   ": give --tenant",
	operate.NeedsNoHash:   ": --tenant needs the client, and no hash",
	operate.NeedsPrefix:   "; see --prefix, and ginlimit doctor",
}

// hinted returns an error with the flag that it lacks.
func hinted(err error) error {
	if of := (*operate.Fault)(nil); errors.As(err, &of) && hints[of.Need] != "" {
		return usage("%w%s", err, hints[of.Need])
	}
	return err
}

// find returns what is published of a policy: of the chosen variant that was seen last.
func (s *session) find(ctx context.Context, name string) (ginlimit.PolicyInfo, error) {
	info, variants, err := s.Find(ctx, name)
	if variants > 1 {
		fmt.Fprintf(s.tool.errs, "ginlimit: processes serve policy %s with %d different limits or options; "+
			"this is about the last seen\n", word(name), variants)
	}
	return info, err
}

// target is a client under a policy.
type target struct{ operate.Target }

// String returns the target as part of a sentence.
func (t target) String() string {
	text := whom(t.Client.Key) + " under policy " + word(t.Info.Name)
	if t.Tenant != "" {
		text = "tenant " + word(t.Tenant) + " of " + text
	}
	return text
}

// target finds a policy and a client. The limits are as given, else as an override or the policy has them.
func (s *session) target(
	ctx context.Context, name, text string, hash answer, limits []string,
) (to target, err error) {
	info, err := s.find(ctx, name)
	if err != nil {
		return to, err
	}
	client, err := s.Client(info, text, hash.of())
	if err != nil {
		return to, err
	}
	given, err := operate.ParseLimits(limits)
	if err != nil {
		return to, err
	}
	to.Target, err = s.Target(ctx, info, client, given)
	return to, err
}
