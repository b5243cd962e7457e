package faults_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The nodes of a cluster: the first has all hash slots, one more serves, one hangs, one refuses.
const (
	ownerNode   = "192.0.2.1:6379"
	otherNode   = "192.0.2.2:6379"
	hangingNode = "192.0.2.3:6379"
	refusesNode = "192.0.2.4:6379"
)

// redirectingCluster is a cluster whose nodes answer scripts about one client by errors.
type redirectingCluster struct {
	minis map[string]*miniredis.Miniredis
	rdb   *redis.ClusterClient
}

func newRedirectingCluster(t *testing.T, opts redis.ClusterOptions) *redirectingCluster {
	c := &redirectingCluster{minis: map[string]*miniredis.Miniredis{}}
	for _, addr := range []string{ownerNode, otherNode} {
		c.minis[addr] = miniredis.NewMiniRedis()
		c.minis[addr].ClockTTL(true)
		t.Cleanup(c.minis[addr].Close)
	}
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch addr {
		case refusesNode:
			return testkit.RefuseConnection(ctx, network, addr)
		case hangingNode:
			here, there := net.Pipe()
			t.Cleanup(func() { _ = there.Close() })
			go func() {
				for _, err := there.Read(make([]byte, 1024)); err == nil; {
					_, err = there.Read(make([]byte, 1024))
				}
			}()
			return here, nil
		}
		return c.minis[addr].Dial()
	}
	opts.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: ownerNode}}}}, nil
	}
	c.rdb = redis.NewClusterClient(&opts)
	t.Cleanup(func() { _ = c.rdb.Close() })
	return c
}

// answer has a node answer every script about a client by an error, but for one after ASKING. An empty
// error is none.
func (c *redirectingCluster) answer(addr, client, text string) {
	var asking sync.Map                             // has a peer that has sent ASKING, and nothing since
	if _, err := c.minis[addr].Dial(); err != nil { // has it start
		panic(err)
	}
	c.minis[addr].Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
		if command == "ASKING" {
			asking.Store(peer, true)
			peer.WriteOK()
			return true
		}
		_, asked := asking.LoadAndDelete(peer)
		about := strings.HasPrefix(command, "EVAL") && len(args) > 2 && strings.Contains(args[2], client)
		if !about || text == "" || asked {
			return false
		}
		peer.WriteError(text)
		return true
	})
}

// TestARedirectedCallHurtsNoOther of the server that it was sent to, wherever it ends: the others are decided
// by Redis without waiting, and no breaker of their server opens.
func TestARedirectedCallHurtsNoOther(t *testing.T) {
	const moved, ask = "MOVED 1 ", "ASK 1 "
	for name, row := range map[string]struct {
		owner, other string // what they answer about alice
		redis        bool   // Redis decides about alice
		opens        bool   // nothing redirected is sent any more
	}{
		"moved":                        {moved + otherNode, "", true, false},
		"to be asked for elsewhere":    {ask + otherNode, "", true, false},
		"moved to and fro":             {moved + otherNode, moved + ownerNode, false, false},
		"to itself":                    {moved + ownerNode, "", false, false},
		"moved to one that loads":      {moved + otherNode, "LOADING Redis is loading the dataset in memory", false, true},
		"moved to one that is full":    {moved + otherNode, "OOM command not allowed", false, false},
		"moved to one that hangs":      {moved + hangingNode, "", false, true},
		"moved to one that refuses":    {moved + refusesNode, "", false, true},
		"to be asked for at a hanging": {ask + hangingNode, "", false, true},
		"to be asked for at a refuser": {ask + refusesNode, "", false, true},
		"read only":                    {"READONLY You can't write against a read only replica.", "", false, false},
		"several keys that move":       {"TRYAGAIN Multiple keys request during rehashing of slot", "", false, false},
		"a hash slot without a server": {"CLUSTERDOWN Hash slot not served", "", false, false},
	} {
		for _, callers := range []int{0, 7} {
			testkit.RunSynctest(t, fmt.Sprintf("%s, beside %d", name, callers), func(t *testing.T) {
				c := newRedirectingCluster(t, redis.ClusterOptions{})
				limiter, log := testkit.LoggedLimiter(t, c.rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout),
					ginlimit.WithFailureMode(ginlimit.FailLocal))
				limit := ginlimit.PerHour(10_000)
				for i := range 4 {
					require.Equal(t, ginlimit.FromRedis, testkit.Must(limiter.Allow(t.Context(), "bob", limit)).Source, i)
				}
				c.answer(ownerNode, "alice", row.owner)
				c.answer(otherNode, "alice", row.other)
				var all sync.WaitGroup
				over := make(chan struct{})
				for i := range callers {
					all.Go(func() {
						for n := 0; ; n++ {
							select {
							case <-over:
								return
							default:
							}
							start := time.Now()
							r, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i, n%3), limit)
							assert.NoError(t, err)
							assert.Equal(t, ginlimit.FromRedis, r.Source)
							assert.Zero(t, time.Since(start), "nobody waits for alice")
							time.Sleep(5 * time.Millisecond)
						}
					})
				}
				for range 12 {
					start := time.Now()
					r, err := limiter.Allow(t.Context(), "alice", limit)
					assert.NoError(t, err)
					assert.Equal(t, row.redis, r.Source == ginlimit.FromRedis, r)
					assert.LessOrEqual(t, time.Since(start), ginlimit.DefaultTimeout*11/10)
					time.Sleep(10 * time.Millisecond)
				}
				close(over)
				all.Wait()
				stats := limiter.Stats()
				require.Zero(t, stats.LostServers)
				if !row.opens {
					require.Nil(t, stats.Transitions, log)
				}
				require.NotContains(t, log.String(), "server="+ownerNode)
				if row.redis {
					require.Empty(t, log.String(), "nothing is wrong")
					require.Equal(t, 10_000-13, testkit.Must(limiter.Allow(t.Context(), "alice", limit)).Remaining)
				}
				require.NoError(t, limiter.Close())
				synctest.Wait()
				time.Sleep(time.Minute) // until what hangs has ended
			})
		}
	}
}

// TestARedirectedReportHurtsNoOther: a process that holds slots of two clients keeps one's, while reports about
// the other's are redirected to a server that hangs.
func TestARedirectedReportHurtsNoOther(t *testing.T) {
	for name, answer := range map[string]string{"moved": "MOVED 1 " + hangingNode, "ask": "ASK 1 " + hangingNode} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			c := newRedirectingCluster(t, redis.ClusterOptions{})
			c.answer(ownerNode, "alice", "")
			var policies [2]*ginlimit.Policy // of two processes
			for i := range policies {
				limiter, err := ginlimit.NewLimiter(c.rdb)
				require.NoError(t, err)
				defer limiter.Close()
				policies[i], err = limiter.Policy("p", ginlimit.InFlight(1))
				require.NoError(t, err)
			}
			for _, client := range []string{"alice", "bob"} {
				r, err := policies[0].Reserve(t.Context(), client, 1)
				require.NoError(t, err)
				require.True(t, r.Result().Allowed)
				require.Equal(t, ginlimit.FromRedis, r.Result().Source)
				defer r.Release()
			}
			c.answer(ownerNode, "alice", answer)
			for range 40 {
				time.Sleep(time.Second)
				r, err := policies[1].Reserve(t.Context(), "bob", 1)
				require.NoError(t, err)
				require.False(t, r.Result().Allowed)
			}
			c.answer(ownerNode, "alice", "")
		})
	}
}
