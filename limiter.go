package ginlimit

import (
	"context"
	"errors"
	"math/bits"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

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
	names     names                 // of its policies
	noClient  redisstore.Throttle   // of warnings of keys that no request counts under
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

// maxNames is how many names a limiter remembers, and of how many periods the algorithm.
const maxNames = 1024

// algorithms count a policy's limits of one period, as bits.
type algorithms uint8

// String returns one of the algorithms.
func (a algorithms) String() string { return Algorithm(bits.TrailingZeros8(uint8(a))).String() }

// algorithms returns by which algorithms the limits of a period are counted.
func (s *limitSet) algorithms(period time.Duration) (all algorithms) {
	for _, limit := range s.limits {
		if limit.Period == period {
			all |= 1 << limit.Algorithm
		}
	}
	return all
}

// names are how a limiter's policies count, to find policies of one name that count in different
// ways. Its mutex guards it.
type names struct {
	mu         sync.Mutex
	keys       map[string]string          // where the first policy's KeyFunc is written; at most maxNames
	algorithms map[namedPeriod]algorithms // of the first policy; at most maxNames
	warned     map[string]bool            // names that algorithms has
	rooms      map[namedPeriod][]room     // different ones
	roomCount  int                        // of rooms, at most maxNames
	plans      map[string]bool            // names of [Plans]; at most maxNames
}

// addPlans remembers the name of Plans, or returns an error if others have it.
func (n *names) addPlans(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.plans[name] {
		return invalid("NewPlans: the limiter has plans named %q already; give one of them another name", name)
	}
	if n.plans == nil {
		n.plans = map[string]bool{}
	}
	if len(n.plans) < maxNames {
		n.plans[name] = true
	}
	return nil
}

// writtenAt returns the source line of a function. The compiler may copy a function literal, so its
// address says less.
func writtenAt(f KeyFunc) string {
	code := reflect.ValueOf(f).Pointer()
	file, line := runtime.FuncForPC(code).FileLine(code)
	return file + ":" + strconv.Itoa(line)
}

// otherKey returns an error if an earlier policy of the name has a KeyFunc of another
// source line. Functions of one line, such as two of [ByHeader], cannot be told apart.
func (n *names) otherKey(name string, f KeyFunc) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	first, known := n.keys[name]
	if !known || f == nil || first == writtenAt(f) {
		return nil
	}
	return otherKey(name)
}

// keep remembers the KeyFunc of a name, or returns the error of otherKey.
func (n *names) keep(name string, f KeyFunc) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	first, known := n.keys[name]
	switch {
	case known && first != writtenAt(f):
		return otherKey(name)
	case known || len(n.keys) >= maxNames:
		return nil
	case n.keys == nil:
		n.keys = map[string]string{}
	}
	n.keys[name] = writtenAt(f)
	return nil
}

func otherKey(name string) error {
	return invalid("policies named %q have different keys; give one of them another name", name)
}

type namedPeriod struct {
	name   string
	period time.Duration
}

// room is how many tokens of a limit's burst a policy keeps for leases.
type room struct {
	namedPeriod        // its name is that of the keys
	policy      string // its name
	rate, burst int
	tokens      int64
	by          string // what bounds them
}

// differs reports whether two policies of a name keep other room of the same limit, or only one of
// them keeps any of a limit for the same period.
func (r room) differs(other room) bool {
	if r.rate == other.rate && r.burst == other.burst {
		return r != other
	}
	return (r.tokens > 0) != (other.tokens > 0)
}

// keepRooms remembers what a policy keeps for leases, or returns an error if that differs from what
// an earlier one keeps: then more than the limit might be admitted.
func (n *names) keepRooms(all []room) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, own := range all {
		rooms := n.rooms[own.namedPeriod]
		if i := slices.IndexFunc(rooms, own.differs); i >= 0 {
			errs = append(errs, invalid("policies named %q share the limit per %s, but keep %d and %d tokens of its "+
				"burst for leases, or lease at other rates; give both the same limits and WithLease, or one of them "+
				"another name", own.policy, periodText(own.period), rooms[i].tokens, own.tokens))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	for _, own := range all {
		rooms := n.rooms[own.namedPeriod]
		if n.roomCount == maxNames || slices.Contains(rooms, own) {
			continue
		}
		if n.rooms == nil {
			n.rooms = map[namedPeriod][]room{}
		}
		n.rooms[own.namedPeriod] = append(rooms, own)
		n.roomCount++
	}
	return nil
}

// otherAlgorithm reports whether none of a policy's algorithms is one of the first policy of a name
// and a period, once for each name.
func (n *names) otherAlgorithm(key namedPeriod, own algorithms) (first algorithms, differs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first, known := n.algorithms[key]
	switch {
	case !known && len(n.algorithms) < maxNames:
		if n.algorithms == nil {
			n.algorithms, n.warned = map[namedPeriod]algorithms{}, map[string]bool{}
		}
		n.algorithms[key] = own
	case known && first&own == 0 && !n.warned[key.name]:
		n.warned[key.name] = true
		return first, true
	}
	return first, false
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
