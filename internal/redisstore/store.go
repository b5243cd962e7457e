// Package redisstore keeps buckets in Redis, on one server or several. It alone knows go-redis'
// commands.
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

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// separateTime is for how long calls have the keys of one client each, after Redis has denied a
// call for several clients and done it for one.
const separateTime = time.Minute

// Config is what a store is made of.
type Config struct {
	Prefix  string // of every key; not "" ends it with a colon
	Timeout time.Duration
	Log     *slog.Logger
	Process string // names this process in the slots that it holds; without a space
	Sources Sources
	// Changed is called after the store has given tokens back by itself; err says whether it could.
	Changed func(key []byte, hash uint64, err error)
}

// Store keeps buckets in Redis, one key each: prefix:{key}:ID.
type Store struct {
	rdb          redis.UniversalClient
	carriers     carriers // of the commands of rdb
	shards       ringShards
	prefix       string // up to and with the brace
	name         string // what it has in common with stores of the same keys
	process      string
	scripts      [Scripts]script
	ofNode       [Single]script       // of calls for several clients on a node of a cluster
	loaded       [Scripts]atomic.Bool // Redis was asked to load the script
	separate     atomic.Int64         // until when no call has keys of several clients, in Unix seconds
	nodes        *nodes
	migration    migration
	log          *slog.Logger
	errorReplies Throttle
	pipelines    sync.Pool // of *pipeline
}

// script is how a script is called.
type script struct {
	source   string
	bySHA    [2]any
	bySource [2]any
}

func newScript(source string) script {
	sha := redis.NewScript(source).Hash() // computed here, not in Redis
	return script{source, [2]any{"evalsha", sha}, [2]any{"eval", source}}
}

// New returns the store of a client, which may be nil: then the store is for nobody.
func New(rdb redis.UniversalClient, c Config) *Store {
	if c.Prefix != "" {
		c.Prefix += ":"
	}
	s := &Store{rdb: rdb, prefix: c.Prefix + "{", process: c.Process, log: c.Log}
	s.migration.init(&c)
	s.carriers.init(rdb, c.Timeout, c.Log)
	for i, source := range c.Sources.Server {
		s.scripts[i] = newScript(source)
	}
	for i, source := range c.Sources.Node {
		s.ofNode[i] = newScript(source)
	}
	s.nodes = newNodes(s, c.Timeout)
	if ring, ok := rdb.(*redis.Ring); ok && ring != nil {
		s.shards.see(ring) // before it finds that one is down
	}
	s.name = fmt.Sprintf("%s %s", serversOf(rdb), s.prefix)
	return s
}

// String names the servers and the prefix: stores of one name have the same keys.
func (s *Store) String() string { return s.name }

// Close returns when the store has stopped working, or soon after.
func (s *Store) Close() {
	s.migration.close()
	s.nodes.close()
	s.carriers.end()
}

// do has a call done by the server of its key.
func (s *Store) do(ctx context.Context, c *dispatch.Call) error {
	for i := range c.Names {
		c.Names[i] = s.appendName(c.Names[i][:0], c.KeyOf(i), c.Buckets[i].ID)
	}
	for {
		if err := s.nodes.dispatcher(&c.Names[0]).Do(ctx, c); err != dispatch.ErrRetired {
			return err
		}
	}
}

// appendName appends what a bucket of a key is called in Redis.
func (s *Store) appendName(name dispatch.Name, key []byte, id string) dispatch.Name {
	name = append(append(name, s.prefix...), key...)
	return append(append(name, "}:"...), id...)
}

// Together reports whether one script may decide on the keys of several clients, all or none: they
// are on one server.
func (s *Store) Together() bool { return s.nodes.one && s.mayShare() }

func (s *Store) mayShare() bool { return s.separate.Load() <= time.Now().Unix() }

// Separate has every call have the keys of one client, for a while.
func (s *Store) Separate() { s.separate.Store(time.Now().Add(separateTime).Unix()) }

// send has a batch done, where calls may share commands as sharing says. The error says that the
// server answers nobody.
func (s *Store) send(ctx context.Context, b *dispatch.Batch, sharing *sharing) error {
	for _, m := range b.Groups {
		if err := s.load(ctx, scriptOf(m.Buckets)); err != nil {
			for _, m := range b.Groups {
				m.Err = err
			}
			return unanswered(b)
		}
	}
	x, ok := s.pipelines.Get().(*pipeline)
	if !ok {
		x = &pipeline{store: s}
	}
	defer s.pipelines.Put(x)
	defer x.reset()
	if len(b.Groups) == 1 || !s.mayShare() {
		sharing = nil
	}
	x.plan(b.Groups, sharing)
	refused := x.run(ctx)
	var alone []*dispatch.Group
	for _, m := range b.Groups {
		if m.Err == errRetryAlone {
			alone = append(alone, m)
		}
	}
	if alone != nil {
		x.plan(alone, nil)
		x.run(ctx)
		for _, m := range alone {
			if refused && m.Err == nil {
				s.Separate() // what is denied together and done alone
			}
		}
	}
	for _, m := range b.Groups {
		if m.Err != nil && IsCommandError(m.Err) && !isTryAgain(m.Err, Keys(m.Call)) {
			s.logErrorReply(m.Err)
		}
	}
	return unanswered(b)
}

// unanswered returns the error that says that the server answers nobody, and nil if it has replied.
func unanswered(b *dispatch.Batch) error {
	if err := b.Groups[0].Err; err != nil && !IsCommandError(err) {
		return err
	}
	return nil
}

// logErrorReply logs, once in a while, that Redis refuses what it is asked.
func (s *Store) logErrorReply(err error) {
	if !s.errorReplies.Allow() {
		return
	}
	code := reason(err)
	if code == "MOVED" && s.nodes.one {
		code = "MOVED: use redis.NewClusterClient"
	}
	s.log.Warn("ginlimit: Redis refuses decisions", "code", code)
}

// load has Redis keep a script, once. Where Redis is reached and denies that, EVAL will do.
func (s *Store) load(ctx context.Context, script int) error {
	loaded := &s.loaded[script]
	if !s.nodes.one || loaded.Load() || !loaded.CompareAndSwap(false, true) {
		return nil // of several servers each learns it by EVAL
	}
	load := command{Cmder: redis.NewStringCmd(ctx, "script", "load", s.scripts[script].source), bounded: s.carriers.bounded()}
	load.SetStepCount(1)
	err := s.rdb.Process(ctx, &load)
	if err == nil || IsErrorReply(err) {
		return nil
	}
	loaded.Store(false)
	return err
}

// Throttle allows a log line at most once a minute. The zero Throttle has allowed none yet.
type Throttle struct{ last atomic.Pointer[time.Time] }

// Allow reports whether a line may be written now.
func (t *Throttle) Allow() bool {
	now, last := time.Now(), t.last.Load()
	return (last == nil || now.Sub(*last) >= time.Minute) && t.last.CompareAndSwap(last, &now)
}

var errRetryAlone = errors.New("to be asked for alone")

// serverErrors begin the replies by which a server says that it decides for nobody now.
var serverErrors = []string{"LOADING", "BUSY", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "ERR max number of clients"}

// IsErrorReply reports whether an error is what Redis replied.
func IsErrorReply(err error) bool {
	var refusal redis.Error
	return errors.As(err, &refusal)
}

// IsCommandError reports whether an error is what Redis replied to one command, where another one
// may be done.
func IsCommandError(err error) bool {
	if !IsErrorReply(err) {
		return false
	}
	for _, code := range serverErrors {
		if redis.HasErrorPrefix(err, code) {
			return false
		}
	}
	return true
}

// Keys returns how many keys of Redis a call is about.
func Keys(c *dispatch.Call) int {
	if c.Op.Records == bucket.WithRecords {
		return len(c.Buckets) + bucket.Counted(c.Buckets)
	}
	return len(c.Buckets)
}

// isTryAgain reports whether Redis has denied a call since it is about several keys, of which some
// are on another node already. A call for one is done.
func isTryAgain(err error, keys int) bool {
	return keys > 1 && redis.HasErrorPrefix(err, "TRYAGAIN")
}

// isMoving reports whether Redis has denied a call on one bucket since its hash slot is moving, so
// often that the client gave up. It was not done.
func isMoving(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN")
}

// replyCode returns the first word of an error reply, which is its code. Redis writes codes in
// capitals.
func replyCode(reply redis.Error) string {
	code, _, _ := strings.Cut(reply.Error(), " ")
	if code == "" || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return fmt.Sprintf("%T", reply)
	}
	return code
}
