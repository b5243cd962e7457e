package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
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
		c.encode(context.Background(), s, p.coalescing, false)
		all = append(all, text(c))
	}
	return all
}

func text(c *command) string {
	text := fmt.Sprint(c.Args()[1])
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
	s := New(rdb, Config{Log: slog.New(slog.DiscardHandler), Timeout: 1, Sources: Sources{
		Server: [Scripts]string{"script"}, Node: [Single]string{"cross-slot script"}}})
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
		one.encode(context.Background(), s, p.coalescing, false)
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
		require.Equal(t, errRetrySingle, calls[1].Err)
		one.encode(context.Background(), s, p.coalescing, false)
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

// TestCommandOfOneCall has rows of keys, operation, buckets, marks, a ban and slots.
func TestCommandOfOneCall(t *testing.T) {
	t.Parallel()
	token, fixed, ban, slots := newBucket(bucket.Token), newBucket(bucket.FixedWindow), bucket.NewBan(100, 1000),
		bucket.NewSlots(3)
	floor, fixedFloor := newBucket(bucket.Token), newBucket(bucket.FixedWindow)
	floor.Leave(1)
	fixedFloor.Leave(1)
	for want, row := range map[string]struct {
		op      bucket.Op
		buckets []bucket.Bucket
	}{
		"1 a take 2 3 1 100 1000": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token}},
		"1 a take 2 3 1 100 900": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{floor}},
		"1 a charge 2 3 1 100 1000": {bucket.Op{Verb: bucket.Charge, N: 2},
			[]bucket.Bucket{floor}},
		"1 a charge 2 3 1000 fixed 10": {bucket.Op{Verb: bucket.Charge, N: 2},
			[]bucket.Bucket{fixedFloor}},
		"2 a b return 2 3 1 100 1000 1000 fixed 10 -1 70": {bucket.Op{Verb: bucket.Return, N: 2,
			Claims: []bucket.Claim{{Mark: -1}, {Mark: 70}}}, []bucket.Bucket{token, fixed}},
		"2 a b take 2 3 1 100 1000 ban 100 1000 2 1 0 1": {bucket.Op{Verb: bucket.Take, N: 2,
			Bans: bucket.LimitBans}, []bucket.Bucket{token, ban}},
		"2 a b take 2 3 1 100 1000 slots process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, slots}},
		"3 a b c take 2 3 1 100 1000 both 100 1000 0 1 1 process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, ban, slots}},
		"4 a b a:turns:3 b:turns:3 take 2 3 slots process 300 3 8 2 9, 3 8 2 9, 0": {
			bucket.Op{Verb: bucket.Take, N: 2, Waits: 300}, []bucket.Bucket{slots, slots}},
		"2 a b take 2 3 slots process 0 3 8 2 9, 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{slots, slots}},
		"2 a b take 2 3 both 100 1000 0 0 1 process 0 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{ban, slots}},
	} {
		s := newStore(t, redis.NewClient(&redis.Options{}))
		s.process = "process"
		g := merged(3, row.buckets...)
		g.Op, g.Attempt = row.op, bucket.Attempt{Number: 9, Ended: 8, Held: 2}
		for i := range row.buckets {
			g.Names[i] = dispatch.Name("abc"[i : i+1])
		}
		for _, bySHA := range []bool{true, false} {
			c := command{groups: []*dispatch.Group{g}}
			c.encode(context.Background(), s, nil, bySHA)
			script := s.scripts[scriptFor(row.buckets)].bySource
			if bySHA {
				script = s.scripts[scriptFor(row.buckets)].bySHA
			}
			require.Equal(t, script[0], c.Args()[0])
			require.Equal(t, fmt.Sprint(script[1], " ", want), text(&c))
			one, ok := c.Cmder.(*redis.IntCmd)
			require.Equal(t, len(row.buckets) == 1 && row.buckets[0].Kind == bucket.Token, ok)
			if ok {
				require.EqualValues(t, -1, one.Val(), "there is no answer yet")
			}
			require.True(t, c.NoRetry())
		}
	}
}

// TestCalendarPeriodIsSentWithWhatIsLeftOfIt, by the application host's clock.
func TestCalendarPeriodIsSentWithWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, b := command{args: []any{"before"}}, newCalendar(700)
		time.Sleep(200 * time.Millisecond)
		c.encodeBucket(&b)
		require.Equal(t, []any{"before", int64(500), "calendar", int64(10)}, c.args)
	})
}
