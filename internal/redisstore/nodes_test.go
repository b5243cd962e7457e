package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// servers is a store in front of more servers than have dispatchers. All of them are one Redis.
type servers struct {
	*Store
	calls atomic.Uint64 // that Redis has answered
}

func newServers(t *testing.T, n int) *servers {
	mini := miniredis.RunT(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": mini.Addr()}, HeartbeatFrequency: time.Hour})
	s := &servers{Store: New(ring, Config{
		Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second,
		Scripts: wire.New("do return 0 end\n"),
	})}
	ring.AddHook(counter{&s.calls})
	clients := map[string]*redis.Client{}
	for i := range n {
		clients[fmt.Sprintf("{%d}:m", i)] = redis.NewClient(&redis.Options{Addr: mini.Addr()}) // it never connects
	}
	s.nodes.nodeForKey = func(_ context.Context, key string) (*redis.Client, error) { return clients[key], nil }
	s.nodes.reached.Store(true)
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, ring.Close())
		for _, rdb := range clients {
			require.NoError(t, rdb.Close())
		}
	})
	return s
}

// of returns the dispatcher of a server.
func (s *servers) of(i int) *dispatch.Dispatcher { return s.nodes.dispatcher(&call(i).Names[0]) }

// call returns a call to a server.
func call(i int) *dispatch.Call {
	c := take(fmt.Sprint(i), 1).Call
	c.Key = fmt.Append(nil, i)
	return c
}

// counter is a hook that counts the commands that Redis has done.
type counter struct{ done *atomic.Uint64 }

func (counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			c.done.Add(1)
		}
		return err
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Err() == nil {
				c.done.Add(1)
			}
		}
		return err
	}
}

// TestForgottenDispatcherSendsNothing: a caller may have found it just before. Each call that is
// sent is counted, and none after Close.
func TestForgottenDispatcherSendsNothing(t *testing.T) {
	t.Parallel()
	s := newServers(t, maxNodes+2)
	found := s.of(0)
	for i := range maxNodes + 1 {
		require.NotSame(t, s.nodes.unrouted, s.of(i))
	}
	_ = found.Do(t.Context(), call(0))
	require.NoError(t, s.Do(t.Context(), call(0)))
	s.Close()
	sent := s.calls.Load()
	require.Positive(t, sent)
	require.Equal(t, sent, s.Stats().Calls)
	require.Error(t, found.Do(t.Context(), call(0)))
	require.ErrorIs(t, s.Do(t.Context(), call(0)), dispatch.ErrClosed)
	require.Equal(t, sent, s.calls.Load())
}

// TestCallGoesToTheNextDispatcher if the one that was found retires before it has the call.
func TestCallGoesToTheNextDispatcher(t *testing.T) {
	t.Parallel()
	s := newServers(t, 1)
	_, ok := s.of(0).Retire(false)
	require.True(t, ok)
	of, looks := s.nodes.nodeForKey, 0
	s.nodes.nodeForKey = func(ctx context.Context, key string) (*redis.Client, error) {
		if looks++; looks == 2 {
			clear(s.nodes.dispatchers)
		}
		return of(ctx, key)
	}
	require.NoError(t, s.Do(t.Context(), call(0)))
	s.Close()
	require.EqualValues(t, 1, s.Stats().Calls)
	require.EqualValues(t, 1, s.calls.Load())
}

// TestCallsGoToTheNextDispatcherTogether if theirs retires before it has them: all have one timeout.
func TestCallsGoToTheNextDispatcherTogether(t *testing.T) {
	t.Parallel()
	s := newServers(t, 1)
	_, ok := s.of(0).Retire(false)
	require.True(t, ok)
	of, looks := s.nodes.nodeForKey, 0
	s.nodes.nodeForKey = func(ctx context.Context, key string) (*redis.Client, error) {
		if looks++; looks == 3 {
			clear(s.nodes.dispatchers)
		}
		return of(ctx, key)
	}
	require.Equal(t, []error{nil, nil}, s.DoAll(t.Context(), []*dispatch.Call{call(0), call(0)}))
	s.Close()
	require.EqualValues(t, 2, s.Stats().Calls)
	require.EqualValues(t, 1, s.Stats().Batches)
}

// TestServerThatIsGoneIsNotCounted, also if its breaker is open: a ring closes the client of a shard that
// the application removes, and a cluster client that of a node which has left.
func TestServerThatIsGoneIsNotCounted(t *testing.T) {
	t.Parallel()
	mini, idle := miniredis.RunT(t), miniredis.RunT(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:              map[string]string{"up": mini.Addr(), "down": "127.0.0.1:1", "idle": idle.Addr()},
		HeartbeatFrequency: time.Hour,
	})
	s := New(ring, Config{
		Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second,
		Scripts: wire.New("do return 0 end\n"),
	})
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, ring.Close())
	})
	s.nodes.reached.Store(true)
	for s.Stats().Open == 0 || s.Stats().Servers < 3 {
		for i := range 30 { // there are keys of each shard
			_ = s.Do(t.Context(), call(i))
		}
	}
	require.Eventually(t, func() bool { // a batch is counted after its calls were answered
		return s.Stats().InFlight == 0
	}, time.Minute, time.Millisecond)
	calls := s.Stats().Calls
	ring.SetAddrs(map[string]string{"up": mini.Addr()})
	require.Eventually(t, func() bool {
		stats := s.Stats()
		return stats.Servers == 1 && stats.Open == 0
	}, time.Minute, time.Millisecond)
	require.Equal(t, calls, s.Stats().Calls)
}

// TestServersComeAndGo while many callers decide: each is answered, and each call is counted.
func TestServersComeAndGo(t *testing.T) {
	t.Parallel()
	const callers, each = 8, 200
	s := newServers(t, maxNodes+callers)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				if n := caller + i*callers; i%2 == 0 {
					assert.NoError(t, s.Do(t.Context(), call(n%(maxNodes+callers))))
				} else {
					s.of(n % (maxNodes + callers)) // nothing is sent, so it is idle
				}
			}
		})
	}
	all.Wait()
	s.Close() // when all is counted
	require.EqualValues(t, callers*each/2, s.calls.Load())
	require.Equal(t, s.calls.Load(), s.Stats().Calls)
}

// TestStoresOfOneName have the same servers, database and prefix. If that is not known, they have
// one client.
func TestStoresOfOneName(t *testing.T) {
	t.Parallel()
	one := func(o redis.Options) redis.UniversalClient { return redis.NewClient(&o) }
	cluster := func(o redis.ClusterOptions) redis.UniversalClient { return redis.NewClusterClient(&o) }
	sentinel := func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	}
	ring := func() redis.UniversalClient {
		return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"},
			HeartbeatFrequency: time.Hour})
	}
	client := one(redis.Options{Addr: "127.0.0.1:1"})
	dialer := func(context.Context, string, string) (net.Conn, error) { return nil, nil }
	for name, row := range map[string]struct {
		a, b redis.UniversalClient
		same bool
	}{
		"one client":  {client, client, true},
		"one address": {client, one(redis.Options{Addr: "127.0.0.1:1", PoolSize: 7}), true},
		"one socket": {one(redis.Options{Addr: "/redis"}), one(redis.Options{Addr: "/redis", Network: "unix"}),
			true},
		"other address":  {client, one(redis.Options{Addr: "127.0.0.1:2"}), false},
		"other database": {client, one(redis.Options{Addr: "127.0.0.1:1", DB: 1}), false},
		"own Dialers":    {one(redis.Options{Dialer: dialer}), one(redis.Options{Dialer: dialer}), false},
		"sentinels":      {sentinel(), sentinel(), false},
		"rings":          {ring(), ring(), false},
		"other types":    {struct{ redis.UniversalClient }{client}, client, false},
		"one cluster": {cluster(redis.ClusterOptions{Addrs: []string{"a:1", "b:1"}}),
			cluster(redis.ClusterOptions{Addrs: []string{"b:1", "a:1"}}), true},
		"other clusters": {cluster(redis.ClusterOptions{Addrs: []string{"a:1"}}),
			cluster(redis.ClusterOptions{Addrs: []string{"b:1"}}), false},
		"clusters by Slots": {cluster(redis.ClusterOptions{ClusterSlots: oneNode}),
			cluster(redis.ClusterOptions{ClusterSlots: oneNode}), false},
		"clusters by Dialer": {cluster(redis.ClusterOptions{Dialer: dialer}),
			cluster(redis.ClusterOptions{Dialer: dialer}), false},
		"a node, a cluster": {client, cluster(redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), false},
	} {
		named := func(rdb redis.UniversalClient, prefix string) string {
			s := New(rdb, Config{Prefix: prefix, Log: slog.New(slog.DiscardHandler), Timeout: 1})
			s.Close()
			return s.String()
		}
		require.Equal(t, row.same, named(row.a, "p") == named(row.b, "p"), name)
		require.NotEqual(t, named(row.a, "p"), named(row.a, ""), name)
		require.Equal(t, named(row.a, "p"), named(row.a, "p"), name)
		for _, rdb := range []redis.UniversalClient{row.a, row.b} {
			_ = rdb.Close() // it may be the same one
		}
	}
}
