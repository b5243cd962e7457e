package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/traits"
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
}

func (t *tool) policies() *cobra.Command {
	return &cobra.Command{
		Use:   "policies",
		Short: "List the policies that processes of the prefix serve",
		Long: "List the policies that processes of the prefix serve, each variant apart, as during a rollout.\n\n" +
			"A policy is listed within a second of its first decision, and for three minutes after its last process.\n" +
			"VERSION is of the application's build. Without version control, set it by\n" +
			"go build -ldflags \"-X github.com/ginlimit/ginlimit.version=1.4.2\".",
		Args: cobra.NoArgs,
		RunE: t.withLimiter(func(ctx context.Context, s *session, _ []string) error {
			all, err := served(ctx, s.Limiter)
			if err != nil {
				return err
			}
			list := []published{}
			for _, p := range all {
				list = append(list, published{p.Name, append([]ginlimit.Limit{}, p.Limits...), p.Handler, p.Key,
					append([]string{}, p.Options...), p.Floor, p.Lease.Seconds(), p.Version, p.Processes, p.Seen})
			}
			return t.print(list, func(w io.Writer) {
				if len(list) == 0 {
					row(w, s.nothing())
					return
				}
				row(w, "POLICY", "LIMITS", "KEY", "OPTIONS", "VERSION", "PROCESSES", "SEEN")
				for _, p := range all {
					key := p.Key
					if !p.Handler {
						key = "(methods)"
					}
					row(w, word(p.Name), limitsText(p.Limits, p.Options), key, optionsText(p),
						p.Version, p.Processes, span(time.Since(p.Seen).Truncate(time.Second))+" ago")
				}
			})
		}),
	}
}

// optionsText returns options for people, with what they keep.
func optionsText(p ginlimit.PolicyInfo) string {
	options := slices.Clone(p.Options)
	for i, name := range options {
		switch {
		case name == "WithFloor":
			options[i] = fmt.Sprintf("WithFloor(%d)", p.Floor)
		case name == "WithLease":
			options[i] = fmt.Sprintf("WithLease(%s)", p.Lease)
		}
	}
	return strings.Join(options, " ")
}

// limitsText returns limits for people. Limits by a function are not known.
func limitsText(limits []ginlimit.Limit, options []string) string {
	var texts []string
	for _, l := range limits {
		texts = append(texts, l.String())
	}
	if slices.Contains(options, "WithLimitFunc") {
		texts = append(texts, "of each client")
	}
	if texts == nil {
		return "of a time zone that is not known here"
	}
	return strings.Join(texts, ", ")
}

// dryRun is the option of a policy that only tries its limits.
const dryRun = "WithDryRun"

// session is a limiter of the application's prefix.
type session struct {
	*ginlimit.Limiter
	tool   *tool
	rdb    redis.UniversalClient
	others []*ginlimit.Limiter // of policies
}

// withLimiter is [tool.with] for a function that needs a limiter.
func (t *tool) withLimiter(
	f func(ctx context.Context, s *session, args []string) error,
) func(*cobra.Command, []string) error {
	return t.with(func(ctx context.Context, rdb redis.UniversalClient, args []string) error {
		if _, err := t.keySecret(); err != nil {
			return err
		}
		limiter, err := t.limiter(rdb)
		if err != nil {
			return err
		}
		s := &session{Limiter: limiter, tool: t, rdb: rdb}
		defer func() {
			for _, l := range append(s.others, limiter) {
				_ = l.Close()
			}
		}()
		return f(ctx, s, args)
	})
}

// nothing says why there may be no policies.
func (s *session) nothing() string {
	return fmt.Sprintf("no process has served a policy under the prefix %s in the last minutes; "+
		"see --prefix, and ginlimit doctor", s.tool.shownPrefix())
}

// shownPrefix returns the prefix as the output has it: it may be a URL that was meant for --redis.
func (t *tool) shownPrefix() string {
	if withoutSecrets(t.prefix) != t.prefix {
		return notShown
	}
	return strconv.Quote(t.prefix)
}

// served returns the policies that are published, but not what a slow doctor published.
func served(ctx context.Context, limiter *ginlimit.Limiter) ([]ginlimit.PolicyInfo, error) {
	all, err := limiter.Policies(ctx)
	return slices.DeleteFunc(all, func(p ginlimit.PolicyInfo) bool { return strings.HasPrefix(p.Name, own) }), err
}

// variants returns what is published of a policy, at least once.
func (s *session) variants(ctx context.Context, name string) (found []ginlimit.PolicyInfo, err error) {
	all, err := served(ctx, s.Limiter)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		if p.Name == name {
			found = append(found, p)
		}
		names = append(names, word(p.Name))
	}
	switch {
	case len(all) == 0:
		return nil, usage("%s", s.nothing())
	case len(found) == 0:
		return nil, usage("no process serves a policy %q; there are %s", name, strings.Join(slices.Compact(names), ", "))
	}
	return found, nil
}

// find returns what is published of a policy: of the chosen variant that was seen last.
func (s *session) find(ctx context.Context, name string) (ginlimit.PolicyInfo, error) {
	found, err := s.variants(ctx, name)
	if err != nil {
		return ginlimit.PolicyInfo{}, err
	}
	if found = chosen(found); len(found) > 1 {
		fmt.Fprintf(s.tool.errs, "ginlimit: processes serve %d variants of policy %q; this is about the last seen\n",
			len(found), name)
	}
	return lastSeen(found), nil
}

// chosen returns the variants of a policy that the tool is about: rather those that are no dry run, and of these those
// that a handler serves.
func chosen(all []ginlimit.PolicyInfo) []ginlimit.PolicyInfo {
	for _, isOther := range []func(ginlimit.PolicyInfo) bool{isDryRun, isOfMethods} {
		if some := slices.DeleteFunc(slices.Clone(all), isOther); len(some) > 0 {
			all = some
		}
	}
	return all
}

func lastSeen(all []ginlimit.PolicyInfo) ginlimit.PolicyInfo {
	return slices.MaxFunc(all, func(a, b ginlimit.PolicyInfo) int { return a.Seen.Compare(b.Seen) })
}

// checkSecret reports that clients of a policy have other keys than with the tool's secret.
func (t *tool) checkSecret(of ginlimit.PolicyInfo) error {
	secret, err := t.keySecret()
	switch has := hasSecret(of); {
	case err != nil:
		return err
	case has && secret == nil:
		return usage("policy %q has a WithKeySecret: give the secret by --key-secret-file, or a hash and --hash", of.Name)
	case !has && secret != nil:
		return usage("policy %q has no WithKeySecret: leave out --key-secret-file and $GINLIMIT_KEY_SECRET", of.Name)
	}
	return nil
}

func isDryRun(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, dryRun) }

func isOfMethods(p ginlimit.PolicyInfo) bool { return !p.Handler }

// target is a client under a policy.
type target struct {
	info     ginlimit.PolicyInfo
	policy   *ginlimit.Policy
	client   client
	override *override        // that holds for the client, or nil
	replaced *ginlimit.Policy // with the limits that the override replaces, or nil
	hidden   bool             // it may have slots that only the application knows
}

// String returns the target as part of a sentence.
func (t target) String() string {
	return whom(t.client.key) + " under policy " + word(t.info.Name)
}

// target finds a policy and a client. The limits are as given, else as an override or the policy has them.
func (s *session) target(
	ctx context.Context, name, text string, hash answer, limits []string,
) (to target, err error) {
	if to.info, err = s.find(ctx, name); err != nil {
		return to, err
	}
	if to.client, err = s.tool.client(to.info, text, hash); err != nil {
		return to, err
	}
	if to.override, err = s.overrideOf(ctx, to); err != nil {
		return to, err
	}
	own := to.info.Limits
	known := !slices.Contains(to.info.Options, "WithLimitFunc")
	if o := to.override; o != nil {
		to.hidden = !known && len(limits) == 0 && !slices.ContainsFunc(o.Limits, isInFlight)
		own, known = slices.Clone(o.Limits), true
		if !slices.ContainsFunc(own, isInFlight) {
			own = append(own, slices.DeleteFunc(slices.Clone(to.info.Limits), isNotInFlight)...)
		}
	}
	if len(limits) > 0 {
		if own, err = parseLimits(limits); err != nil {
			return to, err
		}
		known = true
	}
	switch {
	case !known:
		return to, usage("policy %q has limits of each client, which only the application knows: give them by --limit",
			name)
	case len(own) == 0:
		return to, usage("policy %q has limits of a time zone that is not known here: give them by --limit", name)
	}
	if to.override != nil && len(limits) == 0 && slices.ContainsFunc(to.info.Limits, hasBucket) {
		if to.replaced, err = s.policy(to, to.info.Limits); err != nil {
			return to, err
		}
	}
	to.policy, err = s.policy(to, own)
	return to, err
}

// change makes a change that outlasts an override: also to the limits that it replaces, if they have a bucket.
func (t target) change(do func(*ginlimit.Policy) error) error {
	err := do(t.policy)
	if err == nil && t.replaced != nil {
		err = do(t.replaced)
	}
	return err
}

// policy returns a target's policy with limits as a function returns them, and with the options that add keys of a
// client or keep tokens. Some are defaults of a limiter, as they may be in the application: those that do not fit the
// limits have no effect.
func (s *session) policy(to target, limits []ginlimit.Limit) (*ginlimit.Policy, error) {
	var defaults []ginlimit.LimiterOption
	switch secret, err := s.tool.keySecret(); {
	case to.client.hashed:
	case err != nil:
		return nil, err
	case secret != nil:
		defaults = append(defaults, ginlimit.WithKeySecret(secret))
	}
	opts := []ginlimit.PolicyOption{ginlimit.WithFloor(to.info.Floor), ginlimit.WithLimitFunc(
		func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })}
	for _, name := range to.info.Options {
		switch name {
		case "WithBan":
			defaults = append(defaults, ginlimit.WithBan(time.Minute, time.Minute))
		case "WithLease":
			defaults = append(defaults, ginlimit.WithLease(to.info.Lease))
		case dryRun: // which counts under keys of its own
			opts = append(opts, ginlimit.WithDryRun())
		case "WithShares":
			opts = append(opts, ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 }))
		}
	}
	limiter, err := s.tool.limiter(s.rdb, defaults...)
	if err != nil {
		return nil, err
	}
	if to.client.hashed {
		limiter.TakeHashes(traits.Key{})
	}
	s.others = append(s.others, limiter)
	return limiter.Policy(to.info.Name, opts...)
}

func isInFlight(l ginlimit.Limit) bool { return l.InFlight > 0 }

func hasBucket(l ginlimit.Limit) bool { return l.Rate > 0 }

func isNotInFlight(l ginlimit.Limit) bool { return l.InFlight == 0 }

// parseLimits reads limits, and returns all errors in them.
func parseLimits(texts []string) (limits []ginlimit.Limit, err error) {
	for _, text := range texts {
		limit, fault := ginlimit.ParseLimit(text)
		if fault != nil && err == nil {
			err = usageError{fault}
		} else if fault != nil {
			err = usage("%w\n%w", err, fault)
		}
		limits = append(limits, limit)
	}
	return limits, err
}
