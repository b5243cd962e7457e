package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

const (
	// planGlance is how long a process goes by a plan without asking Redis whether it has been invalidated.
	planGlance = time.Second
	// planRest is how long a plan is kept when it is old, to serve while the source fails.
	planRest = 24 * time.Hour
	// sourceTimeout is how long the source may take for a plan.
	sourceTimeout = 5 * time.Second
	// mostProcessPlans is how many plans a process keeps at least; it keeps at most twice as many.
	mostProcessPlans = 1 << 15
	// unknownPlan stands in Redis for a client without a plan.
	unknownPlan = "unknown"
)

// ErrUnknownClient says that a client has no plan. The default error handler answers it with 403.
var ErrUnknownClient = errors.New("ginlimit: unknown client")

// Plans are the limits of clients, from where the application keeps them: a database, say.
//
//	plans, err := ginlimit.NewPlans(rdb, time.Minute, source)
//	router.Use(limiter.Handler(limit, ginlimit.WithKey(key), ginlimit.WithLimitFunc(plans.Limit)))
//
// The source is asked once per client and life, for all processes, since the answer is kept in Redis, and in the
// process for a second. Many who ask for one client at once wait for one question. While the source fails, the old
// answer serves, for a day; while Redis fails, each process asks for itself. The memory of a process is bounded.
type Plans struct {
	source func(ctx context.Context, client string) (Limit, error)
	life   time.Duration
	rdb    redis.UniversalClient
	config config
	macs   *sync.Pool

	mu      sync.Mutex
	fresh   map[string]*plan // used since the last turn
	old     map[string]*plan
	flights map[string]*planFlight

	changes atomic.Int64 // invalidations by this process
	away    atomic.Int64 // until when Redis is not asked, in Unix milliseconds
	failing atomic.Bool  // the source, at the last question
}

// plan is what is known of a client. It is not changed.
type plan struct {
	limit   Limit
	unknown bool
	until   time.Time // it is gone by without a question
}

// planFlight is a question that is on its way.
type planFlight struct {
	done chan struct{}
	plan *plan
	err  error
}

// NewPlans returns the limits that a source knows of its clients, each asked for again after life.
//
// For a client that it does not know, the source returns [ErrUnknownClient], which is remembered too, or a limit for
// all such clients. Any other error means that it fails. It may be called for several clients at once, with a context
// that ends after five seconds.
//
// Of the options [WithPrefix], [WithTimeout], [WithKeySecret] and [WithLogger] count. The error joins all faults: a
// nil client or source, a life below a second, and those of the options.
func NewPlans(rdb redis.UniversalClient, life time.Duration, source func(ctx context.Context, client string) (Limit, error), opts ...Option) (*Plans, error) {
	cfg, faults := newConfig(opts)
	if isNil(rdb) {
		faults = append(faults, errors.New("ginlimit: the Redis client is nil"))
	}
	if life < time.Second {
		faults = append(faults, fmt.Errorf("ginlimit: NewPlans: a life of %s; want at least a second", life))
	}
	if source == nil {
		faults = append(faults, errors.New("ginlimit: NewPlans: the source is nil"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Plans{
		source: source, life: life, rdb: rdb, config: cfg, macs: newMACs(cfg.secret),
		fresh: map[string]*plan{}, old: map[string]*plan{}, flights: map[string]*planFlight{},
	}, nil
}

// Limit returns the limit of the client with a key, for [WithLimitFunc]. It is [Plans.Get] with the request's context.
func (p *Plans) Limit(c *gin.Context, key string) (Limit, error) {
	return p.Get(c.Request.Context(), key)
}

// Get returns the limit of a client.
//
// The error is [ErrUnknownClient], [ErrNoKey] for an empty client, or the context's, or wraps [ErrUnavailable] where the source fails and nothing is
// known from before, and [ErrInvalidLimit] where the source returns a limit that cannot be used.
func (p *Plans) Get(ctx context.Context, client string) (Limit, error) {
	if client == "" {
		return Limit{}, fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	p.mu.Lock()
	known := p.knownLocked(client)
	if known != nil && time.Now().Before(known.until) {
		p.mu.Unlock()
		return known.get()
	}
	flight := p.flights[client]
	if flight == nil {
		flight = &planFlight{done: make(chan struct{})}
		p.flights[client] = flight
		go p.fly(client, flight, known)
	}
	p.mu.Unlock()
	select {
	case <-flight.done:
	case <-ctx.Done():
		return Limit{}, ended(ctx)
	}
	if flight.err != nil {
		return Limit{}, flight.err
	}
	return flight.plan.get()
}

// Invalidate has the source asked again at the next request of a client: at once in this process, within a
// second in others.
//
// Call it when the change can be read from the source. The error is that of Redis; then other processes go by the old plan
// until its life ends.
func (p *Plans) Invalidate(ctx context.Context, client string) error {
	if client == "" {
		return fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	p.changes.Add(1)
	p.mu.Lock()
	if known := p.knownLocked(client); known != nil {
		stale := *known
		stale.until = time.Time{}
		p.fresh[client] = &stale
	}
	delete(p.flights, client) // what is on its way may be old
	p.mu.Unlock()
	if err := p.rdb.PExpire(ctx, p.name(client), planRest).Err(); err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

func (p *plan) get() (Limit, error) {
	if p.unknown {
		return Limit{}, ErrUnknownClient
	}
	return p.limit, nil
}

// name returns a plan's key in Redis.
func (p *Plans) name(client string) string {
	prefix := p.config.prefix
	if prefix != "" {
		prefix += ":"
	}
	return prefix + "plan:{" + string(appendSlotText(nil, "", client, p.macs)) + "}"
}

// knownLocked returns what the process knows of a client, and keeps it.
func (p *Plans) knownLocked(client string) *plan {
	if known := p.fresh[client]; known != nil {
		return known
	}
	known := p.old[client]
	if known != nil {
		p.keepLocked(client, known)
	}
	return known
}

// keepLocked keeps a plan, and forgets those that were not used for longest if there are too many.
func (p *Plans) keepLocked(client string, known *plan) {
	if len(p.fresh) >= mostProcessPlans {
		p.old, p.fresh = p.fresh, map[string]*plan{}
	}
	p.fresh[client] = known
}

// fly asks for a plan, and answers all who wait for it.
func (p *Plans) fly(client string, flight *planFlight, known *plan) {
	changes := p.changes.Load()
	flight.err = fmt.Errorf("%w: the source of plans panics", ErrUnavailable)
	defer func() {
		_ = recover() // the source is not ours, and nobody could recover in this goroutine
		p.mu.Lock()
		if p.flights[client] == flight {
			delete(p.flights, client)
			if flight.err == nil {
				p.keepLocked(client, flight.plan)
			}
		}
		p.mu.Unlock()
		close(flight.done)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), sourceTimeout)
	defer cancel()
	flight.plan, flight.err = p.ask(ctx, client, known, changes)
}

// ask asks Redis for a plan, and the source if that does not have it.
func (p *Plans) ask(ctx context.Context, client string, known *plan, changes int64) (*plan, error) {
	kept, left := p.kept(ctx, client)
	if left > 0 {
		kept.until = time.Now().Add(min(left, planGlance))
		return kept, nil
	}
	limit, err := p.source(ctx, client)
	if err == nil {
		_, err = newRules(limit)
	}
	switch unknown := errors.Is(err, ErrUnknownClient); {
	case err == nil || unknown:
		p.tell(nil)
		p.keep(ctx, client, limit, unknown, changes)
		return &plan{limit: limit, unknown: unknown, until: time.Now().Add(planGlance)}, nil
	case errors.Is(err, ErrInvalidLimit):
		return nil, err
	}
	p.tell(err)
	if kept == nil {
		kept = known
	}
	if kept == nil {
		return nil, fmt.Errorf("%w: the source of plans: %w", ErrUnavailable, err)
	}
	stale := *kept
	stale.until = time.Now().Add(planGlance) // then the source is asked again
	return &stale, nil
}

// tell has the log say when the source begins to fail, and when it no longer does.
func (p *Plans) tell(err error) {
	switch failing := err != nil; {
	case failing == p.failing.Load() || failing == p.failing.Swap(failing):
	case failing:
		p.config.logger.Warn("ginlimit: the source of plans fails; old plans serve", "error", err)
	default:
		p.config.logger.Info("ginlimit: the source of plans answers again")
	}
}

// kept returns the plan in Redis, nil if there is none, and for how long it is to be gone by, 0 if it is old.
func (p *Plans) kept(ctx context.Context, client string) (kept *plan, left time.Duration) {
	name := p.name(client)
	p.redis(ctx, func(ctx context.Context) error {
		pipe := p.rdb.Pipeline()
		text, life := pipe.Get(ctx, name), pipe.PTTL(ctx, name)
		if _, err := pipe.Exec(ctx); err != nil && !isRefusal(err) {
			return err
		}
		found := &plan{unknown: text.Val() == unknownPlan}
		if !found.unknown {
			var err error
			if found.limit, err = ParseLimit(text.Val()); err != nil {
				return nil // none, or not ours
			}
		}
		kept, left = found, max(0, life.Val()-planRest)
		return nil
	})
	return kept, left
}

// keep puts a plan into Redis, old already if it was invalidated meanwhile.
func (p *Plans) keep(ctx context.Context, client string, limit Limit, unknown bool, changes int64) {
	text := unknownPlan
	if !unknown {
		text = limit.String()
	}
	name := p.name(client)
	p.redis(ctx, func(ctx context.Context) error {
		err := p.rdb.Set(ctx, name, text, p.life+planRest).Err()
		if err == nil && p.changes.Load() != changes {
			err = p.rdb.PExpire(ctx, name, planRest).Err()
		}
		return err
	})
}

// redis has Redis asked something, unless it has just not answered, and waits no longer than the timeout.
func (p *Plans) redis(ctx context.Context, ask func(context.Context) error) {
	if time.Now().UnixMilli() < p.away.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.timeout)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- ask(ctx) }()
	err := errLate
	select {
	case err = <-answered:
	case <-ctx.Done():
	}
	if err != nil && !isRefusal(err) {
		p.away.Store(time.Now().Add(planGlance).UnixMilli())
	}
}
