// Package redisstore keeps buckets in Redis, on one server or several.
//
// It owns the way there: connections, pipelines, the nodes of a cluster, and what is known of their
// errors. Only this package sends go-redis' commands. It knows no order of a script's arguments,
// which package wire has, and of batches only what package dispatch asks of a transport.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/throttle"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// singleKeyTime is how long commands have one client's keys each, after Redis has refused a command
// for several clients and accepted it for one.
const singleKeyTime = time.Minute

// Config configures a store.
type Config struct {
	Prefix  string // of every key, without the colon that ends it
	Timeout time.Duration
	Log     *slog.Logger
	Process string // names this process as the holder of slots; without a space
	Scripts *wire.Scripts
	// Outage returns what the log line of an outage says beside its cause. It may be nil.
	Outage func() []any
	// Dropped becomes true when nobody calls the store any more. It may be nil.
	Dropped *atomic.Bool
}

// Store keeps buckets in Redis, one key each: prefix:{key}:ID.
type Store struct {
	Config
	rdb            redis.UniversalClient
	sender         sender                  // of rdb's commands
	prefix         string                  // up to and including the brace
	name           string                  // the same for stores of the same keys
	loaded         [wire.Count]atomic.Bool // SCRIPT LOAD was sent
	singleKeyUntil atomic.Int64            // in Unix seconds; until then no command has several clients' keys
	nodes          *nodes
	errorReplies   throttle.Log
	pipelines      sync.Pool // of *pipeline
}

// New returns the store of a client. If the client is nil, the store must not be used.
func New(rdb redis.UniversalClient, c Config) *Store {
	s := &Store{Config: c, rdb: rdb, prefix: "{"}
	if c.Prefix != "" {
		s.prefix = c.Prefix + ":{"
	}
	s.pipelines.New = func() any { return new(pipeline) }
	s.sender = newSender(rdb, c.Timeout)
	s.nodes = newNodes(s)
	s.name = fmt.Sprintf("%s %s", identify(rdb), s.prefix)
	return s
}

// String names the servers and the prefix. Stores of the same name have the same keys.
func (s *Store) String() string { return s.name }

// Close closes the store, and returns when it has stopped or soon after.
func (s *Store) Close() {
	s.nodes.close()
}

// Do applies a call to all its buckets or to none. While a cluster's hash slot migrates, Redis denies
// a call on several keys with TRYAGAIN.
func (s *Store) Do(ctx context.Context, c *dispatch.Call) error {
	wire.SetNames(c, s.prefix)
	if s.nodes.nodeForKey != nil {
		return s.nodes.do(ctx, c)
	}
	return s.nodes.unrouted.Do(ctx, c)
}

// DoAll is [Store.Do] of several calls at the same time. It returns the error of each.
func (s *Store) DoAll(ctx context.Context, calls []*dispatch.Call) []error {
	errs, start := make([]error, len(calls)), time.Now()
	servers := map[*dispatch.Dispatcher][]int{}
	for i, c := range calls {
		wire.SetNames(c, s.prefix)
		d := s.nodes.dispatcher(&c.Names[0])
		servers[d] = append(servers[d], i)
	}
	var ends []func()
	for d, of := range servers {
		ask := func() (struct{}, error) {
			s.nodes.doAll(ctx, d, calls, of, errs, start)
			return struct{}{}, nil
		}
		if len(servers) == 1 {
			_, _ = ask()
			break
		}
		done := goroutine.Isolate(ask) // the caller's context may panic
		ends = append(ends, func() {
			if err := (<-done).Err; err != nil {
				for _, at := range of {
					errs[at] = err
				}
			}
		})
	}
	for _, end := range ends {
		end()
	}
	return errs
}

// Together reports whether one script may decide on several clients' keys, all or none. It needs a
// single server.
func (s *Store) Together() bool { return s.nodes.single && s.mayCoalesce() }

func (s *Store) mayCoalesce() bool { return s.singleKeyUntil.Load() <= time.Now().Unix() }

// Separate disables commands with several clients' keys for a while.
func (s *Store) Separate() { s.singleKeyUntil.Store(time.Now().Add(singleKeyTime).Unix()) }

// logErrorReply logs, at most once a minute, that Redis refuses commands.
func (s *Store) logErrorReply(err error) {
	if !s.errorReplies.Allow() {
		return
	}
	code := reason(err)
	if code == "MOVED" && s.nodes.single {
		code = "MOVED: use redis.NewClusterClient"
	}
	s.Log.Warn("ginlimit: Redis refuses decisions", "code", code)
}

// load loads a script into Redis once. If Redis refuses SCRIPT LOAD, EVAL will do.
func (s *Store) load(ctx context.Context, script int) error {
	loaded := &s.loaded[script]
	if !loaded.CompareAndSwap(false, true) {
		return nil
	}
	load := command{Cmder: redis.NewStringCmd(ctx, "script", "load", s.Scripts[script]().Source)}
	load.SetStepCount(1)
	err := s.sender.Process(ctx, &load)
	if err == nil || IsErrorReply(err) {
		return nil
	}
	loaded.Store(false)
	return err
}

// RefusesKeys reports whether an error is the refusal of a command for its keys, which may be on several servers: the
// script has not run. What happens while it runs, such as OOM, is no such error.
func RefusesKeys(err error) bool {
	if !IsCommandError(err) {
		return false
	}
	for _, code := range []string{"OOM", "WRONGTYPE", "READONLY", "NOREPLICAS", "MISCONF", "NOPERM", "CLUSTERDOWN",
		"MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, code) {
			return false
		}
	}
	text := err.Error()
	return !strings.Contains(text, "user_script") && !strings.Contains(text, "running script") &&
		!strings.Contains(text, "compiling script")
}

// serverErrors are the prefixes of error replies that concern every command, without ERR, which
// go-redis leaves out.
var serverErrors = []string{"LOADING", "BUSY", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN",
	"max number of clients", unauthenticated}

// unservedSlot begins the reply about keys of a hash slot that no server has. Others have one.
const unservedSlot = "CLUSTERDOWN Hash slot not served"

// IsErrorReply reports whether an error is an error reply of Redis.
func IsErrorReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// IsCommandError reports whether an error is Redis' reply to one command; other commands may
// succeed.
func IsCommandError(err error) bool {
	if !IsErrorReply(err) {
		return false
	}
	if redis.HasErrorPrefix(err, unservedSlot) {
		return true
	}
	for _, code := range serverErrors {
		if redis.HasErrorPrefix(err, code) {
			return false
		}
	}
	return true
}
