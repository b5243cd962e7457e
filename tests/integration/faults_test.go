package integration

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
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
	{"40 ms slower, client of WithTimeout(20 ms)", slowerThanTheClient},
	{"frozen, a pool of one connection", frozenPoolOfOne},
	{"frozen, over a Unix socket", frozenSocket},
	{"killed and started again, client with RESP2", killedRESP2},
	{"its name is not found", nameNotFound},
	{"CLIENT PAUSE", paused},
	{"a script that does not end (BUSY)", busy},
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

func frozenPoolOfOne(t *testing.T) *site { return freeze(t, redis.Options{PoolSize: 1}) }

func frozenSocket(t *testing.T) *site {
	socket := filepath.Join(t.TempDir(), "redis.sock")
	return freeze(t, redis.Options{Network: "unix", Addr: socket}, "--unixsocket", socket)
}

// freeze stops a server. Without an address in the options, the client has the server's own.
func freeze(t *testing.T, opts redis.Options, args ...string) *site {
	addr, process := testkit.StartRedisProcess(t, args...)
	if opts.Addr == "" {
		opts.Addr = addr
	}
	return &site{
		rdb: outageClient(t, opts), lasts: 3 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { require.NoError(t, process.Signal(syscall.SIGSTOP)) },
		mend: func() { require.NoError(t, process.Signal(syscall.SIGCONT)) },
	}
}

func killed(t *testing.T) *site      { return kill(t, redis.Options{}) }
func killedRESP2(t *testing.T) *site { return kill(t, redis.Options{Protocol: 2}) }

func kill(t *testing.T, opts redis.Options) *site {
	addr, process := testkit.StartRedisProcess(t)
	opts.Addr = addr
	return &site{
		rdb: outageClient(t, opts), lasts: 3 * time.Second, degrades: freshKey, bursts: 2,
		fail: func() { require.NoError(t, process.Kill()) },
		mend: func() { require.NotNil(t, testkit.LaunchRedis(t, addr)) },
	}
}

func flushed(t *testing.T) *site {
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	flush := func() { require.NoError(t, admin.ScriptFlush(t.Context()).Err()) }
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: time.Second, bursts: 1, fail: flush, mend: flush,
	}
}

func paused(t *testing.T) *site {
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { require.NoError(t, admin.Do(t.Context(), "CLIENT", "PAUSE", 2000, "ALL").Err()) },
		mend: func() { // UNPAUSE would wait too
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return admin.Ping(t.Context()).Err() == nil }))
		},
	}
}

func busy(t *testing.T) *site {
	addr := testkit.StartRedis(t, "--busy-reply-threshold", "10")
	admin := testkit.Connect(t, addr)
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { go testkit.Connect(t, addr).Eval(context.Background(), "while true do end", nil) },
		mend: func() { require.NoError(t, admin.ScriptKill(t.Context()).Err()) },
	}
}

func full(t *testing.T) *site {
	addr := testkit.StartRedis(t, "--maxmemory-policy", "noeviction")
	admin := testkit.Connect(t, addr)
	memory := func(bytes string) { require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
	return &site{
		// Redis refuses no write of a script that has made one: a new bucket may be made beside one that exists.
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: someKeys, bursts: 1,
		fail: func() { memory("1") },
		mend: func() { memory("0") },
	}
}

func readOnly(t *testing.T) *site {
	addr, master := testkit.StartRedis(t), testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
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
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	var names []string // of the keys that are asked for at more than their rate
	for _, policy := range policies {
		names = append(names, strings.Replace(testkit.RedisKey("hot", hotLimit), "ginlimit", policy.String(), 1))
	}
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: hotKey, bursts: 2,
		fail: func() {
			testkit.Must(admin.TxPipelined(t.Context(), func(tx redis.Pipeliner) error {
				for _, name := range names {
					tx.Del(t.Context(), name)
					tx.RPush(t.Context(), name, "x")
				}
				return nil
			}))
		},
		mend: func() { require.NoError(t, admin.Del(t.Context(), names...).Err()) },
	}
}

func passwordRefused(t *testing.T) *site {
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	password := func(p string) { require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", p).Err()) }
	password(outagePassword)
	return &site{
		rdb:   outageClient(t, redis.Options{Addr: addr, Password: outagePassword}),
		lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
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
	addr, process := testkit.StartRedisProcess(t, "--dir", dir)
	admin := testkit.Connect(t, addr)
	for i := range 4000 {
		require.NoError(t, admin.Set(t.Context(), fmt.Sprint("ballast ", i), strings.Repeat("x", 1000), 0).Err())
	}
	require.NoError(t, admin.Save(t.Context()).Err())
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: time.Second, degrades: freshKey, bursts: 2,
		fail: func() {
			require.NoError(t, process.Kill())
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { // the killed server may have the port
				return testkit.LaunchRedis(t, addr, "--dir", dir, "--key-load-delay", "1000",
					"--loading-process-events-interval-bytes", "1024") != nil
			}))
			info := testkit.Must(admin.Info(t.Context(), "persistence").Result())
			require.Contains(t, info, "\nloading:1", "it has loaded its data already")
		},
		mend: func() {
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return admin.Ping(t.Context()).Err() == nil }))
		},
	}
}

func connectionsTaken(t *testing.T) *site {
	// Since go-redis 9.23, pipelines have connections of their own, unless their number is below 0.
	rdb := outageClient(t, redis.Options{Addr: testkit.StartRedis(t), PoolSize: 10, PipelinePoolSize: -1})
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
