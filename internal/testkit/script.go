package testkit

import (
	"cmp"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Script is a script as a limiter sends it.
type Script struct {
	Source string
	Keys   []string
	Args   []any // texts
}

// ScriptOf returns what a limiter sends for one decision under limits of an algorithm.
func ScriptOf(a ginlimit.Algorithm, limits ...ginlimit.Limit) (Script, error) {
	sent, err := recordScripts(a, func(l *Limiter) error {
		_, err := l.Allow(context.Background(), "k", limits...)
		return err
	})
	if err != nil {
		return Script{}, err
	}
	return sent[0], nil
}

// ScriptOfLimit returns the script of a decision under one limit, and what it is told of the limit.
func ScriptOfLimit(a ginlimit.Algorithm, l ginlimit.Limit) (source string, args []any, err error) {
	s, err := ScriptOf(a, l)
	if err != nil {
		return "", nil, err
	}
	return s.Source, s.Args[3:6:6], nil // after the verb, the cost and the charges
}

// ScriptSources returns every script that limiters send. It has time pass, so a test in a bubble calls it before.
func ScriptSources(t testing.TB) redisstore.Sources {
	t.Helper()
	s, err := sources()
	require.NoError(t, err)
	return s
}

// sources returns every script that limiters send, each from a decision that needs it.
var sources = sync.OnceValues(func() (s redisstore.Sources, err error) {
	day := ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil))
	for i, r := range [redisstore.Limits]struct {
		algorithm ginlimit.Algorithm
		limits    []ginlimit.Limit
	}{
		redisstore.Tokens:         {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerHour(5)}},
		redisstore.Fixed:          {ginlimit.FixedWindow, []ginlimit.Limit{ginlimit.PerHour(5)}},
		redisstore.Sliding:        {ginlimit.SlidingWindow, []ginlimit.Limit{ginlimit.PerHour(5)}},
		redisstore.TokensCalendar: {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerHour(5), day}},
		redisstore.Mixed:          {ginlimit.SlidingWindow, []ginlimit.Limit{ginlimit.PerHour(5), day}},
	} {
		alone, failed := ScriptOf(r.algorithm, r.limits...)
		err = errors.Join(err, failed)
		s.Server[i] = alone.Source
		slots, failed := scriptsOfSlots(r.algorithm, r.limits...)
		err = errors.Join(err, failed)
		s.Server[redisstore.WithBanOrSlots+i] = slots[0]
		if i < redisstore.Single {
			s.Node[i], failed = scriptOfNode(r.algorithm, r.limits[0])
			err = errors.Join(err, failed)
		}
	}
	slots, failed := scriptsOfSlots(ginlimit.TokenBucket)
	s.Server[redisstore.BanOrSlots], s.Server[redisstore.Report] = slots[0], slots[1]
	err = errors.Join(err, failed)
	s.Server[redisstore.Lease], failed = scriptOfLeases()
	err = errors.Join(err, failed)
	shares, failed := ScriptOfShares(ginlimit.PerHour(5))
	s.Server[redisstore.Tenants] = shares.Source
	return s, errors.Join(err, failed)
})

// ScriptOfShares returns what a limiter sends for one decision on a limit that tenants share.
func ScriptOfShares(limits ...ginlimit.PolicyOption) (Script, error) {
	sent, err := recordScripts(ginlimit.TokenBucket, func(l *Limiter) error {
		shares := ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 })
		p, err := l.Limiter.Policy("shares", append(limits, shares)...)
		if err == nil {
			_, err = p.Share("tenant", 1).Allow(context.Background(), "k")
		}
		return err
	})
	if err != nil {
		return Script{}, err
	}
	return sent[0], nil
}

// scriptOfLeases returns the source of the script that takes tokens ahead. It has two keys for one
// limit.
func scriptOfLeases() (string, error) {
	sent, err := recordScripts(ginlimit.TokenBucket, func(l *Limiter) error {
		p, err := l.Limiter.Policy("leases", ginlimit.PerSecond(1000), ginlimit.WithLease(time.Minute))
		for range 10 {
			if err == nil {
				_, err = p.Allow(context.Background(), "k")
			}
		}
		return err
	})
	for _, s := range sent {
		if len(s.Keys) == 2 {
			return s.Source, nil
		}
	}
	return "", cmp.Or(err, errors.New("nothing was taken ahead"))
}

// scriptsOfSlots returns the sources of the script that takes a slot, and of the one that reports that
// it is free.
func scriptsOfSlots(algorithm ginlimit.Algorithm, limits ...ginlimit.Limit) (sources [2]string, err error) {
	sent, err := recordScripts(algorithm, func(l *Limiter) error {
		p, err := l.named("slots", append(limits, ginlimit.InFlight(1)))
		if err != nil {
			return err
		}
		slot, err := p.Reserve(context.Background(), "k", 1)
		if err == nil {
			slot.Release()
		}
		return err
	})
	if err != nil {
		return sources, err
	}
	return [2]string{sent[0].Source, sent[len(sent)-1].Source}, nil
}

// scriptOfNode returns the source of the script that decides on several keys of a cluster's node. They
// are asked for while the only connection is in use.
func scriptOfNode(a ginlimit.Algorithm, limit ginlimit.Limit) (string, error) {
	r, mini := newScriptRecord()
	defer mini.Close()
	const addr = "127.0.0.1:6379"
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, PoolSize: 1, Dialer: dialer(mini),
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	defer rdb.Close()
	limiter, err := ginlimit.NewLimiter(rdb, Patient(), ginlimit.WithReplicas(1),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return "", err
	}
	defer limiter.Close()
	l := Wrap(limiter, a)
	ctx := context.Background()
	if _, err := l.Allow(ctx, "first", limit); err != nil { // which nodes there are
		return "", err
	}
	hold := r.begin()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() { _, _ = l.Allow(ctx, fmt.Sprint("client ", i), limit) })
		for range 1000 {
			if i == 0 && r.count() > 0 || i > 0 && l.Stats().Queued >= i {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	close(hold)
	all.Wait()
	sent, err := r.sent()
	for _, s := range sent {
		if len(s.Source) > 2 && s.Source[:2] == "#!" {
			return s.Source, nil
		}
	}
	return "", cmp.Or(err, errors.New("no call for several keys was sent"))
}

// recordScripts returns the scripts that a limiter sends for calls, until it is closed.
func recordScripts(a ginlimit.Algorithm, calls func(l *Limiter) error) ([]Script, error) {
	r, mini := newScriptRecord()
	defer mini.Close()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: dialer(mini)})
	defer rdb.Close()
	l, err := ginlimit.NewLimiter(rdb, Patient(), ginlimit.WithReplicas(1), ginlimit.WithFailureMode(ginlimit.FailClosed),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(calls(Wrap(l, a)), l.Close()); err != nil {
		return nil, err
	}
	return r.sent()
}

// dialer connects to a Redis in the process, in a bubble too.
func dialer(mini *miniredis.Miniredis) redisstore.Dialer {
	return func(context.Context, string, string) (net.Conn, error) { return mini.Dial() }
}

// scriptRecord is what a Redis in the process was sent.
type scriptRecord struct {
	mu      sync.Mutex
	sources map[string]string // by SHA-1
	calls   []scriptCall
	hold    chan struct{} // not nil: calls wait for it
}

type scriptCall struct {
	sha  string
	rest []string // the number of keys, the keys, the arguments
}

func newScriptRecord() (*scriptRecord, *miniredis.Miniredis) {
	r, mini := &scriptRecord{sources: map[string]string{}}, miniredis.NewMiniRedis()
	mini.SetTime(time.Now())
	mini.ClockTTL(true)
	if conn, err := mini.Dial(); err == nil { // which starts it
		_ = conn.Close()
	}
	mini.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		switch {
		case command == "SCRIPT" && len(args) == 2 && strings.EqualFold(args[0], "LOAD"):
			r.load(args[1])
		case command == "EVALSHA":
			r.call(args[0], args[1:])
		case command == "EVAL":
			r.call(r.load(args[0]), args[1:])
		}
		return false
	})
	return r, mini
}

func (r *scriptRecord) load(source string) (sha string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sha = fmt.Sprintf("%x", sha1.Sum([]byte(source)))
	r.sources[sha] = source
	return sha
}

func (r *scriptRecord) call(sha string, rest []string) {
	r.mu.Lock()
	r.calls = append(r.calls, scriptCall{sha, slices.Clone(rest)})
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

// begin forgets the calls so far, and holds those to come until the channel is closed.
func (r *scriptRecord) begin() (hold chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls, r.hold = nil, make(chan struct{})
	return r.hold
}

// count returns how many calls there are.
func (r *scriptRecord) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// sent returns the scripts of all calls.
func (r *scriptRecord) sent() (all []Script, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		source, ok := r.sources[c.sha]
		keys, bad := strconv.Atoi(c.rest[0])
		if !ok || bad != nil {
			return nil, fmt.Errorf("a script was called that nobody has brought: %v", c)
		}
		s := Script{Source: source, Keys: c.rest[1 : 1+keys]}
		for _, arg := range c.rest[1+keys:] {
			s.Args = append(s.Args, arg)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, errors.New("no script was sent")
	}
	return all, nil
}
