package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// take returns a group that takes single tokens from a client's bucket.
func take(client string, charges int64) *dispatch.Group {
	c := dispatch.NewCall()
	one := []bucket.Bucket{{Kind: bucket.Token, ID: "m", Args: [3]any{int64(1), int64(600), int64(6000)}}}
	c.Set(bucket.Op{Verb: bucket.Take, N: 1, Charges: charges}, one, bucket.NewLayout(one))
	c.Names[0] = dispatch.Name("{" + client + "}:m")
	return &dispatch.Group{Call: c, Charges: charges, First: true}
}

// commands returns the commands of groups: the script, and the arguments after it.
func commands(s *Store, coalescing *coalescing, calls ...*dispatch.Group) []string {
	var p pipeline
	if coalescing == nil {
		p.add(calls...)
	} else {
		p.share(calls, coalescing)
	}
	var all []string
	for _, c := range p.commands {
		c.encode(context.Background(), s, false)
		all = append(all, text(c))
	}
	return all
}

func text(c redis.Cmder) string {
	text := "script"
	if strings.HasPrefix(c.Args()[1].(string), "#!") {
		text = "cross-slot script"
	}
	for _, arg := range c.Args()[2:] {
		text += fmt.Sprint(" ", arg)
	}
	return text
}

// coalescingOf returns how the groups of a key's server share commands.
func coalescingOf(s *Store, key *dispatch.Name) *coalescing {
	if s.nodes.dispatcher(key) != s.nodes.unrouted {
		node, _ := s.nodes.nodeForKey(context.Background(), key.String())
		return s.nodes.transport(node).coalescing
	}
	one, _ := s.rdb.(*redis.Client)
	return s.nodes.transport(one).coalescing
}

// oneNode returns the slots of a cluster with one node.
func oneNode(context.Context) ([]redis.ClusterSlot, error) {
	return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
}

func newStore(t *testing.T, rdb redis.UniversalClient) *Store {
	s := New(rdb, Config{Log: slog.New(slog.DiscardHandler), Timeout: 1, Scripts: wire.New("do return 0 end\n")})
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, rdb.Close())
	})
	return s
}

// TestClientsShareCommandsAsTheirServerAllows sends what several clients take. A single server and
// a ring's shard get one command with all keys declared, a cluster node gets one with the first key
// declared, and an unknown server gets one command per client.
func TestClientsShareCommandsAsTheirServerAllows(t *testing.T) {
	t.Parallel()
	clients := map[string]redis.UniversalClient{
		"server":  redis.NewClient(&redis.Options{}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ClusterSlots: oneNode}),
		"ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"},
			HeartbeatFrequency: time.Hour}),
		"other": struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{})},
	}
	together := []string{"script 3 {a}:m {b}:m {c}:m each 1 1 1 600 6000",
		"script 2 {d}:m {e}:m each 2 0 1 600 6000 3 1"}
	apart := []string{
		"script 1 {a}:m take 1 1 1 600 6000", "script 1 {b}:m take 1 1 1 600 6000",
		"script 1 {c}:m take 1 1 1 600 6000",
		"script 1 {d}:m take 2 3 1 600 6000", "script 1 {e}:m take 2 1 1 600 6000",
	}
	for name, want := range map[string]struct{ known, unknown []string }{
		"server": {together, together},
		"ring":   {together, apart},
		"cluster": {[]string{"cross-slot script 1 {a}:m each 1 1 1 600 6000 {b}:m {c}:m",
			"cross-slot script 1 {d}:m each 2 0 1 600 6000 3 1 {e}:m"}, apart},
		"other": {apart, apart},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, clients[name])
			build := func() []string {
				d, e := take("d", 3), take("e", 1)
				d.Op.N, e.Op.N = 2, 2
				return commands(s, coalescingOf(s, &d.Names[0]), take("a", 1), take("b", 1), take("c", 1), d, e)
			}
			require.Equal(t, want.unknown, build())
			s.nodes.reached.Store(true)
			require.Equal(t, want.known, build())
		})
	}
}

// TestWhatHasAnOrderSharesNoCommand of a cluster's node: a group that is not the first on its key,
// has several buckets, or does something other than take.
func TestWhatHasAnOrderSharesNoCommand(t *testing.T) {
	t.Parallel()
	s := newStore(t, redis.NewClient(&redis.Options{}))
	second, give, peek := take("b", 1), take("c", 1), take("d", 0)
	second.First, give.Op.Verb = false, bucket.Give
	require.Equal(t, []string{
		"cross-slot script 1 {b}:m each 1 1 1 600 6000 {e}:m",
		"script 1 {b}:m take 1 1 1 600 6000", "script 1 {c}:m give 1 1 1 600 6000",
		"script 1 {d}:m take 1 0 1 600 6000",
	}, commands(s, &coalescing{crossSlot: true}, take("b", 1), second, give, peek, take("e", 1)))
}

// TestShardThatIsAnotherOneNow makes a ring give a key to another shard while its call waits: the
// call goes there alone.
func TestShardThatIsAnotherOneNow(t *testing.T) {
	t.Parallel()
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"},
		HeartbeatFrequency: time.Hour})
	s := newStore(t, rdb)
	s.nodes.reached.Store(true)
	var calls []*dispatch.Group
	for i := range 64 {
		calls = append(calls, take(fmt.Sprint("client ", i), 1))
	}
	shard := coalescingOf(s, &calls[0].Names[0])
	require.Len(t, commands(s, shard, calls...), 1)
	rdb.SetAddrs(map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"})
	stays := 0
	for _, g := range calls {
		if node, err := rdb.GetShardClientForKey(g.Names[0].String()); err == nil &&
			node.Options().Addr == "127.0.0.1:1" {
			stays++
		}
	}
	got := commands(s, shard, calls...)
	require.Len(t, got, 1+len(calls)-stays)
	require.True(t, strings.HasPrefix(got[0], fmt.Sprintf("script %d ", stays)), got[0])
}

// TestAskedCommandTakesItsFirstKeyAlone: the importing node may lack the other keys, and would not
// say so.
func TestAskedCommandTakesItsFirstKeyAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t, redis.NewClient(&redis.Options{}))
	for _, c := range []struct {
		charges int64
		want    string
	}{{1, "cross-slot script 1 {a}:m each 1 1 1 600 6000"}, {2, "cross-slot script 1 {a}:m each 1 0 1 600 6000 2"}} {
		var p pipeline
		calls := []*dispatch.Group{take("a", c.charges), take("b", 1)}
		p.share(calls, &coalescing{crossSlot: true})
		one := &clusterCommand{command: p.commands[0], call: &redirections{Context: t.Context()}}
		one.encode(context.Background(), s, false)
		whole := text(one)
		one.SetErr(replyError("MOVED 1 127.0.0.1:1"))
		require.Equal(t, whole, text(one), "the node has the slot, and knows which others it has")
		one.SetErr(replyError("ASK 1 127.0.0.1:1"))
		require.Equal(t, c.want, text(one))

		one.SetErr(nil)
		one.Cmder.(*redis.IntSliceCmd).SetVal([]int64{7})
		one.decode(nil)
		require.NoError(t, calls[0].Err)
		require.EqualValues(t, 7, calls[0].Found[0].Level)
		require.Equal(t, wire.ErrRetrySingle, calls[1].Err)
		one.Cmder.(*redis.IntSliceCmd).SetVal([]int64{-1})
		one.decode(nil)
		require.Equal(t, wire.ErrRetrySingle, calls[0].Err, "the importing node lacks it")
		one.encode(context.Background(), s, false)
		require.Equal(t, whole, text(one), "sent anew")
	}
}

// TestCommandHasAtMost64Keys of several clients.
func TestCommandHasAtMost64Keys(t *testing.T) {
	t.Parallel()
	var calls []*dispatch.Group
	for i := range 65 {
		calls = append(calls, take(fmt.Sprint("client ", i), 1))
	}
	got := commands(newStore(t, redis.NewClient(&redis.Options{})), &coalescing{}, calls...)
	require.Len(t, got, 2)
	require.True(t, strings.HasPrefix(got[0], "script 64 "), got[0])
}

// TestCallersSendOnlyWhatEndsWithTheirContext has a row for everything that may hold a call of the
// client up.
func TestCallersSendOnlyWhatEndsWithTheirContext(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.Options){
		"ReadTimeout":  func(o *redis.Options) { o.ReadTimeout = -2 },
		"WriteTimeout": func(o *redis.Options) { o.WriteTimeout = -2 },
		"OnConnect": func(o *redis.Options) {
			o.OnConnect = func(context.Context, *redis.Conn) error { return nil }
		},
		"Limiter": func(o *redis.Options) { o.Limiter = limiter{} },
		"CredentialsProvider": func(o *redis.Options) {
			o.CredentialsProvider = func() (string, string) { return "", "" }
		},
		"CredentialsProviderContext": func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", nil }
		},
		"StreamingCredentialsProvider": func(o *redis.Options) { o.StreamingCredentialsProvider = limiter{} },
		"Dialer": func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, nil }
		},
	} {
		options := redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}
		set(&options)
		rdb := redis.NewClient(&options)
		bounded := newBounded(rdb, time.Second).Options()
		require.False(t, describeServer(bounded).Inline, name)
		bounded.Dialer = KeepsDeadlines(bounded.Dialer)
		require.Equal(t, name == "Dialer", describeServer(bounded).Inline, "%s, if the Dialer is marked", name)
		require.NoError(t, rdb.Close())
	}
}

// TestCopyEndsWithItsContext: whatever timeouts the client has, and the client keeps its own.
func TestCopyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		read, write, want time.Duration
	}{
		"the defaults":      {0, 0, 50 * time.Millisecond},
		"longer ones":       {time.Second, time.Minute, 50 * time.Millisecond},
		"a shorter read":    {20 * time.Millisecond, time.Second, 20 * time.Millisecond},
		"a shorter write":   {time.Second, 30 * time.Millisecond, 30 * time.Millisecond},
		"none":              {-1, -1, 50 * time.Millisecond},
		"none for reads":    {-1, time.Second, 50 * time.Millisecond},
		"a shorter default": {10 * time.Millisecond, 0, 10 * time.Millisecond},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: row.read, WriteTimeout: row.write})
		before := *rdb.Options()
		options := newBounded(rdb, 50*time.Millisecond).Options()
		require.Equal(t, []any{row.want, row.want, true},
			[]any{options.ReadTimeout, options.WriteTimeout, options.ContextTimeoutEnabled}, name)
		require.True(t, describeServer(options).Inline, name)
		require.Equal(t, []any{before.ReadTimeout, before.WriteTimeout, false},
			[]any{rdb.Options().ReadTimeout, rdb.Options().WriteTimeout, rdb.Options().ContextTimeoutEnabled}, name)
		require.NoError(t, rdb.Close())
	}
}

// TestClientWithoutDeadlinesIsKept: its connections may know none.
func TestClientWithoutDeadlinesIsKept(t *testing.T) {
	t.Parallel()
	for _, options := range []redis.Options{{ReadTimeout: -2}, {WriteTimeout: -2}} {
		rdb := redis.NewClient(&options)
		require.Same(t, rdb, newBounded(rdb, time.Second))
		require.NoError(t, rdb.Close())
	}
}

// hookCalls is a hook of a client that notes what passes it, and sends nothing if it is the last.
type hookCalls struct {
	seen []redis.Cmder
	last bool
}

func (h *hookCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hookCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.seen = append(h.seen, cmd)
		if h.last {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (h *hookCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.seen = append(h.seen, cmds...)
		if h.last {
			return nil
		}
		return next(ctx, cmds)
	}
}

// TestWhatIsAssumedOfGoRedis has a line for all that a bounded hook takes for granted.
func TestWhatIsAssumedOfGoRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	first, last := &hookCalls{}, &hookCalls{last: true}
	rdb.AddHook(first)
	rdb.AddHook(last)
	cmd, ctx := &command{Cmder: redis.NewStatusCmd(t.Context(), "ping")}, t.Context()
	require.NoError(t, rdb.Process(ctx, cmd))
	pipe := rdb.Pipeline()
	require.NoError(t, pipe.Process(ctx, cmd))
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	want := []redis.Cmder{cmd, cmd}
	require.Equal(t, want, first.seen, "a hook sees the command that the client was given, alone and in a pipeline")
	require.Equal(t, want, last.seen, "a hook that is added later comes after those before")
	require.Error(t, rdb.WithTimeout(time.Second).Ping(ctx).Err())
	require.Len(t, last.seen, 2, "a copy has none of the hooks")
	conn, later := rdb.Conn(), &hookCalls{}
	conn.AddHook(later)
	require.NoError(t, rdb.Process(ctx, cmd))
	require.NoError(t, conn.Process(ctx, cmd))
	require.Len(t, last.seen, 4, "a connection has the hooks of before")
	require.Empty(t, later.seen, "and its own behind them, which the client does not have")
}

// TestAStoreLeavesItsClientAsItIs: what the application adds later is the last hook of its commands, and the store's
// commands pass those of before.
func TestAStoreLeavesItsClientAsItIs(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	before, after := &hookCalls{}, &hookCalls{last: true}
	rdb.AddHook(before)
	s := newStore(t, rdb)
	rdb.AddHook(after)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.Len(t, after.seen, 1)
	require.Error(t, s.sender.Process(t.Context(), &command{Cmder: redis.NewStatusCmd(t.Context(), "ping")}))
	require.Len(t, after.seen, 1)
	require.Len(t, before.seen, 2)
}

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}
func (limiter) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return nil, nil, nil
}

// TestConnectionsAreClosedNowAndThen, however often the server cannot write: it may be the master
// still, whose replica is away for long.
func TestConnectionsAreClosedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mini := miniredis.NewMiniRedis()
		defer mini.Close()
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", PoolSize: 3,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return mini.Dial() },
		})
		defer rdb.Close()
		s := staleConns{timeout: time.Second}
		open := func() {
			for range 3 {
				conn := rdb.Conn()
				defer conn.Close()
				require.NoError(t, conn.Ping(t.Context()).Err())
			}
		}
		for range 3 {
			for _, left := range []uint32{0, 3, 3} {
				open()
				s.note(rdb, replyError("NOREPLICAS Not enough good replicas to write."))
				synctest.Wait()
				require.Equal(t, left, rdb.PoolStats().IdleConns)
				time.Sleep(stalePause/3 + time.Millisecond)
			}
		}
	})
}
