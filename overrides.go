// What operators see and change: the overrides of limits, and the policies that processes publish.

package ginlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/overrides"
	"github.com/ginlimit/ginlimit/internal/published"
	"github.com/ginlimit/ginlimit/internal/wire"
)

const (
	maxOverride      = 366 * day // how far ahead an override ends
	maxOverrideText  = 1024      // bytes of a client
	maxOverrideNote  = 256       // bytes
	operationTimeout = 5 * time.Second
)

// Override replaces limits for a time: see [Limiter.Override], experimental.
type Override struct {
	Policy string    // its name
	Client string    // as the [KeyFunc] returns it, at most 1,024 bytes; "" is all clients without one of their own
	Limits []Limit   // 1 to 16; none ends the override
	Until  time.Time // when it ends by itself: in the future, at most 366 days ahead
	Note   string    // why, for people; one line of at most 256 bytes
}

// Override replaces the limits of a policy, for one client or for all, until a time: within a
// second in every process, also for a client that is denied. It is experimental: its numbers and
// details may change in a minor version.
//
// A client's override goes before one for all clients, and both before [WithLimitFunc], which is
// still called for an InFlight that the limits do not name. A changed Rate or Burst keeps the
// bucket; another period or algorithm has a bucket of its own, where no earlier [Policy.Block]
// holds. Bans go on. The policy may be another process': see [Limiter.Policies]. The error joins
// all faults, each an [OverrideError]. Without Redis it is [ErrUnavailable], after at most five
// seconds, and may be in force all the same.
func (l *Limiter) Override(ctx context.Context, o Override) error { return l.OverrideAll(ctx, o) }

// OverrideAll is [Limiter.Override] for up to 1,000 overrides: none, if one has a
// fault. If Redis fails or ctx ends meanwhile, some may be in force.
func (l *Limiter) OverrideAll(ctx context.Context, all ...Override) error {
	if l == nil || l.engine == nil {
		return errNotMade
	}
	if len(all) == 0 || len(all) > overrides.MaxChanges {
		return wrongNumber("%d overrides; want 1 to %d at once", len(all), overrides.MaxChanges)
	}
	all = slices.Clone(all) // the caller may change its own while Redis does not answer
	for i := range all {
		all[i].Limits = slices.Clone(all[i].Limits)
	}
	_, err := operate(ctx, l, func(ctx context.Context) (struct{}, error) {
		changes, err := l.changes(ctx, all)
		if err != nil {
			return struct{}{}, err
		}
		if err = l.overrides.Change(ctx, changes); errors.Is(err, overrides.ErrFull) {
			err = wrongNumber("there would be more than %d overrides; end some", overrides.Max)
		}
		return struct{}{}, err
	})
	return err
}

// Overrides returns all overrides that have not ended, by policy and client. With [WithKeySecret] the clients
// are HMACs.
func (l *Limiter) Overrides(ctx context.Context) ([]Override, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	return operate(ctx, l, func(ctx context.Context) ([]Override, error) {
		entries, err := l.inForce(ctx)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(entries, overrides.Entry.Compare)
		return readOverrides(entries)
	})
}

// inForce returns the overrides that have not ended, in no order.
func (l *Limiter) inForce(ctx context.Context) ([]overrides.Entry, error) {
	all, err := l.overrides.All(ctx)
	now := time.Now()
	return slices.DeleteFunc(all, func(e overrides.Entry) bool { return !now.Before(e.Until) }), err
}

// readOverrides reads overrides of a list.
func readOverrides(entries []overrides.Entry) (all []Override, err error) {
	read := map[string][]Limit{} // by their text, which many have
	for _, e := range entries {
		o, err := e.Read()
		if err != nil {
			return nil, err
		}
		if read[o.Limits] == nil {
			if read[o.Limits], err = splitLimits(o.Limits); err != nil { // no fault of who asks
				return nil, fmt.Errorf("%w: %v", wire.ErrUnreadable, err)
			}
		}
		all = append(all, Override{o.Policy, o.Client, slices.Clone(read[o.Limits]), time.UnixMilli(o.Until), o.Note})
	}
	return all, nil
}

// operate calls a function that reads or writes for an operator, and leaves it alone when it takes too long. Its
// error is one of this package.
func operate[T any](ctx context.Context, l *Limiter, f func(context.Context) (T, error)) (value T, err error) {
	if err := l.engine.Ready(ctx); err != nil {
		return value, err
	}
	within, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	value, err = goroutine.Bounded(within, 0, func() (T, error) { return f(within) })
	if err == nil {
		return value, nil
	}
	var none T
	if !errors.Is(err, ErrInvalidArgument) && !errors.Is(err, ErrUnavailable) {
		err = engine.Unavailable(ctx, err)
	}
	return none, err
}

// changes returns overrides as they are stored, or every error in them.
func (l *Limiter) changes(ctx context.Context, all []Override) (changes []wire.OverrideChange, err error) {
	var errs []error
	seen, published := map[string]bool{}, sync.OnceValues(func() ([]PolicyInfo, error) { return l.policyInfos(ctx) })
	for i, o := range all {
		name := Key(o.Policy, o.Client)
		faults := o.check()
		if seen[name] {
			faults.add("Client", invalid("the client of this policy has another override in the same call"))
		}
		if seen[name] = true; faults == nil && len(o.Limits) > 0 {
			if faults, err = l.checkLimits(o, published); err != nil {
				return nil, err
			}
		}
		for _, fault := range faults {
			fault.Index, fault.several = i, len(all) > 1
			errs = append(errs, fault)
		}
		change := overrides.Override{
			Policy: o.Policy, Client: o.Client, Limits: joinLimits(o.Limits), Until: o.Until.UnixMilli(), Note: o.Note,
		}
		if l.overrides.Hide != nil && o.Client != "" {
			change.Client = l.overrides.Hide(o.Policy, o.Client)
		}
		changes = append(changes, change.Change(len(o.Limits) == 0))
	}
	return changes, errors.Join(errs...)
}

// overrideFaults are what is wrong with one override.
type overrideFaults []*OverrideError

func (f *overrideFaults) add(field string, errs ...error) {
	for _, err := range errs {
		*f = append(*f, &OverrideError{Field: field, Err: err})
	}
}

// check returns every error in an override that does not depend on its policy.
func (o Override) check() (faults overrideFaults) {
	require := func(field string, ok bool, format string, args ...any) {
		if !ok {
			faults.add(field, invalid(format, args...))
		}
	}
	require("Policy", o.Policy != "", "the override has no policy")
	require("Client", len(o.Client) <= maxOverrideText, "a client of %d bytes; want at most %d",
		len(o.Client), maxOverrideText)
	for _, of := range []struct{ field, text string }{{"Policy", o.Policy}, {"Client", o.Client}, {"Note", o.Note}} {
		require(of.field, utf8.ValidString(of.text), "the override is not UTF-8")
	}
	if len(o.Limits) == 0 {
		return faults
	}
	require("Limits", len(o.Limits) <= maxOverrideLimits, "%d limits; want at most %d",
		len(o.Limits), maxOverrideLimits)
	require("Note", !strings.ContainsFunc(o.Note, unicode.IsControl), "the note %.64q has control characters", o.Note)
	require("Note", len(o.Note) <= maxOverrideNote, "a note of %d bytes; want at most %d", len(o.Note), maxOverrideNote)
	left := time.Until(o.Until)
	require("Until", 0 < left && left <= maxOverride, "an override until %s; want the future, at most 366 days ahead",
		o.Until.Format(time.RFC3339))
	_, err := newLimitSet(o.Limits)
	faults.add("Limits", append(faultsIn(err), faultsIn(checkNamed(o.Limits))...)...)
	return faults
}

// checkLimits returns why the policy of an override cannot have its limits. Its error is that nobody knows.
func (l *Limiter) checkLimits(o Override, published func() ([]PolicyInfo, error)) (faults overrideFaults, err error) {
	if p := l.policies.get(o.Policy); p != nil {
		own, err := p.under(o.Limits)
		if bad := (*unusable)(nil); errors.As(err, &bad) {
			err = bad.error // each of its faults is one of the override
		}
		if err == nil {
			err = p.counts.checkLeft(own)
		}
		faults.add("Limits", faultsIn(errors.Join(err, o.checkSlots(p.counts.limits, p.counts.limitFunc != nil)))...)
		return faults, nil
	}
	all, err := published()
	if err != nil {
		return nil, err
	}
	served, applies := false, false
	var nothing error // is left of the limits in each variant
	for _, p := range all {
		if p.Name != o.Policy {
			continue
		}
		errs := []error{o.checkSlots(p.Limits, slices.Contains(p.Options, "WithLimitFunc"))}
		if slices.Contains(p.Options, "WithShares") {
			errs = append(errs, checkShared(o.Limits))
		}
		if faults == nil {
			faults.add("Limits", faultsIn(errors.Join(errs...))...)
		}
		counts := countConfig{floor: p.Floor, lease: p.Lease}
		if own, err := counts.newLimits(p.Name, o.Limits, 0, false); err == nil && (!served || nothing != nil) {
			nothing = counts.checkLeft(own)
		}
		served, applies = true, applies || !slices.Contains(p.Options, "WithoutOverrides")
	}
	if nothing != nil {
		faults.add("Limits", nothing)
	}
	switch {
	case !served:
		faults.add("Policy", invalid("no process has served a policy named %.64q in the last minutes", o.Policy))
	case !applies:
		faults.add("Policy", invalid("all processes of policy %.64q have WithoutOverrides", o.Policy))
	}
	return faults, nil
}

// checkSlots reports that slots alone would replace limits of tokens, too: nobody means that who does not say so.
func (o Override) checkSlots(own []Limit, isFunc bool) error {
	counts := func(l Limit) bool { return l.InFlight == 0 }
	if slices.ContainsFunc(o.Limits, counts) || !isFunc && !slices.ContainsFunc(own, counts) {
		return nil
	}
	return invalid("%s alone would leave the policy without its other limits: add them, or Unlimited()",
		joinLimits(o.Limits))
}

// PolicyInfo is a policy as some processes serve it. A build without version control gets its Version by
// -ldflags "-X github.com/ginlimit/ginlimit.version=1.4.2".
type PolicyInfo struct {
	Name      string
	Limits    []Limit       // without [WithLimitFunc]'s; nil if their time zone is not known here
	Handler   bool          // a handler serves it, and not its methods alone
	Key       string        // "ByHeader", or the name of the application's function; "" without a handler
	Headers   Headers       // of [WithHeaders]
	Options   []string      // the names of its other options; defaults, WithKeySecret and WithoutOverrides too
	Floor     int           // of [WithFloor]
	Lease     time.Duration // of [WithLease]
	Plans     string        // the name of [Plans], if [WithLimitFunc] is their Limits
	Version   string        // of the application, as it was built; "(devel)" if the build has none
	Processes int           // that serve it
	Seen      time.Time     // its last publication
}

// Policies returns what policies the processes of this prefix serve, by name, once for each
// variant, until three minutes after a process' end.
func (l *Limiter) Policies(ctx context.Context) ([]PolicyInfo, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	return operate(ctx, l, l.policyInfos)
}

func (l *Limiter) policyInfos(ctx context.Context) (all []PolicyInfo, err error) {
	found, err := l.published.All(ctx)
	for _, p := range found {
		limits, err := splitLimits(p.Limits)
		if err != nil { // there are none, or nobody can read them; the other policies are there
			limits = nil
		}
		all = append(all, PolicyInfo{
			Name: p.Name, Limits: limits, Handler: p.Handler, Key: p.Key, Headers: Headers(p.Headers), Options: p.Options,
			Floor: p.Floor, Lease: time.Duration(p.Lease), Plans: p.Plans, Version: p.Build,
			Processes: p.Processes, Seen: p.Seen,
		})
	}
	slices.SortFunc(all, func(a, b PolicyInfo) int {
		order := cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
		if order == 0 {
			order = strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		}
		return order
	})
	return all, err
}

// publish lets operators see that the policy serves.
func (p *Policy) publish() {
	if p.isPublished.Load() || !p.isPublished.CompareAndSwap(false, true) {
		return
	}
	p.limiter.published.Serve(published.Policy{
		Name: p.name, Limits: joinLimits(p.counts.limits), Key: kindOfKey(p.key), Headers: int(p.answers.headers),
		Options: p.options, Floor: p.counts.floor, Lease: int64(p.counts.lease), Plans: plansOf(p.counts.limitFunc),
		Handler: p.serves.Load(), Build: build(),
	})
}

// version is set by the linker: see [PolicyInfo].
var version string

// unknownVersion is Go's word for the version of a program that was built without one.
const unknownVersion = "(devel)"

// build returns the version of the application, or the revision that it was built from.
var build = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case version != "":
		return version
	case !ok:
		return unknownVersion
	case info.Main.Version != "" && info.Main.Version != unknownVersion:
		return info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return unknownVersion
})
