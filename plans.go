package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

const (
	planRecheck     = time.Second     // a process reads a plan in Redis again after this time, and retries after a failure
	planRest        = 24 * time.Hour  // an old plan serves this long after its life while the source fails
	sourceTimeout   = 5 * time.Second // the limit of a question to the source, and of its wait for a slot
	maxQuestions    = 256             // clients that the source is asked for at a time
	maxWaiting      = 1 << 12         // clients that wait until the source is asked for them
	maxFlights      = 2 * maxWaiting  // clients that are looked up at all, in Redis or the source; each takes some 6 KiB
	maxProcessPlans = 1 << 15         // plans that a process keeps at least; it keeps at most twice as many
	maxRested       = maxProcessPlans // clients that a process adds, in each planRest, to those whose plans Redis keeps longer
)

// ErrUnknownClient says that a client has no plan. The default error handler answers it with 403.
var ErrUnknownClient = errors.New("ginlimit: unknown client")

var (
	errSourceLate = errors.New("no answer in time")
	errSourceBusy = errors.New("too many plans are asked for")
)

// Plans are the limits of clients, from where the application keeps them.
//
//	plans, err := ginlimit.NewPlans(rdb, time.Minute, source)
//	router.Use(limiter.Handler(limit, ginlimit.WithKey(key), ginlimit.WithLimitFunc(plans.Limits)))
//
// The source, a database say, is asked once per client and life if the client's requests come to one process. Of several
// that need a plan at the moment at which its life ends, each may ask. The answer is kept in Redis for all of them, and
// in the process for a second. Concurrent requests for one client share a question. While the source fails or is slow, the
// old answer serves, for a day after its life. While Redis fails, each process keeps its answers for their life; once it
// answers again, they are compared with it within two seconds. The memory of a process is bounded.
type Plans struct {
	source  func(ctx context.Context, client string) ([]Limit, error)
	life    time.Duration
	rdb     redis.UniversalClient
	config  config
	prefix  string // of keys in Redis
	keyName string // what follows it, if the plans have a name
	keys    clientkey.Text

	mu         sync.Mutex             // guards the fields up to restsLeft
	fresh      map[string]*plan       // by key in Redis; used since the last turn
	old        map[string]*plan       // used in the turn before
	flights    map[string]*planFlight // by key in Redis
	restsSince time.Time              // when restsLeft was last set
	restsLeft  int                    // clients that may be added to those whose plans Redis keeps longer

	questions chan struct{}             // slots of questions to the source
	waiting   atomic.Int64              // questions that wait for a slot
	calls     chan struct{}             // slots of calls to Redis, each held until the call ends
	redisLost atomic.Pointer[time.Time] // when Redis last did not answer; nil once it answers

	hits, misses, stale, errors atomic.Uint64 // lookups

	failures redisstore.Throttle       // of log lines that say that the source fails
	failing  atomic.Pointer[time.Time] // the last failure since such a line; nil once the log says that the source answers
}

// plan is what is known of a client. The zero plan is nothing. A plan does not change once it is shared.
type plan struct {
	limits  []Limit
	err     error     // why there are none: ErrUnknownClient, or the source's failure
	until   time.Time // the process uses it without asking Redis until then
	ends    time.Time // the end of its life; it serves for planRest longer while the source fails
	invalid bool      // Invalidate has ended its life
	ahead   bool      // Redis may keep an older one, as it may not have heard of Invalidate
	stored  bool      // Redis has stored it
	rested  bool      // Redis keeps it for planRest after its life
	token   string    // the token when the source was asked; "" if the plan is from Redis, or Redis gave none
}

// planFlight is a lookup of a plan, which many may wait for. Plan and asked belong to fetch until done is closed.
type planFlight struct {
	done  chan struct{}
	plan  *plan
	asked bool // the source has answered
}

// PlanStats count lookups of plans by [Plans.Limits]: one for each request, though some share a question to the source.
// Lookups without a client, and those that the caller's context ended, are not counted.
type PlanStats struct {
	Hits   uint64 // known in the process or in Redis
	Misses uint64 // the source was asked, and answered
	Stale  uint64 // an old plan served, as the source failed or was slow
	Errors uint64 // the source failed, and nothing was known
}

// Stats returns the figures since the plans were made. An unknown client is a hit or a miss like any other.
func (p *Plans) Stats() PlanStats {
	return PlanStats{Hits: p.hits.Load(), Misses: p.misses.Load(), Stale: p.stale.Load(), Errors: p.errors.Load()}
}

// count counts a lookup that found a plan.
func (p *Plans) count(found *plan, asked bool) {
	switch {
	case found.err != nil && found.err != ErrUnknownClient:
		p.errors.Add(1)
	case asked:
		p.misses.Add(1)
	case found.lives(time.Now()):
		p.hits.Add(1)
	default:
		p.stale.Add(1)
	}
}

// NewPlans returns the limits that a source knows, at least one for each client.
//
// Each is asked for again after life. For an unknown client the source returns [ErrUnknownClient], which is remembered
// too, or a limit for all such clients. Any other error, an invalid limit and a panic are failures; the log has no more of
// an error than its type. The source is called for at most 256 clients at once, with a context that ends after five
// seconds. Up to 4,096 further clients wait, for up to five seconds.
//
// Redis keeps a plan for its life, and a day longer if the client came again after an earlier life, to a process that knew
// the old plan. Each process starts that for at most 32,768 clients a day. So an invented client leaves Redis after
// life unless it comes again.
//
// The options are [WithPrefix], [WithName], [WithTimeout], [WithKeySecret] and [WithLogger]; any other is an error. Plans of one Redis
// with different sources need different names. The error joins all errors: a nil client or source, a life below a second,
// and those of the options.
func NewPlans(rdb redis.UniversalClient, life time.Duration, source func(ctx context.Context, client string) ([]Limit, error),
	opts ...Option) (*Plans, error) {
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
	p := &Plans{
		source: source, life: life, rdb: rdb, config: cfg, prefix: "plan:{", keys: clientkey.NewText(cfg.secret),
		questions: make(chan struct{}, maxQuestions), calls: make(chan struct{}, maxPlanCalls),
		fresh: map[string]*plan{}, old: map[string]*plan{}, flights: map[string]*planFlight{},
	}
	if cfg.prefix != "" {
		p.prefix = cfg.prefix + ":" + p.prefix
	}
	if cfg.name != "" {
		p.keyName = Key(cfg.name, "")
	}
	return p, nil
}

// Limits returns the limits of a client, for [WithLimitFunc].
//
// The error is [ErrUnknownClient], [ErrNoKey] for an empty client, or the context's, or wraps [ErrUnavailable] if the
// source fails and nothing is known from before. The limits are not to be changed.
func (p *Plans) Limits(ctx context.Context, client string) ([]Limit, error) {
	if client == "" {
		return nil, fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	now, key := time.Now(), p.key(client)
	p.mu.Lock()
	known, flight := p.knownLocked(key), p.flights[key]
	switch {
	case now.Before(known.until):
		p.mu.Unlock()
		p.count(known, false)
		return known.limits, known.err
	case flight == nil && len(p.flights) >= maxFlights:
		p.mu.Unlock()
		known = fallback(errSourceBusy, known, known)
		p.count(known, false)
		return known.limits, known.err
	case flight == nil:
		flight = &planFlight{done: make(chan struct{})}
		p.flights[key] = flight
		lent := dispatch.Lend(context.Background(), ctx)
		defer lent.End()
		go p.fetch(lent, client, key, flight, known)
	}
	p.mu.Unlock()

	patience := sourceTimeout
	switch {
	case known.serves(now) && known.invalid: // a change is worth waiting for
		patience = min(patience, max(p.config.timeout, planRecheck))
	case known.serves(now):
		patience = min(patience, p.config.timeout)
	}
	asked := false
	select {
	case <-flight.done:
		known, asked = flight.plan, flight.asked
	case <-time.After(patience):
		known = fallback(errSourceLate, known, known)
	case <-ctx.Done():
		return nil, ended(ctx)
	}
	p.count(known, asked)
	return known.limits, known.err
}

// Invalidate has the source asked again at a client's next request.
//
// Call it when the change can be read from the source. It takes effect at once in this process, and within a second in
// others that reach Redis; one that does not goes by the old plan until it does, for its life at most. While the source is
// slow to answer, the old plan serves. The error is that of Redis; then others may go by the old plan until its life ends.
func (p *Plans) Invalidate(ctx context.Context, client string) error {
	if client == "" {
		return fmt.Errorf("%w: the client is empty", ErrNoKey)
	}
	key := p.key(client)
	p.mu.Lock()
	invalid := *p.knownLocked(key)
	invalid.until, invalid.invalid, invalid.ahead = time.Time{}, true, true
	p.keepLocked(key, &invalid)
	delete(p.flights, key) // its answer may be old
	p.mu.Unlock()
	if err := p.forget(ctx, key); err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// key returns a client's key in Redis, by which the process knows it too.
func (p *Plans) key(client string) string {
	return string(append(p.keys.Append([]byte(p.prefix), p.keyName, client), '}'))
}

// knownLocked returns what the process knows of a client, and keeps it.
func (p *Plans) knownLocked(key string) *plan {
	if known := p.fresh[key]; known != nil {
		return known
	}
	known := p.old[key]
	if known == nil {
		return &plan{}
	}
	p.keepLocked(key, known)
	return known
}

// keepLocked keeps a plan, and forgets those that were not used for longest if there are too many.
func (p *Plans) keepLocked(key string, known *plan) {
	if len(p.fresh) >= maxProcessPlans {
		p.old, p.fresh = p.fresh, map[string]*plan{}
	}
	p.fresh[key] = known
}

// fetch finds a plan, and answers all who wait for it. The context has the values of the first of them, for the
// spans of the calls to Redis, and no end. The source gets none: what one request has there, such as a transaction, is not for the others.
func (p *Plans) fetch(ctx context.Context, client, key string, flight *planFlight, known *plan) {
	flight.plan, flight.asked = p.find(ctx, client, key, known)
	p.mu.Lock()
	if p.flights[key] == flight { // there was no Invalidate
		delete(p.flights, key)
		p.keepLocked(key, flight.plan)
	}
	p.mu.Unlock()
	close(flight.done)
}

// find reads a plan in Redis, or in the source if Redis does not have it, and reports whether the source has answered. The
// process knows one plan, Redis has kept another.
func (p *Plans) find(ctx context.Context, client, key string, known *plan) (found *plan, asked bool) {
	kept, err := p.lookUp(ctx, key)
	switch now := time.Now(); {
	case kept.lives(now) && !known.ahead:
		return kept.goBy(now, 0), false
	case err != nil && known.lives(now):
		return known.goBy(now, 0), false
	}

	mayAsk := p.waiting.Add(1) <= maxWaiting && take(p.questions, sourceTimeout)
	p.waiting.Add(-1)
	if !mayAsk {
		return fallback(errSourceBusy, known, &kept), false
	}
	token, err := p.takeToken(ctx, key)
	began := time.Now()
	// If Redis cannot store plans, the source is still asked only once per life. Either Redis cannot tell of an Invalidate, or
	// the same token says that there was none.
	if known.lives(began) && !known.stored && (err != nil || token == known.token) {
		<-p.questions
		return known.goBy(began, 0), false
	}
	answer, err := p.askSource(client)
	now := time.Now()
	p.log(err, now.Sub(began))
	if err != nil {
		return fallback(err, known, &kept), false
	}
	answer.ends, answer.token = now.Add(p.life), token
	answer.rested = answer.err == nil && p.rests(now, known, &kept)
	if token != "" {
		answer.stored, err = p.store(ctx, key, answer)
		answer.invalid = err == nil && !answer.stored // there was an Invalidate since
	}
	answer.ahead = known.ahead && !answer.stored
	if answer.invalid {
		return &answer, true
	}
	return answer.goBy(time.Now(), 0), true
}

// rests reports whether Redis keeps a client's plan longer than its life. That is for clients that come again after a
// life, as anybody can invent clients and ask for each once.
func (p *Plans) rests(now time.Time, known, kept *plan) bool {
	switch {
	case known.rested || kept.rested:
		return true
	case !known.serves(now) || known.err != nil || now.Before(known.ends):
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.restsSince) >= planRest {
		p.restsSince, p.restsLeft = now, maxRested
	}
	p.restsLeft--
	return p.restsLeft >= 0
}

// lives reports whether the plan may be used without asking the source.
func (p *plan) lives(now time.Time) bool { return !p.invalid && now.Before(p.ends) }

// serves reports whether the plan may be used while the source fails.
func (p *plan) serves(now time.Time) bool { return now.Before(p.ends.Add(planRest)) }

// goBy returns the plan as the process uses it until it reads it in Redis again, or until rest after the plan's life.
func (p *plan) goBy(now time.Time, rest time.Duration) *plan {
	next := *p
	next.until = now.Add(planRecheck)
	if end := p.ends.Add(rest); end.Before(next.until) {
		next.until = end
	}
	return &next
}
