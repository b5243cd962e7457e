package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// The dispatcher behind hooks of the client, which hold calls up, refuse them, or fail.

// aroundHook calls a function for each call of the client, alone or a pipeline, that calls the script.
type aroundHook func(send func() error) error

func (h aroundHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h aroundHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h aroundHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !strings.HasPrefix(cmds[0].Name(), "eval") {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

// patience is how long clients wait for a reply, where that must not be what ends a decision.
const patience = time.Hour

// clients are two of one server: one that ends calls with their context, so that callers go themselves, and
// one that does not.
func clients(t *testing.T, addr string) map[string]*redis.Client {
	both := map[string]*redis.Client{}
	for name, direct := range map[string]bool{"direct": true, "by a goroutine": false} {
		rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: direct, ReadTimeout: patience})
		t.Cleanup(func() { _ = rdb.Close() })
		both[name] = rdb
	}
	return both
}

func TestHooksSeeEveryCall(t *testing.T) {
	t.Parallel()
	for name, rdb := range clients(t, startRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			limiter := newLimiter(t, rdb)
			rdb.AddHook(aroundHook(func(send func() error) error { calls++; return send() }))
			for range 10 {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(100))
				require.NoError(t, err)
			}
			require.Equal(t, 10, calls)
		})
	}
}

// heldCalls are the first calls of a client, which wait until they are let go.
type heldCalls struct {
	came atomic.Int64
	gate chan struct{}
	once sync.Once
}

func hold(rdb *redis.Client, calls int64) *heldCalls {
	h := &heldCalls{gate: make(chan struct{})}
	rdb.AddHook(aroundHook(func(send func() error) error {
		if h.came.Add(1) <= calls {
			<-h.gate
		}
		return send()
	}))
	return h
}

// await returns when so many wait.
func (h *heldCalls) await(t *testing.T, calls int64) {
	t.Helper()
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return h.came.Load() >= calls }))
}

func (h *heldCalls) release() { h.once.Do(func() { close(h.gate) }) }

// TestBatchDecidesInTheOrderOfItsAsks has a batch of known asks, of different costs on the same keys, decided
// as in single file.
func TestBatchDecidesInTheOrderOfItsAsks(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, limit := newLimiter(t, rdb), ginlimit.PerDay(1).WithBurst(10)
	other := limit.WithBurst(20)
	_, err := limiter.Allow(t.Context(), "known to answer", limit)
	require.NoError(t, err)
	held := hold(rdb, 2)
	defer held.release()
	var all sync.WaitGroup
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "first", limit) })
	held.await(t, 1)
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "second", limit) })
	held.await(t, 2)
	asks := []struct {
		key       string
		n         int
		limit     ginlimit.Limit
		remaining int
	}{
		{"a", 1, limit, 9}, {"a", 1, limit, 8}, {"a", 2, limit, 6}, {"a", 1, limit, 5}, // the last one may not join the first
		{"b", 1, limit, 9}, {"b", 1, limit, 8}, {"b", 1, limit, 7}, // merged, and in a call with others that are not
		{"c", 1, limit, 9}, {"d", 3, limit, 7}, {"e", 3, limit, 7}, {"f", 1, other, 19}, {"g", 1, other, 18 + 1},
		{"b", 3, limit, 4}, {"c", 1, other, 18}, {"a", 0, limit, 5}, {"a", 5, limit, 0},
	}
	for i, ask := range asks {
		all.Go(func() {
			var r ginlimit.Result
			var err error
			if ask.n == 0 {
				r, err = limiter.Peek(t.Context(), ask.key, ask.limit)
			} else {
				r, err = limiter.AllowN(t.Context(), ask.key, ask.n, ask.limit)
			}
			assert.NoError(t, err)
			assert.Equal(t, ask.remaining, r.Remaining, "ask %d: %+v", i, ask)
		})
		require.True(t, becomesTrue(t.Context().Done(), func() bool { return ginlimit.Waiting(limiter) == i+1 }))
	}
	held.release()
	all.Wait()
	for key, remaining := range map[string]int{"a": 0, "b": 4, "c": 8, "d": 7, "e": 7} {
		r, err := limiter.Peek(t.Context(), key, limit)
		require.NoError(t, err)
		require.Equal(t, remaining, r.Remaining, key)
	}
}

// spin lets a time pass in which others run.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

// longWay has a limiter learn that the way to its Redis is long, which it is no more thereafter.
func longWay(t *testing.T, rdb *redis.Client, limiter *ginlimit.Limiter) {
	t.Helper()
	var near atomic.Bool
	rdb.AddHook(aroundHook(func(send func() error) error {
		if !near.Load() {
			spin(time.Millisecond)
		}
		return send()
	}))
	for answered := 0; answered < ginlimit.FarBatches; {
		if _, err := limiter.Allow(t.Context(), "far", ginlimit.PerDay(1000)); err == nil {
			answered++
		}
	}
	near.Store(true)
}

// TestMoreBatchesFlyWhereTheWayIsLong has one batch after another leave, each while all before it are under way.
func TestMoreBatchesFlyWhereTheWayIsLong(t *testing.T) {
	t.Parallel()
	for name, rdb := range clients(t, startRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, limit := newLimiter(t, rdb), ginlimit.PerDay(1000)
			longWay(t, rdb, limiter)
			held := hold(rdb, ginlimit.MostInFlight)
			defer held.release()
			var all sync.WaitGroup
			ask := func() {
				all.Go(func() {
					r, err := limiter.Allow(t.Context(), "k", limit)
					assert.NoError(t, err)
					assert.True(t, r.Allowed)
				})
			}
			for held.came.Load() < ginlimit.MostInFlight {
				ask()
				spin(time.Millisecond)
			}
			waiting := ginlimit.Waiting(limiter)
			for i := range 5 {
				ask()
				spin(time.Millisecond)
				require.True(t, becomesTrue(t.Context().Done(), func() bool { return ginlimit.Waiting(limiter) >= waiting+i+1 }))
			}
			require.EqualValues(t, ginlimit.MostInFlight, held.came.Load())
			held.release()
			all.Wait()
		})
	}
}

// TestStuckBatchesGiveUpTheirPlaces goes on while two calls never return.
func TestStuckBatchesGiveUpTheirPlaces(t *testing.T) {
	t.Parallel()
	for name, rdb := range clients(t, startRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(50*time.Millisecond)), ginlimit.PerHour(100)
			held := hold(rdb, 2)
			defer held.release()
			var all sync.WaitGroup
			for i := range 2 {
				all.Go(func() {
					for held.came.Load() <= int64(i) { // a decision may be late before it is sent
						_, err := limiter.Allow(t.Context(), fmt.Sprint("stuck ", i), limit)
						assert.True(t, err == nil || errors.Is(err, ginlimit.ErrUnavailable), err) // a look for a connection may be the stuck one
					}
				})
				held.await(t, int64(i+1))
			}
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				r, err := limiter.Allow(t.Context(), "k", limit)
				return err == nil && r.Allowed
			}))
			all.Wait()
		})
	}
}

// TestBatchesThatHangKeepNoPlace goes on though as many never return as may leave until Redis is lost.
func TestBatchesThatHangKeepNoPlace(t *testing.T) {
	t.Parallel()
	for name, rdb := range clients(t, startRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(100*time.Millisecond)), ginlimit.PerDay(100_000)
			longWay(t, rdb, limiter)
			const hanging = ginlimit.MostInFlight + 2
			held := hold(rdb, hanging)
			defer held.release()
			var done atomic.Bool
			var all sync.WaitGroup
			for caller := range 2 * hanging {
				all.Go(func() {
					for !done.Load() {
						_, err := limiter.Allow(t.Context(), fmt.Sprint("k", caller), limit)
						done.CompareAndSwap(false, err == nil && held.came.Load() >= hanging)
						runtime.Gosched()
					}
				})
			}
			require.True(t, becomesTrue(t.Context().Done(), done.Load))
			held.release() // callers that go themselves hang with it
			all.Wait()
		})
	}
}

// TestChangeEndsARefusalOnItsWay resets a key while a refusal that Redis has made is on its way: it is not
// remembered.
func TestChangeEndsARefusalOnItsWay(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, limit := newLimiter(t, rdb, believing()), ginlimit.PerDay(1)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)

	decided, gate := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() {
		close(decided)
		<-gate
	})
	var once atomic.Bool
	rdb.AddHook(aroundHook(func(send func() error) error {
		err := send()
		if !once.Swap(true) {
			first()
		}
		return err
	}))
	var all sync.WaitGroup
	all.Go(func() {
		r, err := limiter.Allow(t.Context(), "k", limit)
		assert.NoError(t, err)
		assert.False(t, r.Allowed)
	})
	<-decided
	require.NoError(t, limiter.Reset(t.Context(), "k", limit))
	close(gate)
	all.Wait()
	r, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// TestEndOfAGoroutineLeavesNobodyWaiting has a hook end the goroutine that sends a batch, as t.FailNow does.
func TestEndOfAGoroutineLeavesNobodyWaiting(t *testing.T) {
	t.Parallel()
	for name, rdb := range clients(t, startRedis(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(100)
			_, err := limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			held := hold(rdb, 2)
			var ends atomic.Int64
			rdb.AddHook(aroundHook(func(send func() error) error {
				err := send()
				if ends.Add(1) <= 2 {
					runtime.Goexit()
				}
				return err
			}))
			var all sync.WaitGroup
			ask := func(i int) {
				all.Go(func() {
					last := 100
					for range 20 {
						r, err := limiter.Allow(context.Background(), fmt.Sprint("client ", i), limit)
						if err != nil {
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
							continue
						}
						assert.Less(t, r.Remaining, last, "an answer of another decision")
						last = r.Remaining
					}
				})
			}
			ask(0)
			held.await(t, 1)
			ask(1)
			held.await(t, 2)
			for i := range 6 {
				ask(2 + i)
			}
			require.True(t, becomesTrue(t.Context().Done(), func() bool { return ginlimit.Waiting(limiter) == 6 }))
			held.release()
			all.Wait()
		})
	}
}

// TestTimeoutBoundsEveryDecision has all callers back while Redis is still frozen, whatever the client's own
// timeouts are.
func TestTimeoutBoundsEveryDecision(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)){
		"server": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := startRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"server, direct": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := startRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience, ContextTimeoutEnabled: true}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := startRedisProcess(t, "--cluster-enabled", "yes")
			require.NoError(t, connect(t, addr).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: patience}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
	} {
		for _, callers := range []int{1, 64} {
			t.Run(fmt.Sprint(name, " ", callers), func(t *testing.T) {
				t.Parallel()
				rdb, signal := start(t)
				defer rdb.Close()
				limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(100*time.Millisecond)), ginlimit.PerHour(10)
				works := func() bool {
					_, err := limiter.Allow(t.Context(), "k", limit)
					return err == nil
				}
				require.True(t, becomesTrue(t.Context().Done(), works))
				signal(syscall.SIGSTOP)
				resume := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
				defer resume()
				for range 3 {
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
						})
					}
					all.Wait()
				}
				resume()
				require.True(t, becomesTrue(t.Context().Done(), works))
			})
		}
	}
}

// TestCancelledCallerLeaves has callers leave a frozen Redis whose context has no deadline.
func TestCancelledCallerLeaves(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	for name, rdb := range clients(t, addr) {
		limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(10)
		_, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled := time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("gone")) })
		_, err = limiter.Allow(ctx, "k", limit)
		require.ErrorIs(t, err, context.Canceled, name)
		cancelled.Stop()
		require.NoError(t, process.Signal(syscall.SIGCONT))
	}
}

// TestFrozenNodeHoldsUpItsOwnKeys asks a cluster of which a node is frozen.
func TestFrozenNodeHoldsUpItsOwnKeys(t *testing.T) {
	t.Parallel()
	addrs, processes := startClusterProcesses(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: patience})
	defer rdb.Close()
	limiter, limit := newLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(10)
	frozen := map[string]bool{}
	for i := range 60 {
		key := fmt.Sprint("client ", i)
		_, err := limiter.Allow(t.Context(), key, limit)
		require.NoError(t, err)
		node, err := rdb.MasterForKey(t.Context(), redisKey(key, limit))
		require.NoError(t, err)
		frozen[key] = node.Options().Addr == addrs[1]
	}
	require.NoError(t, processes[1].Signal(syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { require.NoError(t, processes[1].Signal(syscall.SIGCONT)) })
	defer resume()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting, others sync.WaitGroup
	for key, is := range frozen {
		if is {
			waiting.Go(func() { _, _ = limiter.Allow(ctx, key, limit) })
		}
	}
	for key, is := range frozen {
		if !is {
			others.Go(func() {
				_, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
			})
		}
	}
	others.Wait()
	cancel()
	waiting.Wait()
	resume()
}

// panicHook is a client's hook with a fault.
type panicHook struct{}

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("fault") }
}
func (panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// refusingHook is a client's hook that keeps pipelines from Redis, like a circuit breaker.
type refusingHook struct{ panicHook }

func (refusingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (refusingHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errors.New("the circuit is open") }
}

func TestPipelineThatIsNotSentAllowsNothing(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	rdb.AddHook(refusingHook{})
	limiter, limit := newLimiter(t, rdb), ginlimit.PerDay(1)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 50 {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if err == nil && r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, allowed.Load(), int64(1))
}

func TestPanicOfTheClientIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	rdb.AddHook(panicHook{})
	_, err := newLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
}
