package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Histories of concurrent calls are linearizable (Herlihy and Wing, 1990): each call takes effect
// at one moment between its beginning and its end, as if calls came in single file. A call without
// an answer may take effect at any moment from its beginning on, or never.
// What a Reserve without an answer took is given back after that.

// slowLimit is one whose buckets regain no token while a test runs: then a bucket is the number of
// tokens taken from it. So is a window of slowWindow, whatever becomes of its tokens a day later.
var (
	slowLimit  = ginlimit.PerDay(1).WithBurst(20)
	slowWindow = ginlimit.PerDay(20)
)

type verb uint8

const (
	allowN verb = iota
	allowUpTo
	peek
	refund
	reserve // followed by settle, if it is granted
	settle  // twice at once, of which one counts
	undo    // gives back what a reserve without an answer took, once the answer comes
)

// operation is what a caller asked for.
type operation struct {
	key     string
	verb    verb
	n       int
	process int
	actual  [2]int // what settle replaces n by
	of      rune   // of a reserve without an answer, and of its undo
}

// outcome is what it was told.
type outcome struct {
	result      ginlimit.Result
	lost        bool // there was no answer
	reservation *ginlimit.Reservation
	unsettled   [2]bool // settle has failed
}

// bucket is how many tokens are taken, and which reservations without an answer took some.
type bucket struct {
	taken int
	late  string
}

// sequentialBucket is the model.
var sequentialBucket = porcupine.NondeterministicModel{
	Partition: byKey,
	Init:      func() []any { return []any{bucket{}} },
	Step: func(state, input, output any) []any {
		b, in, out := state.(bucket), input.(operation), output.(outcome)
		granted, after := 0, b
		switch room := max(0, slowLimit.Burst-b.taken); in.verb {
		case settle:
			return b.settled(in, out)
		case undo:
			if strings.ContainsRune(b.late, in.of) {
				after = bucket{b.taken - in.n, strings.Replace(b.late, string(in.of), "", 1)}
			}
			return []any{b, after}
		case allowN, reserve:
			if in.n <= room {
				granted = in.n
			}
		case allowUpTo:
			granted = min(in.n, room)
		case refund:
			after.taken = max(0, b.taken-in.n)
		}
		if after.taken += granted; granted > 0 && in.of != 0 {
			after.late += string(in.of)
		}
		r := out.result
		switch {
		case out.lost:
			return []any{b, after}
		case in.verb != refund && r.Granted != granted:
			return nil
		// of memory, it may be a second old
		case in.verb != refund && r.Source == ginlimit.FromRedis && r.Remaining != max(0, slowLimit.Burst-after.taken):
			return nil
		}
		return []any{after}
	},
	DescribeOperation: describe,
}

// byKey has each key be checked alone.
func byKey(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	keys := map[string][]porcupine.Operation{}
	for _, o := range history {
		key := o.Input.(operation).key
		keys[key] = append(keys[key], o)
	}
	return slices.Collect(maps.Values(keys))
}

func describe(input, output any) string {
	in, out := input.(operation), output.(outcome)
	return fmt.Sprintf("%d: %s %d (%d): %s granted %d, remaining %d, lost %t", in.process,
		in.key, in.verb, in.n, out.result.Source,
		out.result.Granted, out.result.Remaining, out.lost)
}

// do does an operation.
func do(l *testkit.Limiter, o operation, limit ginlimit.Limit) (out outcome, err error) {
	ctx := context.Background()
	switch o.verb {
	case allowN:
		out.result, err = l.AllowN(ctx, o.key, o.n, limit)
	case allowUpTo:
		out.result, err = l.AllowUpTo(ctx, o.key, o.n, limit)
	case peek:
		out.result, err = l.Peek(ctx, o.key, limit)
	case refund:
		err = l.Refund(ctx, o.key, o.n, limit)
	case reserve:
		out.reservation, err = l.Reserve(ctx, o.key, o.n, limit)
		out.result = out.reservation.Result()
	}
	out.lost = err != nil
	return out, err
}

// disturbance is done to a server again and again while calls are made.
type disturbance func(t *testing.T, addr string, process *os.Process, proxy *testkit.Proxy)

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	t.Parallel()
	usual, reserving := []verb{allowN, allowUpTo, peek, refund}, []verb{reserve, reserve, reserve, allowN, allowUpTo, peek}
	type row struct {
		disturb disturbance
		verbs   []verb
		opts    []ginlimit.LimiterOption
	}
	rows := map[string]row{
		"fixed window":   {cutConnections, usual, []ginlimit.LimiterOption{testkit.WithAlgorithm(ginlimit.FixedWindow)}},
		"sliding window": {cutConnections, usual, []ginlimit.LimiterOption{testkit.WithAlgorithm(ginlimit.SlidingWindow)}},
		// a refund elsewhere shows within a second
		"denials remembered": {cutConnections, usual[:3], []ginlimit.LimiterOption{ginlimit.WithDenyCache(65_536)}},
	}
	for name, disturb := range map[string]disturbance{
		"undisturbed":       undisturbed,
		"connections cut":   cutConnections,
		"scripts flushed":   flushScripts,
		"slow Redis":        delayReplies,
		"frozen Redis":      freezeServer,
		"replies swallowed": swallowReplies,
	} {
		rows[name], rows["reservations, "+name] = row{disturb, usual, nil}, row{disturb, reserving, nil}
	}
	for name, row := range rows {
		for _, direct := range []bool{false, true} {
			testkit.Run(t, fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				h := newHistory(t, direct, row.opts...)
				if h.verbs = row.verbs; strings.HasSuffix(name, "window") {
					h.limit = slowWindow
				}
				h.record(t, row.disturb)
				h.check(t, sequentialBucket.ToModel())
			})
		}
	}
}

const (
	linearizableTime    = 2 * time.Second
	linearizableAnswers = 500
	processes           = 3
	lostPerKey          = 4 // about
)

// history is what the callers of several processes have done and seen.
type history struct {
	addr   string
	server *os.Process
	proxy  *testkit.Proxy
	start  func() *testkit.Limiter // of a process
	do     func(*testkit.Limiter, operation, ginlimit.Limit) (outcome, error)

	connect func() redis.UniversalClient
	limit   ginlimit.Limit
	verbs   []verb
	callers int // of each process
	keys    int // at a time
	seed    uint64
	// read is the client's ReadTimeout, which ends calls before the limiter's timeout does: those
	// whose replies are lost end soon, so that there are answers between two disturbances.
	read time.Duration

	mu         sync.Mutex
	operations []porcupine.Operation
	lost       atomic.Int64
}

// newHistory starts a server, to be asked through a proxy.
func newHistory(t *testing.T, direct bool, opts ...ginlimit.LimiterOption) *history {
	addr, server := testkit.StartRedisProcess(t)
	proxy, way := testkit.StartProxy(t, addr)
	opts = append([]ginlimit.LimiterOption{
		ginlimit.WithDenyCache(0), ginlimit.WithTimeout(ginlimit.DefaultTimeout),
	}, opts...)
	h := &history{
		addr: addr, server: server, proxy: proxy, limit: slowLimit, callers: 4, keys: 4, seed: uint64(time.Now().UnixNano()),
		read: 200 * time.Millisecond, do: do,
	}
	h.connect = func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: way, ContextTimeoutEnabled: direct, ReadTimeout: h.read})
	}
	h.start = func() *testkit.Limiter {
		rdb := h.connect()
		t.Cleanup(func() { _ = rdb.Close() })
		return testkit.NewLimiter(t, rdb, opts...)
	}
	return h
}

// record has callers of all processes do random operations for a while.
func (h *history) record(t *testing.T, disturb disturbance) {
	say(t, "seed %d", h.seed)
	var answered atomic.Int64
	var all sync.WaitGroup
	var limiters []*testkit.Limiter
	for range processes {
		limiters = append(limiters, h.start())
	}
	start := time.Now()
	goesOn := func() bool { // on a busy machine, until there is enough to check
		passed := time.Since(start)
		enough := answered.Load() >= linearizableAnswers
		return passed < linearizableTime || !enough && passed < 10*linearizableTime
	}
	for process, limiter := range limiters {
		for j := range h.callers {
			all.Go(func() {
				caller := process*h.callers + j
				random := rand.New(rand.NewPCG(h.seed, uint64(caller)))
				for goesOn() {
					// Keys change as time goes by and as calls are lost, so that the calls without an answer of one key are few.
					in := operation{
						key: fmt.Sprintf("%d, %d",
							int64(time.Since(start)/(100*time.Millisecond))+h.lost.Load()/lostPerKey, random.IntN(h.keys)),
						verb: h.verbs[random.IntN(len(h.verbs))], n: 1 + random.IntN(4), process: process,
					}
					called := time.Since(start).Nanoseconds()
					out, err := h.do(limiter, in, h.limit)
					returned := time.Since(start).Nanoseconds()
					if err != nil {
						assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
						returned = time.Hour.Nanoseconds() // it may happen later
						<-time.After(time.Duration(random.IntN(20)) * time.Millisecond)
					} else {
						answered.Add(1)
					}
					h.add(porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
					<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
					if out.result.Granted > 0 && in.verb == reserve {
						h.settle(t, caller, in, out.reservation, random, start)
					}
				}
			})
		}
	}
	for time.Since(start) < linearizableTime-200*time.Millisecond {
		disturb(t, h.addr, h.server, h.proxy)
		<-time.After(50 * time.Millisecond)
	}
	all.Wait()
}

func (h *history) add(o porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !o.Output.(outcome).lost {
		h.operations = append(h.operations, o)
		return
	}
	h.lost.Add(1)
	in := o.Input.(operation)
	if in.verb == reserve {
		in.of = rune(len(h.operations) + 1)
		o.Input = in
		in.verb = undo
		h.operations = append(h.operations, porcupine.Operation{
			ClientId: o.ClientId, Input: in, Call: o.Call, Output: o.Output, Return: o.Return,
		})
	}
	h.operations = append(h.operations, o)
}

// check requires that a model explains what was seen.
func (h *history) check(t *testing.T, model porcupine.Model) {
	t.Helper()
	answers := 0
	for _, o := range h.operations {
		if !o.Output.(outcome).lost {
			answers++
		}
	}
	lost := int(h.lost.Load())
	say(t, "%d calls, %d of them without an answer", answers+lost, lost)
	require.GreaterOrEqual(t, answers, linearizableAnswers, "there is too little to check")
	result := porcupine.CheckOperationsTimeout(model, h.operations, time.Minute)
	if result == porcupine.Ok {
		return
	}
	for _, part := range byKey(h.operations) {
		if porcupine.CheckOperationsTimeout(model, part, time.Second) == porcupine.Ok {
			continue
		}
		for _, o := range part {
			t.Logf("%d to %d µs, process %s", o.Call/1000, o.Return/1000, describe(o.Input, o.Output))
		}
	}
	require.Equal(t, porcupine.Ok, result)
}

func undisturbed(*testing.T, string, *os.Process, *testkit.Proxy) {}

func cutConnections(_ *testing.T, _ string, _ *os.Process, proxy *testkit.Proxy) {
	proxy.CutAll()
	proxy.Cut.Store(false)
}

func flushScripts(t *testing.T, addr string, _ *os.Process, _ *testkit.Proxy) {
	assert.NoError(t, testkit.Connect(t, addr).ScriptFlush(t.Context()).Err())
}

func delayReplies(_ *testing.T, _ string, _ *os.Process, proxy *testkit.Proxy) {
	proxy.Delay.Store(int64(rand.N(30 * time.Millisecond)))
}

func swallowReplies(_ *testing.T, _ string, _ *os.Process, proxy *testkit.Proxy) {
	proxy.Swallow.Store(true)
	<-time.After(100 * time.Millisecond)
	proxy.Swallow.Store(false)
	<-time.After(300 * time.Millisecond)
}

func freezeServer(t *testing.T, _ string, process *os.Process, _ *testkit.Proxy) {
	assert.NoError(t, process.Signal(syscall.SIGSTOP))
	<-time.After(120 * time.Millisecond)
	assert.NoError(t, process.Signal(syscall.SIGCONT))
	<-time.After(300 * time.Millisecond)
}
