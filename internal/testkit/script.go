package testkit

import (
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
	"github.com/ginlimit/ginlimit/internal/wire"
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

// Scripts returns every script that limiters send. It has time pass, so a test in a bubble calls it before.
func Scripts(t testing.TB) *wire.Scripts {
	t.Helper()
	all, err := scripts()
	require.NoError(t, err)
	return all
}

// scripts returns every script. They have script.lua in common, which is in the script that a limiter sends.
var scripts = sync.OnceValues(func() (*wire.Scripts, error) {
	const begin = "-- The token bucket: "
	sent, err := ScriptOf(ginlimit.TokenBucket, ginlimit.PerHour(5))
	_, token, _ := strings.Cut(sent.Source, begin)
	token, _, _ = strings.Cut(token, "local kind = {\n")
	return wire.New(begin + token), err
})

// ScriptSource returns the source of a script by its number.
func ScriptSource(t testing.TB, number int) string {
	t.Helper()
	return Scripts(t)[number]().Source
}

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
	r.mu.Unlock()
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
