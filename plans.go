package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/plancache"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Plans are the limits of clients, from where the application keeps them.
//
//	plans, err := ginlimit.NewPlans(rdb, time.Minute, source)
//	router.Use(limiter.Handler(limit, ginlimit.WithKey(key), ginlimit.WithLimitFunc(plans.Limits)))
//
// The source, a database say, is asked once per client and life if the client's requests come to
// one process. Of several processes that need a plan at the moment its life ends, each may ask.
// Redis keeps the answer for all of them, and a process keeps it for a second. Concurrent requests
// for one client share a question. While the source fails or is slow, the old answer serves, for a
// day after its life. While Redis fails, each process keeps its answers for their life. Once Redis
// answers again, they are compared with it within two seconds. The memory of a process is bounded.
type Plans struct {
	cache *plancache.Cache[[]Limit]
}

// PlanStats count lookups of plans by [Plans.Limits]: one for each request, though some share a
// question to the source. Lookups without a client, and those that the caller's context ended, are
// not counted.
type PlanStats struct {
	Hits   uint64 // known in the process or in Redis
	Misses uint64 // the source was asked, and answered
	Stale  uint64 // an old plan served, as the source failed or was slow
	Errors uint64 // the source failed, and nothing was known
}

// Stats returns the figures since the plans were made. An unknown client is a hit or a miss like
// any other.
func (p *Plans) Stats() PlanStats { return PlanStats(p.cache.Stats()) }

// NewPlans returns the limits that a source knows, at least one for each client.
//
// Each is asked for again after life. For an unknown client the source returns [ErrUnknownClient],
// which is remembered too, or a limit for all such clients. Any other error, an invalid limit and a
// panic are failures; the log has no more of an error than its type. The source is called for at
// most 256 clients at once, with a context that ends after five seconds. Up to 4,096 further
// clients wait, for up to five seconds.
//
// Redis keeps a plan for its life. It keeps the plan a day longer if the client comes again after a
// life, to a process that knew the old plan. Each process starts that for at most 32,768 clients a
// day. So an invented client leaves Redis after life unless it comes again.
//
// The options are [WithPrefix], [WithName], [WithTimeout], [WithKeySecret] and [WithLogger]; any
// other is an error. Plans of one Redis with different sources need different names. The error
// joins all errors: a nil client or source, a life below a second, and the options' errors.
func NewPlans(rdb redis.UniversalClient, life time.Duration,
	source func(ctx context.Context, client string) ([]Limit, error), opts ...Option) (*Plans, error) {
	cfg, errs := newConfig(opts)
	errs = append(errs, cfg.misused(plansOptions, false, "%s is no option of plans: NewPlans does not take it")...)
	if redisstore.IsNil(rdb) {
		errs = append(errs, errors.New("ginlimit: the Redis client is nil"))
	}
	if life < time.Second {
		errs = append(errs, fmt.Errorf("ginlimit: NewPlans: a life of %s; want at least a second", life))
	}
	if source == nil {
		errs = append(errs, errors.New("ginlimit: NewPlans: the source is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Plans{plancache.New(plancache.Config[[]Limit]{
		Source: checked(source), Key: planKey(cfg), Marshal: joinLimits, Unmarshal: splitLimits,
		Unknown: ErrUnknownClient, Failed: planUnavailable, Reason: planReason,
		Life: life, Timeout: cfg.timeout, Redis: redisstore.NewAnswers(rdb, planSource), Log: cfg.logger,
	})}, nil
}

// Limits returns the limits of a client, for [WithLimitFunc].
//
// The error is [ErrUnknownClient], [ErrNoKey] for an empty client, or the context's, or wraps
// [ErrUnavailable] if the source fails and nothing is known from before. The limits are not to be
// changed.
func (p *Plans) Limits(ctx context.Context, client string) ([]Limit, error) {
	if client == "" {
		return nil, errEmptyClient()
	}
	limits, err := p.cache.Get(ctx, client)
	if err != nil && err == ctx.Err() {
		return nil, fmt.Errorf("ginlimit: %w", err)
	}
	return limits, err
}

// Invalidate makes the next request of a client ask the source again.
//
// Call it when the change can be read from the source. It takes effect at once in this process, and
// within a second in others that reach Redis. A process that does not reach Redis keeps the old
// plan until it does, for its life at most. While the source is slow to answer, the old plan
// serves. An error is Redis'; then other processes may keep the old plan for its life.
func (p *Plans) Invalidate(ctx context.Context, client string) error {
	if client == "" {
		return errEmptyClient()
	}
	if err := p.cache.Invalidate(ctx, client); err != nil {
		return engine.Unavailable(ctx, err)
	}
	return nil
}

func errEmptyClient() error { return fmt.Errorf("%w: the client is empty", ErrNoKey) }

// planKey returns the function that names a client's plan in Redis: prefix:plan:{name|client}.
func planKey(cfg config) func(client string) string {
	prefix, name, keys := "plan:{", "", clientkey.NewText(cfg.secret)
	if cfg.prefix != "" {
		prefix = cfg.prefix + ":" + prefix
	}
	if cfg.name != "" {
		name = Key(cfg.name, "")
	}
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
		if _, err := newLimitSet(TokenBucket, limits...); err != nil {
			return nil, err
		}
		for _, limit := range limits {
			if !limit.named() { // Redis keeps its text
				return nil, fmt.Errorf("%w: %s: no time zone has that name", ErrInvalidLimit, limit)
			}
		}
		return slices.Clone(limits), nil // the application may change its own
	}
}

const limitSeparator = ", "

// joinLimits returns a plan's text in Redis.
func joinLimits(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = l.String()
	}
	return strings.Join(texts, limitSeparator)
}

// splitLimits reads what joinLimits has written.
func splitLimits(text string) (limits []Limit, err error) {
	for one := range strings.SplitSeq(text, limitSeparator) {
		l, err := ParseLimit(one)
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// planUnavailable is the error of a client whose plan the source did not return.
func planUnavailable(err error) error {
	return fmt.Errorf("%w: the source of plans: %w", ErrUnavailable, err)
}

// planReason returns what the log says of an error of a source, or "" for its type.
func planReason(err error) string {
	if errors.Is(err, ErrInvalidLimit) {
		return "invalid limit"
	}
	return ""
}
