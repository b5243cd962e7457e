package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/plancache"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Plans are the limits of clients, from where the application keeps them.
//
//	plans, err := limiter.NewPlans("plans", time.Minute, source)
//	router.Use(limiter.Handler("api", ginlimit.WithKey(key), ginlimit.WithLimitFunc(plans.Limits)))
//
// The source, such as a database, is asked once per client and life, as Redis keeps the answer for
// all processes. While the source fails or is slow, the old answer serves, for up to a day after
// its life.
type Plans struct {
	name  string
	cache *plancache.Cache[[]Limit]
}

// PlanStats count lookups by [Plans.Limits].
type PlanStats struct {
	Hits   uint64 // known in the process or in Redis
	Misses uint64 // the source was asked, and answered
	Stale  uint64 // an old plan served, as the source failed or was slow
	Errors uint64 // the source failed, and nothing was known
}

// Stats returns the counts since the plans were made.
func (p *Plans) Stats() PlanStats {
	if p == nil || p.cache == nil {
		return PlanStats{}
	}
	return PlanStats(p.cache.Stats())
}

// errNoPlans is the error of zero Plans.
var errNoPlans = invalid("the plans were not made by NewPlans")

// NewPlans returns the limits that a source has for clients, one or more each, asked again after
// life, at least a second. For an unknown client the source returns [ErrUnknownClient], which is
// remembered too, or limits for all such clients. It is called for at most 256 clients at once,
// with a context of five seconds; 4,096 more wait. Different sources need different names. The
// error joins all faults, each an [OptionError].
func (l *Limiter) NewPlans(name string, life time.Duration,
	source func(ctx context.Context, client string) ([]Limit, error)) (*Plans, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	var c config
	c.requireOf("name", name != "", "NewPlans: the name is empty")
	c.requireOf("life", life >= time.Second, "NewPlans: a life of %s; want at least a second", life)
	c.requireOf("source", source != nil, "NewPlans: the source is nil")
	const (
		taken = "the limiter has plans named %q already; keep them, or choose another name"
		full  = "the limiter has made %d plans; make them once, at start, not for each request"
	)
	if err := l.plans.take(name, true, taken, full, c.errs); err != nil {
		return nil, err
	}
	return &Plans{name, plancache.New(plancache.Config[[]Limit]{
		Source: checked(source), Key: l.planKey(name), Marshal: joinLimits, Unmarshal: splitLimits,
		Unknown: ErrUnknownClient, Failed: planUnavailable, Reason: planReason,
		Life: life, Timeout: l.timeout, Log: l.logger, Redis: redisstore.NewAnswers(l.rdb),
	})}, nil
}

// Limits returns the limits of a client, for [WithLimitFunc]; do not change them. The error is
// [ErrUnknownClient], [ErrNoKey], the context's, or [ErrUnavailable] if no answer is known.
func (p *Plans) Limits(ctx context.Context, client string) ([]Limit, error) {
	switch {
	case p == nil || p.cache == nil:
		return nil, errNoPlans
	case client == "":
		return nil, &noClientOf{p.name, errEmptyClient()}
	}
	limits, err := p.cache.Get(ctx, client)
	if err != nil && err == ctx.Err() {
		return nil, fmt.Errorf("ginlimit: %w", err)
	}
	return limits, err
}

// Invalidate makes the next request of a client ask the source again: at once in this process,
// within a second in others. A process that cannot reach Redis may keep the old plan for its life,
// and so may others after an error.
func (p *Plans) Invalidate(ctx context.Context, client string) error {
	switch {
	case p == nil || p.cache == nil:
		return errNoPlans
	case client == "":
		return errEmptyClient()
	}
	if err := p.cache.Invalidate(ctx, client); err != nil {
		return engine.Unavailable(ctx, err)
	}
	return nil
}

// noClientOf is the error of plans that are asked for an empty client.
type noClientOf struct {
	plans string
	error
}

func (e *noClientOf) Unwrap() error { return e.error }

// plansOf returns the name of the plans of which a function is [Plans.Limits], or "". It calls no other function.
func plansOf(f func(context.Context, string) ([]Limit, error)) string {
	if f == nil || funcName(f) != funcName((*Plans).Limits)+"-fm" {
		return ""
	}
	_, err := f(context.Background(), "")
	if of := (*noClientOf)(nil); errors.As(err, &of) {
		return of.plans
	}
	return ""
}

func errEmptyClient() error { return fmt.Errorf("%w: the client is empty", ErrNoKey) }

// planKey returns the function that names a client's plan in Redis: prefix:plan:{name|client}.
func (l *Limiter) planKey(name string) func(client string) string {
	prefix, keys := "plan:{", clientkey.NewText(l.secret)
	if l.prefix != "" {
		prefix = l.prefix + ":" + prefix
	}
	name = Key(name, "")
	return func(client string) string {
		return string(append(keys.Append([]byte(prefix), name, client), '}'))
	}
}

// checked returns a source whose limits are valid and its own.
func checked(source func(context.Context, string) ([]Limit, error)) func(context.Context, string) ([]Limit, error) {
	return func(ctx context.Context, client string) ([]Limit, error) {
		limits, err := source(ctx, client)
		if err != nil {
			return nil, err
		}
		if _, err := newLimitSet(limits); err != nil {
			return nil, &unusable{err, limits}
		}
		if err := checkNamed(limits); err != nil {
			return nil, err
		}
		return slices.Clone(limits), nil // the application may change its own
	}
}

// checkNamed reports limits that cannot be read from the texts that Redis keeps of them.
func checkNamed(limits []Limit) error {
	for _, limit := range limits {
		if !limit.named() {
			return fmt.Errorf("%w: %s: no time zone has that name", ErrInvalidArgument, limit)
		}
	}
	return nil
}

// planUnavailable is the error of a client whose plan the source did not return.
func planUnavailable(err error) error {
	return fmt.Errorf("%w: the source of plans: %w", ErrUnavailable, err)
}

// planReason returns what the log says of an error of a source, or "" for its type.
func planReason(err error) string {
	if bad := (*unusable)(nil); errors.As(err, &bad) {
		return "invalid argument: " + bad.text()
	}
	if errors.Is(err, ErrInvalidArgument) {
		return "invalid argument"
	}
	return ""
}
