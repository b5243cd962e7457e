package ginlimit

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/published"
)

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
	Version   string        // of the application, as it was built; "(devel)" if the build has none
	Processes int           // processes or limiters that serve it
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
			Floor: p.Floor, Lease: time.Duration(p.Lease), Version: p.Build, Processes: p.Processes, Seen: p.Seen,
		})
	}
	slices.SortFunc(all, func(a, b PolicyInfo) int {
		return strings.Compare(Key(a.Name, a.Version)+fmt.Sprint(a), Key(b.Name, b.Version)+fmt.Sprint(b))
	})
	return all, err
}

// publish tells operators that the policy serves.
func (p *Policy) publish() {
	if p.isPublished.Load() || !p.isPublished.CompareAndSwap(false, true) {
		return
	}
	p.limiter.published.Serve(published.Policy{
		Name: p.name, Limits: joinLimits(p.counts.limits), Key: kindOfKey(p.key), Headers: int(p.answers.headers),
		Options: p.options, Floor: p.counts.floor, Lease: int64(p.counts.lease), Handler: p.serves.Load(), Build: build(),
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
