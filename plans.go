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
	// planGlance is how long a process goes by a plan without asking Redis whether it has been invalidated, and how
	// long after a failure it asks again.
	planGlance = time.Second
	// planRest is how long a plan is kept when it is old, to serve while the source fails.
	planRest = 24 * time.Hour
	// sourceTimeout is how long the source may take for a plan.
	sourceTimeout = 5 * time.Second
	// mostQuestions is how many clients' plans are asked for at a time.
	mostQuestions = 256
	// planCalls is how many calls of Redis may be unanswered, each of which may hold a connection.
	planCalls = 8
	// mostProcessPlans is how many plans a process keeps at least; it keeps at most twice as many.
	mostProcessPlans = 1 << 15
	// unknownPlan stands in Redis for a client without a plan.
	unknownPlan = "unknown"
)

// ErrUnknownClient says that a client has no plan. The default error handler answers it with 403.
var ErrUnknownClient = errors.New("ginlimit: unknown client")

// Plans are the limits of clients, from where the application keeps them.
//
//	plans, err := ginlimit.NewPlans(rdb, time.Minute, source)
//	router.Use(limiter.Handler(limit, ginlimit.WithKey(key), ginlimit.WithLimitFunc(plans.Limit)))
//
// The source, a database say, is asked about once per client and life, for all processes: the answer is kept in
// Redis, and in the process for a second. Many who ask for one client at once wait for one question. While the
// source fails, or is slow, the old answer serves, for a day; while Redis fails, each process keeps its answers
// for their life. The memory of a process is bounded.
type Plans struct {
	source func(ctx context.Context, client string) (Limit, error)
	life   time.Duration
	rdb    redis.UniversalClient
	config config
	macs   *sync.Pool

	mu      sync.Mutex
	fresh   map[string]*plan // by slot text; used since the last turn
	old     map[string]*plan
	flights map[string]*planFlight

	calls chan struct{} // of Redis, unanswered
	away  atomic.Int64  // 0, or until when Redis is not asked, in Unix milliseconds

	failed atomic.Int64 // when the source last failed, in Unix milliseconds
	told   atomic.Int64 // when the log was told so
	again  atomic.Bool  // it is to be told when the source answers
}

// plan is what is known of a client. It is not changed.
type plan struct {
	limit   Limit
	unknown bool
	err     error     // the source's, with nothing known from before
	until   time.Time // it is gone by without a question
	invalid bool      // what Redis keeps may be as old
}

// planFlight is a question that is on its way.
type planFlight struct {
	since time.Time
	done  chan struct{}
	plan  *plan
}

// NewPlans returns the limits that a source knows.
//
// Each is asked for again after life. For a client that it does not know, the source returns [ErrUnknownClient],
// which is remembered too, or a limit for all such clients. Any other error, and a limit that cannot be used, mean
// that it fails. It may be called for several clients at once, with a context that ends after five seconds.
//
// Of the options [WithPrefix], [WithName], [WithTimeout], [WithKeySecret] and [WithLogger] count. Plans of one Redis
// with different sources need different names. The error joins all faults: a nil client or source, a life below a
// second, and those of the options.
func NewPlans(rdb redis.UniversalClient, life time.Duration, source func(ctx context.Context, client string) (Limit, error),
	opts ...Option) (*Plans, error) {
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
		source: source, life: life, rdb: rdb, config: cfg, macs: newMACs(cfg.secret), calls: make(chan struct{}, planCalls),
		fresh: map[string]*plan{}, old: map[string]*plan{}, flights: map[string]*planFlight{},
	}, nil
}

// Limit returns the limit of a request's client, for [WithLimitFunc].
//
// It is [Plans.Get] with the request's context.
func (p *Plans) Limit(c *gin.Context, key string) (Limit, error) {
	return p.Get(c.Request.Context(), key)
}

// Get returns the limit of a client.
//
// The error is [ErrUnknownClient], [ErrNoKey] for an empty client, or the context's, or wraps [ErrUnavailable] where
// the source fails and nothing is known from before.
func (p *Plans) Get(ctx context.Context, client string) (Limit, error) {
	if client == "" {
		return Limit{}, fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	now, key := time.Now(), p.key(client)
	p.mu.Lock()
	known := p.knownLocked(key)
	if known != nil && now.Before(known.until) {
		p.mu.Unlock()
		return known.get()
	}
	flight := p.flights[key]
	switch {
	case flight == nil && len(p.flights) >= mostQuestions:
		p.mu.Unlock()
		return known.or(errors.New("too many plans are asked for"))
	case flight == nil:
		flight = &planFlight{since: now, done: make(chan struct{})}
		p.flights[key] = flight
		go p.fly(client, key, flight, known)
	}
	p.mu.Unlock()

	patience := time.Until(flight.since.Add(sourceTimeout))
	switch {
	case known.serves() && known.invalid: // a change is worth waiting for
		patience = min(patience, max(p.config.timeout, planGlance))
	case known.serves():
		patience = min(patience, p.config.timeout)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-flight.done:
		return flight.plan.get()
	case <-timer.C:
		return known.or(errLate)
	case <-ctx.Done():
		return Limit{}, ended(ctx)
	}
}

// Invalidate has the source asked again at a client's next request.
//
// That is at once in this process, and within a second in others. Call it when the change can be read from the
// source. The error is that of Redis; then other processes may go by the old plan until its life ends.
func (p *Plans) Invalidate(ctx context.Context, client string) error {
	if client == "" {
		return fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	key := p.key(client)
	invalid := plan{err: errLate, invalid: true}
	p.mu.Lock()
	if known := p.knownLocked(key); known != nil {
		invalid = *known
		invalid.until, invalid.invalid = time.Time{}, true
	}
	p.keepLocked(key, &invalid)
	delete(p.flights, key) // what is on its way may be old
	p.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		_, err := p.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, p.changes(key)) // first, so that whoever keeps the old plan after it sees it
			pipe.PExpire(ctx, p.changes(key), 2*sourceTimeout)
			pipe.Del(ctx, p.name(key))
			return nil
		})
		done <- err
	}()
	timer := time.NewTimer(p.config.timeout)
	defer timer.Stop()
	err := errLate
	select {
	case err = <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// serves reports whether a plan is there that can be gone by, be it old.
func (p *plan) serves() bool { return p != nil && p.err == nil }

func (p *plan) get() (Limit, error) {
	switch {
	case p.err != nil:
		return Limit{}, fmt.Errorf("%w: the source of plans: %w", ErrUnavailable, p.err)
	case p.unknown:
		return Limit{}, ErrUnknownClient
	}
	return p.limit, nil
}

// or returns the plan's limit, or an error where there is none.
func (p *plan) or(err error) (Limit, error) {
	if p.serves() {
		return p.get()
	}
	return (&plan{err: err}).get()
}

// key returns the text under which a client is known.
func (p *Plans) key(client string) string {
	name := ""
	if p.config.name != "" {
		name = Key(p.config.name, "")
	}
	return string(appendSlotText(nil, name, client, p.macs))
}

// knownLocked returns what the process knows of a client, and keeps it.
func (p *Plans) knownLocked(key string) *plan {
	if known := p.fresh[key]; known != nil {
		return known
	}
	known := p.old[key]
	if known != nil {
		p.keepLocked(key, known)
	}
	return known
}

// keepLocked keeps a plan, and forgets those that were not used for longest if there are too many.
func (p *Plans) keepLocked(key string, known *plan) {
	if len(p.fresh) >= mostProcessPlans {
		p.old, p.fresh = p.fresh, map[string]*plan{}
	}
	p.fresh[key] = known
}

// fly asks for a plan, and answers all who wait for it.
func (p *Plans) fly(client, key string, flight *planFlight, known *plan) {
	ctx, cancel := context.WithTimeout(context.Background(), sourceTimeout)
	defer cancel()
	flight.plan = p.ask(ctx, client, key, known)
	p.mu.Lock()
	if p.flights[key] == flight {
		delete(p.flights, key)
		p.keepLocked(key, flight.plan)
	}
	p.mu.Unlock()
	close(flight.done)
}

// ask asks Redis for a plan, and the source if that does not have it.
func (p *Plans) ask(ctx context.Context, client, key string, known *plan) *plan {
	kept := p.kept(ctx, key)
	if kept.left > 0 && (known == nil || !known.invalid) {
		kept.plan.until = time.Now().Add(min(kept.left, planGlance))
		return kept.plan
	}
	limit, err := p.callSource(ctx, client)
	unknown := errors.Is(err, ErrUnknownClient)
	if err != nil && !unknown {
		p.tell(err)
		stale := plan{err: err}
		switch {
		case known.serves():
			stale = *known
		case kept.plan != nil:
			stale = *kept.plan
		}
		stale.until = time.Now().Add(planGlance)
		return &stale
	}
	p.tell(nil)
	answer := &plan{limit: limit, unknown: unknown, until: time.Now().Add(planGlance)}
	if !p.keep(ctx, key, answer, kept.changes) {
		answer.until = time.Now().Add(p.life) // nobody else can say
	}
	return answer
}

// callSource asks the source, and takes a panic, or a limit that cannot be used, for an error.
func (p *Plans) callSource(ctx context.Context, client string) (limit Limit, err error) {
	defer func() {
		if r := recover(); r != nil { // nobody else could recover in this goroutine
			err = errors.New("the source of plans panics")
		}
	}()
	if limit, err = p.source(ctx, client); err == nil {
		_, err = newRules(TokenBucket, limit)
	}
	return limit, err
}

// tell has the log say, at most once a minute, that the source fails, and then when it has not for a second.
func (p *Plans) tell(err error) {
	now := time.Now().UnixMilli()
	if err == nil {
		if now-p.failed.Load() >= planGlance.Milliseconds() && p.again.CompareAndSwap(true, false) {
			p.config.logger.Info("ginlimit: the source of plans answers again")
		}
		return
	}
	p.failed.Store(now)
	if told := p.told.Load(); now-told >= refusalsApart.Milliseconds() && p.told.CompareAndSwap(told, now) {
		p.again.Store(true)
		p.config.logger.Warn("ginlimit: the source of plans fails; old plans serve", "reason", reason(err))
	}
}
