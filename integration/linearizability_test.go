package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
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
	"github.com/ginlimit/ginlimit/internal/harness"
)

// Histories of concurrent calls are linearizable (Herlihy and Wing, 1990): each call takes effect at one moment between its
// beginning and its end, as if calls came in single file. A call without an answer may take effect at any moment from its
// beginning on, or never.

// slowLimit is one whose buckets regain no token while a test runs: then a bucket is the number of tokens taken from it.
var slowLimit = ginlimit.PerDay(1).WithBurst(20)

type verb uint8

const (
	allowN verb = iota
	allowUpTo
	peek
	refund
)

// operation is what a caller asked for.
type operation struct {
	key  string
	verb verb
	n    int
}

// outcome is what it was told.
type outcome struct {
	result ginlimit.Result
	lost   bool // there was no answer
}

// sequentialBucket is the model: its state is how many tokens are taken.
var sequentialBucket = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(operation).key
			keys[key] = append(keys[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{0} },
	Step: func(state, input, output any) []any {
		taken, in, out := state.(int), input.(operation), output.(outcome)
		granted, after := 0, taken
		switch room := slowLimit.Burst - taken; in.verb {
		case allowN:
			if in.n <= room {
				granted = in.n
			}
		case allowUpTo:
			granted = min(in.n, room)
		case refund:
			after = max(0, taken-in.n)
		}
		after += granted
		r := out.result
		switch {
		case out.lost:
			return []any{taken, after}
		case in.verb != refund && r.Granted != granted:
			return nil
		case in.verb != refund && r.Source == ginlimit.FromRedis && r.Remaining != slowLimit.Burst-after: // of memory, it may be a second old
			return nil
		}
		return []any{after}
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(operation), output.(outcome)
		return fmt.Sprintf("%s %d (%d): granted %d, remaining %d, lost %t", in.key, in.verb, in.n, out.result.Granted, out.result.Remaining, out.lost)
	},
}

// do does an operation.
func do(l *ginlimit.Limiter, o operation) (out outcome, err error) {
	ctx := context.Background()
	switch o.verb {
	case allowN:
		out.result, err = l.AllowN(ctx, o.key, o.n, slowLimit)
	case allowUpTo:
		out.result, err = l.AllowUpTo(ctx, o.key, o.n, slowLimit)
	case peek:
		out.result, err = l.Peek(ctx, o.key, slowLimit)
	case refund:
		err = l.Refund(ctx, o.key, o.n, slowLimit)
	}
	out.lost = err != nil
	return out, err
}

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		disturb func(t *testing.T, addr string, process *os.Process, proxy *harness.Proxy)
		verbs   int // so many of the verbs
		opts    []ginlimit.Option
	}{
		"undisturbed":         {func(*testing.T, string, *os.Process, *harness.Proxy) {}, 4, nil},
		"connections cut":     {cutConnections, 4, nil},
		"scripts flushed":     {flushScripts, 4, nil},
		"slow Redis":          {delayReplies, 4, nil},
		"frozen Redis":        {freezeServer, 4, nil},
		"replies swallowed":   {swallowReplies, 4, nil},
		"refusals remembered": {cutConnections, 3, []ginlimit.Option{harness.TrustsClock()}}, // a refund elsewhere shows within a second
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				t.Parallel()
				addr, process := harness.StartRedisProcess(t)
				proxy, way := harness.StartProxy(t, addr)
				var limiters []*ginlimit.Limiter
				for range 3 {
					// Calls whose replies are lost end soon, so that there are answers between two disturbances.
					rdb := redis.NewClient(&redis.Options{Addr: way, ContextTimeoutEnabled: direct, ReadTimeout: 200 * time.Millisecond})
					t.Cleanup(func() { _ = rdb.Close() })
					opts := append([]ginlimit.Option{ginlimit.WithDenyMemory(0), ginlimit.WithTimeout(ginlimit.DefaultTimeout)}, row.opts...)
					limiters = append(limiters, harness.NewLimiter(t, rdb, opts...))
				}
				seed := uint64(time.Now().UnixNano())
				t.Logf("seed %d", seed)
				history := record(t, limiters, row.verbs, seed, func() { row.disturb(t, addr, process, proxy) })
				lost := 0
				for _, o := range history {
					if o.Output.(outcome).lost {
						lost++
					}
				}
				t.Logf("%d calls, %d of them without an answer", len(history), lost)
				require.GreaterOrEqual(t, len(history)-lost, linearizableAnswers, "there is too little to check")
				result := porcupine.CheckOperationsTimeout(sequentialBucket.ToModel(), history, time.Minute)
				require.Equal(t, porcupine.Ok, result)
			})
		}
	}
}

const (
	linearizableTime    = 2 * time.Second
	linearizableAnswers = 500
	linearizableCallers = 4 // of each limiter
)

// record has callers of all limiters do random operations for a while, and returns what they saw.
func record(t *testing.T, limiters []*ginlimit.Limiter, verbs int, seed uint64, disturb func()) []porcupine.Operation {
	var mu sync.Mutex
	var history []porcupine.Operation
	var answered atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	goesOn := func() bool { // on a busy machine, until there is enough to check
		passed := time.Since(start)
		return passed < linearizableTime || answered.Load() < linearizableAnswers && passed < 10*linearizableTime
	}
	for i, limiter := range limiters {
		for j := range linearizableCallers {
			all.Go(func() {
				caller := i*linearizableCallers + j
				random := rand.New(rand.NewPCG(seed, uint64(caller)))
				for goesOn() {
					// Keys change as time goes by, so that the calls without an answer of one key are few.
					in := operation{
						key:  fmt.Sprintf("%d, %d", time.Since(start)/(100*time.Millisecond), random.IntN(4)),
						verb: verb(random.IntN(verbs)), n: 1 + random.IntN(4),
					}
					called := time.Since(start).Nanoseconds()
					out, err := do(limiter, in)
					returned := time.Since(start).Nanoseconds()
					if err != nil {
						assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
						if errors.Is(err, context.Canceled) {
							continue
						}
						returned = time.Hour.Nanoseconds() // it may happen later
						<-time.After(time.Duration(random.IntN(20)) * time.Millisecond)
					} else {
						answered.Add(1)
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
					mu.Unlock()
					<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
				}
			})
		}
	}
	for time.Since(start) < linearizableTime-200*time.Millisecond {
		disturb()
		<-time.After(50 * time.Millisecond)
	}
	all.Wait()
	return history
}

func cutConnections(_ *testing.T, _ string, _ *os.Process, proxy *harness.Proxy) {
	proxy.CutAll()
	proxy.Cut.Store(false)
}

func flushScripts(t *testing.T, addr string, _ *os.Process, _ *harness.Proxy) {
	assert.NoError(t, harness.Connect(t, addr).ScriptFlush(t.Context()).Err())
}

func delayReplies(_ *testing.T, _ string, _ *os.Process, proxy *harness.Proxy) {
	proxy.Delay.Store(int64(rand.N(30 * time.Millisecond)))
}

func swallowReplies(_ *testing.T, _ string, _ *os.Process, proxy *harness.Proxy) {
	proxy.Swallow.Store(true)
	<-time.After(100 * time.Millisecond)
	proxy.Swallow.Store(false)
	<-time.After(300 * time.Millisecond)
}

func freezeServer(t *testing.T, _ string, process *os.Process, _ *harness.Proxy) {
	assert.NoError(t, process.Signal(syscall.SIGSTOP))
	<-time.After(120 * time.Millisecond)
	assert.NoError(t, process.Signal(syscall.SIGCONT))
	<-time.After(300 * time.Millisecond)
}
