package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// take returns a group that takes single tokens from a client's bucket.
func take(client string, charges int64) *dispatch.Group {
	c := dispatch.NewCall()
	c.Reset(bucket.Op{Verb: bucket.Take, N: 1, Charges: charges}, []bucket.Bucket{
		{Kind: bucket.Token, ID: "m", Args: [3]any{int64(1), int64(600), int64(6000)}}})
	c.Names[0] = dispatch.Name("{" + client + "}:m")
	return &dispatch.Group{Call: c, Charges: charges, First: true}
}

// commands returns the commands of groups: the script, and the arguments after it.
func commands(s *Store, coalescing *coalescing, calls ...*dispatch.Group) []string {
	p := pipeline{store: s}
	p.build(calls, coalescing)
	var all []string
	for _, c := range p.commands {
		c.encode(context.Background(), s, false)
		all = append(all, text(c))
	}
	return all
}

func text(c *command) string {
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
		p := pipeline{store: s}
		calls := []*dispatch.Group{take("a", c.charges), take("b", 1)}
		p.build(calls, &coalescing{crossSlot: true})
		one := p.commands[0]
		one.encode(context.Background(), s, false)
		whole := text(one)
		one.SetErr(replyError("MOVED 1 127.0.0.1:1"))
		require.Equal(t, whole, text(one), "the node has the slot, and knows which others it has")
		one.SetErr(replyError("ASK 1 127.0.0.1:1"))
		require.Equal(t, c.want, text(one))

		one.SetErr(nil)
		one.Cmder.(*redis.IntSliceCmd).SetVal([]int64{7})
		one.decode()
		require.NoError(t, calls[0].Err)
		require.EqualValues(t, 7, calls[0].Found[0].Level)
		require.Equal(t, wire.ErrRetrySingle, calls[1].Err)
		one.Cmder.(*redis.IntSliceCmd).SetVal([]int64{-1})
		one.decode()
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
