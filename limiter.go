package ginlimit

import (
	"context"
	"errors"
	"sync"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/redis/go-redis/v9"
)

// Limiter makes policies that count in one place: see [NewLimiter] and [NewLocal]. The zero Limiter returns
// errors. It is safe for concurrent use.
type Limiter struct {
	defaults  config // of its policies
	engine    *engine.Engine
	rdb       redis.UniversalClient // nil without Redis
	questions sync.Pool             // of *question
	addresses gintrust.Warnings     // of addresses that clients can spoof, or that Gin cannot read
	policies  names
	plans     names
	noClient  redisstore.Throttle // of warnings of keys that no request counts under
}

var errNotMade = invalid("the limiter was not made by NewLimiter or NewLocal")

// Close ends the limiter: further decisions return [ErrClosed], and every Wait returns. It waits for
// decisions in flight, gives back leased tokens and frees the slots that no request holds. Call it when the
// requests have ended, as slots still held become free only 10 s later. The Redis client stays open. A second
// call does nothing. If Redis hangs, Close takes up to 1.2 s with the default timeout, and 2.2 s if hooks of
// the client hang too.
func (l *Limiter) Close() error {
	if l != nil && l.engine != nil {
		l.engine.Close()
	}
	return nil
}

// Ping reports whether Redis answers within [WithTimeout], for readiness checks: every master of a cluster
// and every shard that a ring uses. The error names the cause and wraps [ErrUnavailable], or is the
// context's. Decisions do not depend on Ping; without Redis [WithFailureMode] decides.
func (l *Limiter) Ping(ctx context.Context) error {
	if l == nil || l.engine == nil {
		return errNotMade
	}
	return l.engine.Ping(ctx)
}

// maxNames is how many policies, and how many [Plans], a limiter makes.
const maxNames = 1 << 16

// names are the names of a limiter's policies, or of its plans.
type names struct {
	mu    sync.Mutex
	taken map[string]bool
}

// take takes a name, unless there are faults, to which it adds its own: the name is taken, or there are too many.
// It returns all of them as one error.
func (n *names) take(name, taken, full string, faults []error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.taken[name]:
		faults = append(faults, invalid(taken, name))
	case len(n.taken) == maxNames:
		faults = append(faults, invalid(full, maxNames))
	}
	err := errors.Join(faults...)
	if err == nil {
		if n.taken == nil {
			n.taken = map[string]bool{}
		}
		n.taken[name] = true
	}
	return err
}

// Transition is a change of a circuit breaker's state.
type Transition struct {
	To     string // "open", "half_open" or "closed"
	Reason string // what has opened it, as in [Event].Reason; "" if it has not opened
}

// Stats are the figures of a limiter. Batches, Decisions, Leased and Transitions count from when it was made.
// For [NewLocal] only Slots, Bans and LocalBuckets are not zero. A closed limiter has no LostServers.
type Stats struct {
	Servers      int                   // of Redis that decisions are sent to; one while they are not known yet
	LostServers  int                   // of these, with an open circuit breaker
	Batches      uint64                // sent to Redis
	Decisions    uint64                // in these, with the calls by which processes count each other
	InFlight     int                   // batches that are sent and not answered, overdue ones among them
	Queued       int                   // decisions that wait for a batch
	Leases       int                   // keys of which this process has tokens that it took ahead
	Leased       uint64                // decisions by such tokens
	Replicas     int                   // processes or limiters that share the limits without Redis: see [WithReplicas]
	Slots        int                   // held by requests in flight in this process: see [InFlight]
	Bans         int                   // that this process knows of and that last, at most 65,536: see [WithBan]
	Remembered   int                   // denials in the deny cache that are still valid
	LocalBuckets int                   // in this process, full ones that are not forgotten yet among them
	Transitions  map[Transition]uint64 // of the circuit breakers of all servers; nil if there were none
}

// Stats returns the current figures, for metrics: each call scans the deny cache, the leases and the bans.
func (l *Limiter) Stats() Stats {
	if l == nil || l.engine == nil {
		return Stats{}
	}
	of := l.engine.Stats()
	s := Stats{
		Servers: of.Redis.Servers, LostServers: of.Redis.Open, Batches: of.Redis.Batches, Decisions: of.Redis.Calls,
		InFlight: of.Redis.InFlight, Queued: of.Redis.Queued,
		Leases: of.Leases, Leased: of.Leased, Slots: of.Slots, Bans: of.Bans, Replicas: of.Replicas,
		Remembered: of.Denials, LocalBuckets: of.Local,
	}
	for t, n := range of.Redis.Transitions {
		if s.Transitions == nil {
			s.Transitions = map[Transition]uint64{}
		}
		s.Transitions[Transition(t)] = n
	}
	return s
}
