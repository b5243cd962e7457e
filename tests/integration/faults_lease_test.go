package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Every fault is met by limiters with leases too, beside those without and at the same time.

const (
	// leaseLife is longer than the timeout, so that a lease outlives the first decision that Redis does not make.
	leaseLife     = 100 * time.Millisecond
	leasedPrefix  = "leased"
	leasedCallers = 3 // of each limiter
	leasedPace    = 20 * time.Millisecond
)

// leasedLimit is the limit of the one key that all of them ask for, each at about twice its rate:
// so each has charges of its own left in the bucket when it closes, and gives tokens back. Half a
// second leaves room for leases; a few pass the burst.
var leasedLimit = ginlimit.PerSecond(100).WithBurst(500)

// lessees are limiters with leases: processes of one bucket, each of which does something else without Redis. The last
// one closes when the fault has begun.
type lessees struct {
	limiters []*testkit.Limiter
	policies []ginlimit.FailureMode
	key      string
	log      testkit.Buffer

	mu   sync.Mutex
	seen [][]seen // by limiter

	held  int           // how many of them held a lease when the fault began
	close time.Duration // how long Close took in the fault
	ended atomic.Bool   // it has returned
	back  time.Duration // as that of the outage

	leased, decisions, fullest int // see judge
}

func newLessees(t *testing.T, s *site, opts ...ginlimit.LimiterOption) *lessees {
	t.Helper()
	a := &lessees{policies: append(slices.Clone(policies), ginlimit.FailClosed), key: cmp.Or(s.leased, "hot")}
	a.seen = make([][]seen, len(a.policies))
	for i, policy := range a.policies {
		own := append([]ginlimit.LimiterOption{
			ginlimit.WithLease(leaseLife), ginlimit.WithFailureMode(policy),
			ginlimit.WithPrefix(leasedPrefix), ginlimit.WithReplicas(outageReplicas),
			ginlimit.WithLogger(slog.New(slog.NewTextHandler(&a.log, nil))),
		}, opts...)
		limiter := testkit.Must(ginlimit.NewLimiter(s.rdb, own...))
		if i > 0 { // the first one learns that Redis' clock runs
		}
		a.limiters = append(a.limiters, testkit.Wrap(limiter, ginlimit.TokenBucket))
	}
	return a
}

// remaining are the limiters that do not close in the fault.
func (a *lessees) remaining() []*testkit.Limiter { return a.limiters[:len(policies)] }

// begin has callers ask all limiters until the end, and the last one until it is closed.
func (a *lessees) begin(all *sync.WaitGroup, start time.Time, end <-chan struct{}) {
	for i, limiter := range a.limiters {
		for caller := range leasedCallers {
			all.Go(func() {
				own := callOften(limiter, a.key, caller, start, end)
				a.mu.Lock()
				defer a.mu.Unlock()
				a.seen[i] = append(a.seen[i], own...)
			})
		}
	}
}

// callOften takes one token at a time, and now and then several, at a steady pace until the end or
// until the limiter is closed. Now and then it asks for a fresh key: such a decision may be the
// first to find Redis lost, which ends the lease of the other key.
func callOften(l *testkit.Limiter, key string, caller int, start time.Time, end <-chan struct{}) []seen {
	var all []seen
	ctx := context.Background()
	ticker := time.NewTicker(leasedPace)
	defer ticker.Stop()
	for i := caller; ; i++ {
		s := seen{key: hotKey}
		began := time.Now()
		s.at = began.Sub(start)
		switch i % 8 {
		case 3, 7:
			s.key = freshKey
			s.r, s.err = l.Allow(ctx, fmt.Sprintf("caller %d, call %d", caller, i), leasedLimit)
		case 0:
			s.r, s.err = l.AllowN(ctx, key, 2, leasedLimit)
		case 4:
			s.r, s.err = l.AllowUpTo(ctx, key, 3, leasedLimit)
		default:
			s.r, s.err = l.Allow(ctx, key, leasedLimit)
		}
		s.took = time.Since(began)
		if errors.Is(s.err, dispatch.ErrClosed) {
			return all
		}
		all = append(all, s)
		select {
		case <-ticker.C:
		case <-end:
			return all
		}
	}
}

// awaitLeases lets the callers go on until two processes hold a lease, or for a while if the key is
// used up, and notes how many do.
func (a *lessees) awaitLeases(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	testkit.BecomesTrue(ctx.Done(), func() bool {
		a.held = 0
		for _, limiter := range a.limiters {
			a.held += limiter.Stats().Leases
		}
		return a.held >= 2
	})
}

// leave has the last one close, while its callers go on.
func (a *lessees) leave(all *sync.WaitGroup) {
	all.Go(func() {
		start := time.Now()
		_ = a.limiters[len(policies)].Close()
		a.close = time.Since(start)
		a.ended.Store(true)
	})
}

// wait waits until all decide in Redis.
func (a *lessees) wait(ctx context.Context, t *testing.T, mended time.Time) {
	for i, limiter := range a.remaining() {
		assert.True(t, testkit.BecomesTrue(ctx.Done(), inRedis(limiter)), "%s, with leases", a.policies[i])
	}
	a.back = time.Since(mended)
	assert.True(t, testkit.BecomesTrue(ctx.Done(), a.ended.Load), "Close, with leases")
}

// isLost reports whether an error says that Redis is lost, which ends all leases of the process.
// What Redis replies to one call, and a queue that is full, do not.
func isLost(err error) bool {
	return err != nil && !redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrQueueFull)
}

// judge asserts what must hold in every run. It counts the decisions, those from leases, and the
// tokens of the fullest span.
func (a *lessees) judge(t *testing.T, s *site, o outage) {
	t.Helper()
	var admitted []admission
	degraded, locally := 0, 0
	for i, policy := range a.policies {
		a.decisions += len(a.seen[i])
		for _, d := range a.seen[i] {
			ended := d.at + d.took
			switch {
			case d.err != nil:
				assert.Equal(t, ginlimit.FailClosed, policy)
				assert.ErrorIs(t, d.err, ginlimit.ErrUnavailable)
				degraded++
			case d.r.Source == ginlimit.FromLocal:
				assert.Equal(t, ginlimit.FailLocal, policy)
				if d.key == hotKey {
					locally += d.r.Granted
				}
				degraded++
			case d.r.Source == ginlimit.FromOpen:
				assert.Equal(t, ginlimit.FailOpen, policy)
				assert.True(t, d.r.Allowed)
				degraded++
			case d.key == hotKey && d.r.Granted > 0:
				admitted = append(admitted, admission{d.at, ended, d.r.Granted})
			}
			if d.r.Source == ginlimit.FromLease {
				a.leased++
				assert.True(t, d.r.Allowed)
			}
			settled := d.at > o.settled && ended < o.mending
			if settled && (s.degrades == freshKey || s.degrades == hotKey && d.key == hotKey) {
				assert.True(t, d.err != nil || d.r.Source != ginlimit.FromRedis && d.r.Source != ginlimit.FromLease,
					"at %s of %s to %s, with leases: %+v", d.at, o.failed, o.mending, d)
			}
		}
		if policy == ginlimit.FailClosed {
			assertNothingOutlivesRedis(t, a.seen[i])
		}
	}
	lost := loss{from: o.failed, to: o.mended, bursts: s.bursts}
	if a.close >= ginlimit.DefaultTimeout { // Redis hangs: it may give back later what Close has given up
		lost.tokens = int(leaseLife * time.Duration(leasedLimit.Rate) / leasedLimit.Period)
	}
	a.fullest = assertNoMoreThan(t, leasedLimit, admitted, lost)
	most := leasedLimit.Burst/outageReplicas + int(o.ended.Seconds()*float64(leasedLimit.Rate/outageReplicas)) + 1
	assert.LessOrEqual(t, locally, most, "admitted locally, with leases")
	if s.degrades != someKeys && s.degrades != noKey { // while a slot migrates, a call with leases is on two nodes
		assert.Positive(t, degraded, "decisions that Redis did not make, with leases")
	}
	assert.LessOrEqual(t, strings.Count(a.log.String(), "\n"), max(40, a.decisions/100), a.log.String())
	for _, secret := range []string{"hot", "caller ", outagePassword} {
		assert.NotContains(t, a.log.String(), secret)
	}
	say(t,
		"with leases: %d of %d decisions from leases, %d leases when the fault began, %d of a burst of "+
			"%d in the fullest span, back after %s, Close took %s",
		a.leased, a.decisions, a.held, a.fullest, leasedLimit.Burst, a.back, a.close)
}

// row is the line of the table of those with leases.
func (a *lessees) row() string {
	tooks := a.tooks()
	return fmt.Sprintf("%s | %s | %.0f %% | %s | %s | %d of %d |", inMS(percentile(tooks, 99)), inMS(tooks[len(tooks)-1]),
		100*float64(a.leased)/float64(max(1, a.decisions)), inMS(a.back), inMS(a.close), a.fullest, leasedLimit.Burst)
}

// assertNothingOutlivesRedis asserts that no decision is from a lease that is older than one that
// has failed as Redis was lost: Redis has answered in between, about a call that ended after that
// failure began.
func assertNothingOutlivesRedis(t *testing.T, all []seen) {
	t.Helper()
	for _, leased := range all {
		if leased.r.Source != ginlimit.FromLease {
			continue
		}
		failed := time.Duration(-1) // when the last one began that had failed by then
		for _, d := range all {
			if isLost(d.err) && d.at+d.took < leased.at {
				failed = max(failed, d.at)
			}
		}
		assert.True(t, failed < 0 || slices.ContainsFunc(all, func(d seen) bool {
			return d.key == hotKey && d.err == nil && d.r.Source == ginlimit.FromRedis &&
				d.at+d.took >= failed && d.at <= leased.at+leased.took
		}), "Redis was lost at %s: %+v", failed, leased)
	}
}

// tooks are how long all decisions took, sorted.
func (a *lessees) tooks() []time.Duration {
	var all []time.Duration
	for _, own := range a.seen {
		for _, d := range own {
			all = append(all, d.took)
		}
	}
	slices.Sort(all)
	return all
}

// assertInTime asserts what a busy machine may not keep: the timeout, the return to Redis within a
// second, and how long Close takes.
func (a *lessees) assertInTime(t *testing.T) {
	t.Helper()
	assert.LessOrEqual(t, percentile(a.tooks(), 99), ginlimit.DefaultTimeout+20*time.Millisecond, "with leases")
	assert.LessOrEqual(t, a.back, time.Second, "with leases")
	assert.LessOrEqual(t, a.close, time.Second+ginlimit.DefaultTimeout+100*time.Millisecond, "with leases")
}

// hotNames are the keys in Redis that are asked for at more than their rate.
func hotNames() (names []string) {
	for _, policy := range policies {
		names = append(names, strings.Replace(testkit.RedisKey("hot", hotLimit), "ginlimit", policy.String(), 1))
	}
	return append(names, strings.Replace(testkit.RedisKey("hot", leasedLimit), "ginlimit", leasedPrefix, 1))
}

// another returns another client of the servers that a client has, as another process would have it.
func another(t *testing.T, rdb redis.UniversalClient) redis.UniversalClient {
	t.Helper()
	var next redis.UniversalClient
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		next = redis.NewClusterClient(&redis.ClusterOptions{Addrs: rdb.Options().Addrs})
	case *redis.Ring:
		next = redis.NewRing(&redis.RingOptions{Addrs: rdb.Options().Addrs,
			HeartbeatFrequency: rdb.Options().HeartbeatFrequency})
	case *redis.Client:
		if rdb.Options().Addr == "FailoverClient" { // it does not tell its Sentinels
			return rdb
		}
		next = redis.NewClient(&redis.Options{Addr: rdb.Options().Addr})
	}
	require.NotNil(t, next)
	t.Cleanup(func() { _ = next.Close() })
	return next
}
