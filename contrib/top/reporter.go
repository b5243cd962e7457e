// Package top finds the clients that ginlimit denies most, and those that use most, of each policy and over all
// processes.
//
//	reporter, err := top.New(rdb)
//	if err != nil {
//		panic(err)
//	}
//	defer reporter.Close()
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithClientObserver(reporter.Observe))
//
// Each process counts in bounded memory and reports to Redis every few seconds, where reports are kept for ten
// minutes. [Denied] reads them in any process, and [Used] with [WithUsage].
package top

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math/bits"
	mathrand "math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

const (
	DefaultInterval = 5 * time.Second // between two reports of a process

	minutes     = 10  // are kept in Redis, beside the current one
	maxPolicies = 256 // are counted in a process
	maxShards   = 8   // of a policy's counts
	maxSeen     = 1000
	maxTokens   = 1 << 40         // of one event, so that no sum is too large
	patience    = 2 * time.Second // for Redis, in one round of reports
)

// Reporter counts the denials of a process, and what clients use, and reports both to Redis. [New] makes one; one is enough for all
// limiters of a prefix. It is safe for concurrent use.
type Reporter struct {
	config
	rdb      redis.UniversalClient
	process  string
	keys     clientkey.Text
	shards   uint32 // a power of two
	number   uint64 // of the last report
	warned   time.Time
	stop     chan struct{}
	stopped  chan struct{}
	once     sync.Once
	mu       sync.Mutex // guards changes of policies
	policies atomic.Pointer[map[string]*policy]
	full     atomic.Bool // more policies were seen than are counted
}

// policy is what a process counts of one policy.
type policy struct {
	name    string
	prefix  string // of its clients' keys
	shards  [maxShards]shard
	pending []*report // the oldest first; only the goroutine that reports uses them
}

// shard is a part of the counts, so that goroutines on several cores do not wait for each other.
type shard struct {
	mu       sync.Mutex
	sketches [kinds]*sketch // nil if nothing was counted
	outcomes outcomes
	_        [64]byte // no two shards share a cache line
}

// New returns a reporter of nothing yet, with a goroutine that ends with [Reporter.Close]. Redis need not be
// reachable. The error joins all faults, each a [ginlimit.OptionError].
func New(rdb redis.UniversalClient, opts ...Option) (*Reporter, error) {
	c := config{prefix: ginlimit.DefaultPrefix, interval: DefaultInterval, logger: slog.Default(), index: -1}
	isNil := rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil()
	c.require("rdb", !isNil, "the Redis client is nil")
	for i, opt := range opts {
		if c.index = i; opt != nil {
			opt(&c)
		} else {
			c.require("", false, "option %d is nil", i+1)
		}
	}
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	r := &Reporter{
		config: c, rdb: rdb, process: rand.Text()[:13], keys: clientkey.NewText(c.secret),
		shards: 1 << bits.Len(uint(min(runtime.GOMAXPROCS(0), maxShards)-1)),
		stop:   make(chan struct{}), stopped: make(chan struct{}),
	}
	r.policies.Store(&map[string]*policy{})
	go r.run()
	return r, nil
}

// Observe counts a denial of a client, and what is charged. It is for [ginlimit.WithClientObserver]. Dry runs are
// not counted, nor clients of events without one, nor policies after the first 256.
func (r *Reporter) Observe(_ context.Context, e ginlimit.Event, client string) {
	counted, n := charged, int64(0)
	switch {
	case e.Outcome == ginlimit.OutcomeDenied:
		counted, n = denials, 1
	case !r.usage:
	case e.Charged < 0:
		counted, n = returned, -int64(e.Charged)
	default:
		n = int64(e.Charged)
	}
	if n == 0 && !r.outcomes || e.DryRun || e.Outcome > ginlimit.OutcomeSettled {
		return
	}
	r.count(e.Name, e.Outcome, client, counted, min(n, maxTokens))
}

// count counts an outcome, and n of a client.
func (r *Reporter) count(name string, outcome ginlimit.Outcome, client string, counted kind, n int64) {
	p := (*r.policies.Load())[name]
	if p == nil {
		if p = r.add(name); p == nil {
			return
		}
	}
	hashed := len(client) > maxKey
	if hashed && n > 0 {
		client = string(r.keys.Append(nil, p.prefix, client))
	}
	s := p.lock(r.shards)
	defer s.mu.Unlock()
	if outcome < ginlimit.OutcomeSettled && (outcome == ginlimit.OutcomeDenied || r.outcomes) {
		s.outcomes[outcome]++
	}
	if n > 0 && client != "" {
		if s.sketches[counted] == nil {
			s.sketches[counted] = &sketch{}
		}
		s.sketches[counted].add(client, hashed, n)
	}
}

// lock returns a locked shard: the first one while no other goroutine has it, so that few events need but one
// sketch.
func (p *policy) lock(shards uint32) *shard {
	if p.shards[0].mu.TryLock() {
		return &p.shards[0]
	}
	s := &p.shards[mathrand.Uint32()&(shards-1)]
	s.mu.Lock()
	return s
}

// add adds a policy, or returns nil if there are too many.
func (r *Reporter) add(name string) *policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.policies.Load()
	if p := old[name]; p != nil {
		return p
	}
	if len(old) == maxPolicies {
		r.full.Store(true)
		return nil
	}
	p := &policy{name: name, prefix: clientkey.Join(name, "")}
	policies := map[string]*policy{name: p}
	for name, p := range old {
		policies[name] = p
	}
	r.policies.Store(&policies)
	return p
}

// take returns what was counted since it was called last.
func (p *policy) take(keys clientkey.Text) (all summary) {
	for i := range p.shards {
		shard := &p.shards[i]
		shard.mu.Lock()
		sketches, outcomes := shard.sketches, shard.outcomes
		shard.sketches, shard.outcomes = [kinds]*sketch{}, [len(outcomes)]int64{}
		shard.mu.Unlock()
		part := summary{outcomes: outcomes}
		for i, sketch := range sketches {
			if sketch == nil {
				continue
			}
			r := &part.of[i]
			r.rest = sketch.rest()
			for _, c := range sketch.heap {
				r.clients = append(r.clients, client{p.text(keys, c), c.count, c.err})
			}
		}
		if !part.isEmpty() {
			all = all.merge(part)
		}
	}
	return all
}

// text returns a client's key as Redis has it in reports.
func (p *policy) text(keys clientkey.Text, c *counter) string {
	if c.hashed {
		return c.key
	}
	if text := keys.Append(nil, p.prefix, c.key); text[0] == '#' {
		return string(text)
	}
	return "=" + c.key
}

// Close reports what was counted last and ends the reporter; later events are not reported. It waits for Redis
// no longer than 4 s.
func (r *Reporter) Close() error {
	r.once.Do(func() { close(r.stop) })
	select {
	case <-r.stopped:
	case <-time.After(2 * patience):
	}
	return nil
}
