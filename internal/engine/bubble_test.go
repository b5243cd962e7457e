package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// timeout is that of the engines in these tests.
const timeout = 50 * time.Millisecond

// bench is a Redis in a bubble of testing/synctest, for engines that are processes of their own.
type bench struct {
	*testkit.Bubble
	Sent     atomic.Int64 // calls of scripts that decide or report, or pipelines of such calls
	Scripts  atomic.Int64 // these scripts
	Cut      atomic.Bool  // every script ends with an error of the network
	CutAfter atomic.Bool  // the same, but Redis has run it
	Delay    atomic.Int64 // of every script, in nanoseconds
	Late     atomic.Int64 // the same, after Redis has run it
	Refused  func()       // is called after Redis has refused a script, if it is not nil

	scripts   *wire.Scripts
	processes atomic.Int64
}

// inBubble runs a test in a bubble with a Redis.
func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	scripts := testkit.Scripts(t)
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { test(t, &bench{Bubble: b, scripts: scripts}) })
}

func inBubbleRun(t *testing.T, name string, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// client returns one more client of the Redis.
func (b *bench) client(t testing.TB) *redis.Client {
	rdb := b.Connect(t)
	rdb.AddHook(testkit.Hook(func(cmds []redis.Cmder, send func() error) error {
		for _, cmd := range cmds {
			if strings.HasPrefix(cmd.Name(), "eval") {
				b.Scripts.Add(1)
			}
		}
		return send()
	}))
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		b.Sent.Add(1)
		time.Sleep(time.Duration(b.Delay.Load()))
		if b.Cut.Load() {
			return io.ErrUnexpectedEOF
		}
		err := send()
		time.Sleep(time.Duration(b.Late.Load()))
		if err != nil || !b.CutAfter.Load() {
			if err != nil && b.Refused != nil {
				b.Refused()
			}
			return err
		}
		return io.ErrUnexpectedEOF
	}))
	return rdb
}

// start returns an engine on a client, which remembers so many denials.
func (b *bench) start(t testing.TB, rdb redis.UniversalClient, c engine.Config, denials int) *engine.Engine {
	if c.Timeout == 0 {
		c.Timeout = timeout
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	e := engine.NewRedis(c, rdb, denials, redisstore.Config{
		Prefix: "test", Log: slog.New(slog.DiscardHandler), Scripts: b.scripts,
		Process: fmt.Sprint("P", b.processes.Add(1)),
	})
	t.Cleanup(e.Close)
	return e
}

// redis returns an engine whose store is Redis.
func (b *bench) redis(t testing.TB) *engine.Engine {
	return b.start(t, b.client(t), engine.Config{}, 64)
}

// replica returns an engine whose store is Redis, of one of two processes.
func (b *bench) replica(t testing.TB) *engine.Engine {
	return b.start(t, b.client(t), engine.Config{Replicas: 2}, 64)
}

// turns returns an engine with a client whose keys may be on several servers.
func (b *bench) turns(t testing.TB) *engine.Engine {
	return b.start(t, struct{ redis.UniversalClient }{b.client(t)}, engine.Config{}, 64)
}

// local returns an engine whose store is this process.
func local(t testing.TB) *engine.Engine {
	e := engine.NewLocal(engine.Config{Timeout: timeout})
	t.Cleanup(e.Close)
	return e
}

// onEveryStore runs a test with an engine of each store.
func onEveryStore(t *testing.T, test func(t *testing.T, b *bench, e *engine.Engine)) {
	t.Helper()
	t.Parallel()
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"redis": (*bench).redis, "in turn": (*bench).turns,
		"process": func(_ *bench, t testing.TB) *engine.Engine { return local(t) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) { test(t, b, start(b, t)) })
		})
	}
}

// outage has Redis answer nobody, and an engine know it.
func (b *bench) outage(t testing.TB, e *engine.Engine) {
	b.Cut.Store(true)
	for range 3 {
		one := ask("breaker", setOf(perMinute(100)))
		one.Failure = engine.FailClosed
		require.ErrorIs(t, takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1)), engine.ErrUnavailable)
		time.Sleep(timeout)
	}
}

// repair has Redis answer again, and waits until the engine knows it.
func (b *bench) repair() {
	b.Cut.Store(false)
	time.Sleep(2 * time.Second)
}

// limit returns a token bucket of so many tokens per period in milliseconds.
func limit(id string, n, period int64) bucket.Bucket {
	b, _ := bucket.New(bucket.Token, id, n, n, period)
	return b
}

func perMinute(n int64) bucket.Bucket { return limit("m", n, 60_000) }
func perHour(n int64) bucket.Bucket   { return limit("h", n, 3_600_000) }

// setOf returns the set of limits, and of a ban and slots if they are among them.
func setOf(resources ...bucket.Bucket) *rules.Set {
	s := new(rules.Set)
	var ban, slots *bucket.Bucket
	for i := range resources {
		switch b := &resources[i]; b.Kind {
		case bucket.Ban:
			ban = b
		case bucket.Slots:
			slots = b
		default:
			s.Add(*b)
		}
	}
	s.Guard(ban, slots)
	return s
}

// daily returns the set of a quota of n a day.
func daily(n int64) *rules.Set {
	s := new(rules.Set)
	s.AddCalendar(calendar.Rule{Unit: calendar.Day, Zone: time.UTC}, n)
	return s
}

// prohibiting returns a set that denies everything.
func prohibiting() *rules.Set {
	s := new(rules.Set)
	s.Prohibit(calendar.Rule{})
	return s
}

// ask returns an Ask about a client that no process decides on without Redis.
func ask(client string, set *rules.Set) engine.Ask {
	return engine.Ask{
		Subject: engine.Subject{Client: client, Set: set}, Failure: engine.FailClosed, Report: rules.ReportEvery,
	}
}

// scoped returns an Ask about a part of its set.
func scoped(ask engine.Ask, scope rules.Scope) engine.Ask {
	ask.Set = setOf(ask.Set.Buckets(scope)...)
	return ask
}

// takeUpTo takes as many tokens as there are, up to n.
func takeUpTo(ctx context.Context, e *engine.Engine, n int64, ask *engine.Ask, answer *engine.Answer) error {
	asks, answers := []engine.Ask{*ask}, []engine.Answer{*answer}
	asks[0].UpTo = true
	err := takeN(ctx, e, n, asks, answers)
	*answer = answers[0]
	return err
}

// takeN takes n tokens of each Ask.
func takeN(ctx context.Context, e *engine.Engine, n int64, asks []engine.Ask, answers []engine.Answer) error {
	return takeInLine(ctx, e, n, asks, answers, engine.Queue{})
}

// takeInLine takes n tokens of each Ask, and waits for what is missing.
func takeInLine(ctx context.Context, e *engine.Engine, n int64, asks []engine.Ask, answers []engine.Answer,
	q engine.Queue) error {
	return takeRequest(ctx, e, n, q, engine.Request{Asks: asks, Answers: answers})
}

// takeRequest takes n tokens of each Ask of a request, or none of any, as soon as they are there.
func takeRequest(ctx context.Context, e *engine.Engine, n int64, q engine.Queue, r engine.Request) error {
	for i := range r.Asks {
		r.Asks[i].N, r.Asks[i].Queue = n, q
	}
	return e.Take(ctx, r)
}

// waitN waits for n tokens.
func waitN(ctx context.Context, e *engine.Engine, n int64, ask *engine.Ask, answer *engine.Answer) error {
	asks, answers := []engine.Ask{*ask}, []engine.Answer{*answer}
	err := takeInLine(ctx, e, n, asks, answers, engine.Queue{Length: engine.Endless})
	*ask, *answer = asks[0], answers[0]
	return err
}

// take takes n tokens, and returns the answer.
func take(t testing.TB, e *engine.Engine, n int64, ask engine.Ask) engine.Answer {
	t.Helper()
	var answers [1]engine.Answer
	require.NoError(t, takeN(t.Context(), e, n, []engine.Ask{ask}, answers[:]))
	return answers[0]
}

// left returns how many tokens are left.
func left(t testing.TB, e *engine.Engine, ask engine.Ask) int64 {
	t.Helper()
	ask = scoped(ask, rules.Limits)
	ask.Settles = false
	var answers [1]engine.Answer
	require.NoError(t, e.Peek(t.Context(), &ask, &answers[0]))
	return answers[0].Remaining
}

// goes runs a function in the background, and returns what it sends when it returns.
func goes(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	synctest.Wait()
	return done
}

const ms = time.Millisecond
