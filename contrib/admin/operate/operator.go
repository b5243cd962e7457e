// Package operate is what ginlimit's tool and its page have in common: what operators see and change of limits in
// Redis, and what is wrong with it. It is for these two, and changes with them.
package operate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/overrides"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Config is what an [Operator] is made of.
type Config struct {
	Prefix  string          // of the application's keys
	Secret  []byte          // of its WithKeySecret, or nil
	Timeout time.Duration   // for Redis
	Hints   map[Need]string // what to do, by what an entry of a file lacks
}

// Operator looks at the limits of a prefix, and changes them. It counts as no process, decides nothing without Redis
// and remembers no denial. One serves one command or page: it reads policies once, and overrides once until it changes
// some: all of thousands are listed, and few are read.
type Operator struct {
	Config
	rdb       redis.UniversalClient
	limiters  []*ginlimit.Limiter // the first is without a policy
	policies  []ginlimit.PolicyInfo
	overrides []Listed
}

// Listed is an override in force, by the policy, the client as Redis has it, and its end.
type Listed = overrides.Entry

// unshared is a client whose limiters share nothing in the process with those of the application: a client of another
// type counts as another server.
type unshared struct{ redis.UniversalClient }

// New returns an operator. It reaches nobody yet.
func New(rdb redis.UniversalClient, c Config) (*Operator, error) {
	o := &Operator{Config: c, rdb: rdb}
	_, err := o.limiter()
	return o, err
}

// Close ends what the operator has in the background.
func (o *Operator) Close() {
	for _, l := range o.limiters {
		_ = l.Close()
	}
}

// limiter returns a limiter of the prefix. Overrides are read and written with clients as Redis has them: what needs
// other keys gets its secret by an option.
func (o *Operator) limiter(opts ...ginlimit.LimiterOption) (*ginlimit.Limiter, error) {
	rdb := o.rdb
	if _, ok := rdb.(*redis.Client); ok {
		rdb = unshared{rdb}
	}
	l, err := ginlimit.NewLimiter(rdb, append(opts, ginlimit.WithPrefix(o.Prefix), ginlimit.WithTimeout(o.Timeout),
		ginlimit.WithReplicas(1), ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0),
		ginlimit.WithoutOverrides(), ginlimit.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err == nil {
		o.limiters = append(o.limiters, l)
	}
	return l, err
}

// Policies returns the policies that processes serve, but not what a slow doctor published.
func (o *Operator) Policies(ctx context.Context) ([]ginlimit.PolicyInfo, error) {
	if o.policies != nil {
		return o.policies, nil
	}
	all, err := o.limiters[0].Policies(ctx)
	if err != nil {
		return nil, err
	}
	o.policies = slices.DeleteFunc(all, func(p ginlimit.PolicyInfo) bool { return strings.HasPrefix(p.Name, own) })
	return o.policies, nil
}

// Variants returns what is published of a policy, at least once.
func (o *Operator) Variants(ctx context.Context, name string) (found []ginlimit.PolicyInfo, err error) {
	all, err := o.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		if p.Name == name {
			found = append(found, p)
		}
		names = append(names, p.Name)
	}
	switch {
	case len(all) == 0:
		return nil, needs(NeedsPrefix, "%s", o.Nothing())
	case len(found) == 0:
		return nil, fault("no process serves a policy %q; there are %s", name,
			strings.Join(slices.Compact(names), ", "))
	}
	return found, nil
}

// Nothing says that there are no policies.
func (o *Operator) Nothing() string {
	return fmt.Sprintf("no process has served a policy under the prefix %s in the last minutes", o.shownPrefix())
}

// shownPrefix returns the prefix for people: it may be a URL that was meant for something else.
func (o *Operator) shownPrefix() string {
	if WithoutSecrets(o.Prefix) != o.Prefix {
		return NotShown
	}
	return strconv.Quote(o.Prefix)
}

// Find returns what is published of a policy, the variant that was seen last, and how many variants there are of
// which it is one.
func (o *Operator) Find(ctx context.Context, name string) (ginlimit.PolicyInfo, int, error) {
	found, err := o.Variants(ctx, name)
	if err != nil {
		return ginlimit.PolicyInfo{}, 0, err
	}
	last, n := LastSeen(found)
	return last, n, nil
}

// LastSeen returns the variant of a policy that an operator is about, and how many of its kind have different limits
// or options: rather those that are no dry run, and of these those that a handler serves.
func LastSeen(all []ginlimit.PolicyInfo) (ginlimit.PolicyInfo, int) {
	for _, isOther := range []func(ginlimit.PolicyInfo) bool{IsDryRun, isOfMethods} {
		if some := slices.DeleteFunc(slices.Clone(all), isOther); len(some) > 0 {
			all = some
		}
	}
	different := map[string]bool{}
	for _, p := range all {
		different[settings(p)+p.Key] = true
	}
	last := slices.MaxFunc(all, func(a, b ginlimit.PolicyInfo) int { return a.Seen.Compare(b.Seen) })
	return last, len(different)
}

// settings returns what the variants of a policy have in common, unless a rollout changes more than the version.
func settings(p ginlimit.PolicyInfo) string {
	return fmt.Sprint(p.Limits, p.Headers, p.Options, p.Floor, p.Lease, p.Plans)
}

// Differing returns the names of the policies that processes serve with different limits, options or keys, in order.
// A dry run may be beside another policy, and a handler's beside one of methods.
func Differing(all []ginlimit.PolicyInfo) (names []string) {
	seen := map[string]string{}
	note := func(p ginlimit.PolicyInfo, what, text string) {
		what = fmt.Sprint(what, IsDryRun(p), p.Name)
		if before, is := seen[what]; is && before != text {
			names = append(names, p.Name)
		}
		seen[what] = text
	}
	for _, p := range all {
		note(p, "settings", settings(p))
		if p.Handler {
			note(p, "key", p.Key)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// dryRun is the option of a policy that only tries its limits.
const dryRun = "WithDryRun"

// IsDryRun reports that a policy denies nobody.
func IsDryRun(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, dryRun) }

func isOfMethods(p ginlimit.PolicyInfo) bool { return !p.Handler }

// HasSecret reports that a policy's clients are HMACs in Redis.
func HasSecret(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, "WithKeySecret") }

// HasShares reports that tenants share the policy's limit.
func HasShares(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, "WithShares") }

// HasFunction reports that only the application knows a client's limits.
func HasFunction(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, "WithLimitFunc") }

// policy returns a target's policy with limits as a function returns them, and with the options that add keys of a
// client or keep tokens. Some are defaults of a limiter, as they may be in the application: those that do not fit the
// limits have no effect.
func (o *Operator) policy(to Target, limits []ginlimit.Limit) (*ginlimit.Policy, error) {
	var defaults []ginlimit.LimiterOption
	if o.Secret != nil && !to.Client.Hashed {
		defaults = append(defaults, ginlimit.WithKeySecret(o.Secret))
	}
	opts := []ginlimit.PolicyOption{ginlimit.WithFloor(to.Info.Floor), ginlimit.WithLimitFunc(
		func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })}
	for _, name := range to.Info.Options {
		switch name {
		case "WithBan":
			defaults = append(defaults, ginlimit.WithBan(time.Minute, time.Minute))
		case "WithLease":
			defaults = append(defaults, ginlimit.WithLease(to.Info.Lease))
		case dryRun: // which counts under keys of its own
			opts = append(opts, ginlimit.WithDryRun())
		case "WithShares":
			opts = append(opts, ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 }))
		}
	}
	limiter, err := o.limiter(defaults...)
	if err != nil {
		return nil, err
	}
	if to.Client.Hashed {
		limiter.Traits(traits.Key{}).TakeHashes()
	}
	return limiter.Policy(to.Info.Name, opts...)
}

// Need is what an operator did not say.
type Need int

// What an operator did not say, or should not.
const (
	NeedsLimits   Need = 1 + iota // of the client
	NeedsSecret                   // of the keys
	NeedsNoSecret                 // of the keys
	NeedsHash                     // whether the client is a hash
	NeedsTenant                   // of a policy with shares
	NeedsNoHash                   // of a policy with shares
	NeedsPrefix                   // another one
)

// Fault is a mistake of an operator, in words for people.
type Fault struct {
	Need Need // what is missing; 0 is something else
	Err  error
}

func (f *Fault) Error() string { return f.Err.Error() }

func (f *Fault) Unwrap() error { return f.Err }

func fault(format string, args ...any) error { return &Fault{Err: fmt.Errorf(format, args...)} }

func needs(need Need, format string, args ...any) error {
	return &Fault{need, fmt.Errorf(format, args...)}
}
