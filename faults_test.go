package ginlimit_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The faults that TestFaults has its limiters survive, each on servers of its own.

const outagePassword = "correct horse"

var faults = []struct {
	name  string
	start func(t *testing.T) *site
}{
	{"frozen (SIGSTOP)", frozen},
	{"frozen, client with ContextTimeoutEnabled", frozenDirect},
	{"killed and started again", killed},
	{"script flushed", flushed},
	{"200 ms slower", slower},
	{"every connection cut", cut},
	{"10 ms away, every connection cut", cutFarAway},
	{"20 ms away, the same, client with ContextTimeoutEnabled", cutFartherDirect},
	{"replies swallowed", swallowed},
	{"memory full", full},
	{"read-only replica", readOnly},
	{"wrong type at the key", wrongType},
	{"password refused", passwordRefused},
	{"loading its data", loading},
	{"all connections taken", connectionsTaken},
	{"Sentinel failover", sentinelFailover},
	{"cluster: slots migrate", slotsMigrate},
	{"cluster: master killed, replica promoted", masterKilled},
}

// outageClient is a client as most applications have it.
func outageClient(t *testing.T, opts redis.Options) *redis.Client {
	rdb := redis.NewClient(&opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func frozen(t *testing.T) *site       { return freeze(t, redis.Options{}) }
func frozenDirect(t *testing.T) *site { return freeze(t, redis.Options{ContextTimeoutEnabled: true}) }

func freeze(t *testing.T, opts redis.Options) *site {
	addr, process := startRedisProcess(t)
	opts.Addr = addr
	return &site{
		rdb: outageClient(t, opts), lasts: 3 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { require.NoError(t, process.Signal(syscall.SIGSTOP)) },
		mend: func() { require.NoError(t, process.Signal(syscall.SIGCONT)) },
	}
}

func killed(t *testing.T) *site {
	addr, process := startRedisProcess(t)
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 3 * time.Second, degrades: freshKey, bursts: 2,
		fail: func() { require.NoError(t, process.Kill()) },
		mend: func() { require.NotNil(t, launchRedis(t, addr)) },
	}
}

func flushed(t *testing.T) *site {
	addr := startRedis(t)
	admin := connect(t, addr)
	flush := func() { require.NoError(t, admin.ScriptFlush(t.Context()).Err()) }
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: time.Second, bursts: 1, fail: flush, mend: flush,
	}
}

// proxy passes bytes on between clients and a server.
type proxy struct {
	delay   atomic.Int64 // of what the server says, in nanoseconds
	swallow atomic.Bool  // what the server says
	cut     atomic.Bool  // every connection

	swallowed atomic.Int64 // how often

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startProxy(t *testing.T, server string) (*proxy, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		p.cutAll()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	return p, l.Addr().String()
}

func (p *proxy) serve(client net.Conn, server string) {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil || p.cut.Load() {
		return
	}
	defer upstream.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := upstream.Read(buf)
		if err != nil {
			return
		}
		if d := time.Duration(p.delay.Load()); d > 0 {
			pause(d)
		}
		if p.swallow.Load() {
			p.swallowed.Add(1)
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cutAll() {
	p.cut.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

func slower(t *testing.T) *site {
	p, addr := startProxy(t, startRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.delay.Store(int64(200 * time.Millisecond)) },
		mend: func() { p.delay.Store(0) },
	}
}

func cut(t *testing.T) *site        { return cutAt(t, 0, redis.Options{}) }
func cutFarAway(t *testing.T) *site { return cutAt(t, 10*time.Millisecond, redis.Options{}) }

func cutFartherDirect(t *testing.T) *site {
	return cutAt(t, 20*time.Millisecond, redis.Options{ContextTimeoutEnabled: true})
}

func cutAt(t *testing.T, distance time.Duration, opts redis.Options) *site {
	p, addr := startProxy(t, startRedis(t))
	p.delay.Store(int64(distance))
	opts.Addr = addr
	return &site{
		rdb: outageClient(t, opts), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: p.cutAll,
		mend: func() { p.cut.Store(false) },
	}
}

func swallowed(t *testing.T) *site {
	p, addr := startProxy(t, startRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.swallow.Store(true) },
		mend: func() { p.swallow.Store(false) },
	}
}

func full(t *testing.T) *site {
	addr := startRedis(t, "--maxmemory-policy", "noeviction")
	admin := connect(t, addr)
	memory := func(bytes string) { require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
	return &site{
		// Redis refuses no write of a script that has made one: a new bucket may be made beside one that exists.
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: someKeys, bursts: 1,
		fail: func() { memory("1") },
		mend: func() { memory("0") },
	}
}

func readOnly(t *testing.T) *site {
	addr, master := startRedis(t), startRedis(t)
	admin := connect(t, addr)
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	follow := func(host, port string) { require.NoError(t, admin.ReplicaOf(t.Context(), host, port).Err()) }
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 2,
		fail: func() { follow(host, port) },
		mend: func() { follow("NO", "ONE") },
	}
}

func wrongType(t *testing.T) *site {
	addr := startRedis(t)
	admin := connect(t, addr)
	names := make([]string, len(policies))
	for i, policy := range policies {
		names[i] = strings.Replace(redisKey("hot", hotLimit), "ginlimit", policy.String(), 1)
	}
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: hotKey, bursts: 2,
		fail: func() {
			_, err := admin.TxPipelined(t.Context(), func(tx redis.Pipeliner) error {
				for _, name := range names {
					tx.Del(t.Context(), name)
					tx.RPush(t.Context(), name, "x")
				}
				return nil
			})
			require.NoError(t, err)
		},
		mend: func() { require.NoError(t, admin.Del(t.Context(), names...).Err()) },
	}
}

func passwordRefused(t *testing.T) *site {
	addr := startRedis(t)
	admin := connect(t, addr)
	password := func(p string) { require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", p).Err()) }
	password(outagePassword)
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr, Password: outagePassword}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() {
			password("another")
			require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
		},
		mend: func() { password(outagePassword) },
	}
}

// loading kills a server with so much data that it is not ready for a while when it is started again.
func loading(t *testing.T) *site {
	dir := t.TempDir()
	addr, process := startRedisProcess(t, "--dir", dir)
	admin := connect(t, addr)
	for i := range 4000 {
		require.NoError(t, admin.Set(t.Context(), fmt.Sprint("ballast ", i), strings.Repeat("x", 1000), 0).Err())
	}
	require.NoError(t, admin.Save(t.Context()).Err())
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: time.Second, degrades: freshKey, bursts: 2,
		fail: func() {
			require.NoError(t, process.Kill())
			require.NotNil(t, launchRedis(t, addr, "--dir", dir, "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"))
			info, err := admin.Info(t.Context(), "persistence").Result()
			require.NoError(t, err)
			require.Contains(t, info, "\nloading:1", "it has loaded its data already")
		},
		mend: func() {
			require.True(t, becomesTrue(t.Context().Done(), func() bool { return admin.Ping(t.Context()).Err() == nil }))
		},
	}
}

func connectionsTaken(t *testing.T) *site {
	rdb := outageClient(t, redis.Options{Addr: startRedis(t), PoolSize: 10})
	var taken []*redis.Conn
	return &site{
		rdb: rdb, lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() {
			for range rdb.Options().PoolSize {
				conn := rdb.Conn()
				require.NoError(t, conn.Ping(context.Background()).Err())
				taken = append(taken, conn)
			}
		},
		mend: func() {
			for _, conn := range taken {
				require.NoError(t, conn.Close())
			}
		},
	}
}

func sentinelFailover(t *testing.T) *site {
	master, process := startRedisProcess(t)
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	replica := connect(t, startRedis(t, "--replicaof", host+" "+port))
	linked := func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}
	require.True(t, becomesTrue(t.Context().Done(), linked))
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"sentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n", host, port), 0o600))
	sentinelAddr, _ := startRedisProcess(t, config, "--sentinel")
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinelAddr})
	t.Cleanup(func() { _ = sentinel.Close() })
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		replicas, err := sentinel.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
	}))
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinelAddr}})
	t.Cleanup(func() { _ = rdb.Close() })
	return &site{
		rdb: rdb, lasts: 0, degrades: someKeys, bursts: 2,
		fail: func() { require.NoError(t, process.Kill()) },
		mend: func() {
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				addr, err := sentinel.GetMasterAddrByName(t.Context(), "main").Result()
				return err == nil && net.JoinHostPort(addr[0], addr[1]) != master
			}))
		},
	}
}

// slotsMigrate moves the slot of the hot key to another node while it is asked for.
func slotsMigrate(t *testing.T) *site {
	addrs := startCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := t.Context()
	nodes := make([]*redis.Client, len(addrs))
	ids := make([]string, len(addrs))
	for i, addr := range addrs {
		nodes[i] = connect(t, addr)
		id, err := nodes[i].Do(ctx, "CLUSTER", "MYID").Text()
		require.NoError(t, err)
		ids[i] = id
	}
	slot, err := nodes[0].ClusterKeySlot(ctx, "hot").Result()
	require.NoError(t, err)
	from := int(slot) * len(nodes) / 16384
	to := (from + 1) % len(nodes)
	do := func(node int, args ...any) { require.NoError(t, nodes[node].Do(ctx, args...).Err()) }
	return &site{
		rdb: rdb, lasts: time.Second / 2, bursts: 1,
		fail: func() {
			do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
			do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
			host, port, err := net.SplitHostPort(addrs[to])
			require.NoError(t, err)
			pause(200 * time.Millisecond) // new buckets of the slot are made at its new node now
			keys, err := nodes[from].ClusterGetKeysInSlot(ctx, int(slot), 1000).Result()
			require.NoError(t, err)
			require.NotEmpty(t, keys)
			args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
			for _, key := range keys {
				args = append(args, key)
			}
			do(from, args...)
		},
		mend: func() {
			for _, node := range []int{to, from, 3 - to - from} {
				do(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
			}
		},
	}
}

func masterKilled(t *testing.T) *site {
	addrs, processes := startClusterProcesses(t, 3, "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
	ctx := t.Context()
	id, err := connect(t, addrs[0]).Do(ctx, "CLUSTER", "MYID").Text()
	require.NoError(t, err)
	replica := connect(t, startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
		"--cluster-replica-validity-factor", "0"))
	host, port, err := net.SplitHostPort(addrs[0])
	require.NoError(t, err)
	require.NoError(t, replica.ClusterMeet(ctx, host, port).Err())
	others := []*redis.Client{connect(t, addrs[1]), connect(t, addrs[2])}
	require.True(t, becomesTrue(ctx.Done(), func() bool { return replica.ClusterReplicate(ctx, id).Err() == nil }))
	require.True(t, becomesTrue(ctx.Done(), func() bool {
		if !strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up") {
			return false
		}
		for _, node := range append(others, connect(t, addrs[0])) {
			if !strings.Contains(node.ClusterNodes(ctx).Val(), "slave "+id) {
				return false
			}
		}
		return true
	}))
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	return &site{
		rdb: rdb, degrades: someKeys, bursts: 2,
		fail: func() { require.NoError(t, processes[0].Kill()) },
		mend: func() {
			require.True(t, becomesTrue(ctx.Done(), func() bool {
				for _, node := range others { // all know that it is the replica's turn
					if strings.Contains(node.ClusterNodes(ctx).Val(), "slave "+id) {
						return false
					}
				}
				return strings.Contains(replica.Info(ctx, "replication").Val(), "role:master")
			}))
		},
	}
}
