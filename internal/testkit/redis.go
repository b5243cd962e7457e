// Package testkit is what the tests of several packages have in common.
//
// It owns a model of each kind of limit, traces of calls, and places to run them: redis-servers,
// proxies that fail on demand, bubbles with a Redis, and limiters with the patience of a busy
// machine. Only tests import it.
package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// StartRedis starts a redis-server of the test's own, or what REDIS_SERVER names, and returns its address. More
// arguments are options of redis-server.
func StartRedis(t testing.TB, args ...string) string {
	t.Helper()
	addr, _ := StartRedisProcess(t, args...)
	return addr
}

// StartRedisProcess is [StartRedis], and returns the process too.
func StartRedisProcess(t testing.TB, args ...string) (addr string, process *os.Process) {
	t.Helper()
	for range 5 { // another process may take the port first
		addr = "127.0.0.1:" + FreePort(t)
		if process := LaunchRedis(t, addr, args...); process != nil {
			return addr, process
		}
	}
	require.Fail(t, "redis-server does not start")
	return "", nil
}

// LaunchRedis starts a redis-server at addr that ends with the test, or returns nil. A first argument
// that is no option is its configuration file.
func LaunchRedis(t testing.TB, addr string, args ...string) *os.Process {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	own := []string{"--port", port, "--bind", host, "--dir", t.TempDir(), "--save", "", "--appendonly", "no"}
	if len(args) > 0 && !strings.HasPrefix(args[0], "--") {
		own, args = append([]string{args[0]}, own...), args[1:]
	}
	cmd := exec.Command(redisServer(t), append(own, args...)...)
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	end := func() { _ = cmd.Process.Kill(); <-exited }
	if !answers(addr, cmd.Process.Pid, exited) {
		end()
		return nil
	}
	t.Cleanup(end)
	return cmd.Process
}

// redisServer returns the path of the server that tests start: REDIS_SERVER names another one, such as a valkey-server.
func redisServer(t testing.TB) string {
	t.Helper()
	if named := os.Getenv("REDIS_SERVER"); named != "" {
		path, err := exec.LookPath(named)
		require.NoError(t, err, "REDIS_SERVER")
		return path
	}
	return Need(t, "redis-server")
}

// Need returns the path of a program, or skips the test; in CI it fails the test.
func Need(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		how := map[string]string{"redis-server": "redis-server", "ab": "apache2-utils", "bash": "bash",
			"lua5.4": "lua5.4", "prometheus": "prometheus", "promtool": "prometheus"}[program]
		const text = "needs %s: apt-get install %s"
		if os.Getenv("CI") == "true" {
			require.Failf(t, "missing", text, program, how)
		}
		t.Skipf(text, program, how)
	}
	return path
}

// answers waits until the server at addr answers, or has exited. Another process at addr is not it.
func answers(addr string, pid int, exited <-chan struct{}) bool {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	return BecomesTrue(exited, func() bool {
		info, err := rdb.Info(context.Background(), "server").Result()
		return err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", pid))
	})
}

// BecomesTrue polls a condition for at most a minute, or until stop.
func BecomesTrue(stop <-chan struct{}, condition func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if condition() {
			return true
		}
		select {
		case <-ticker.C:
		case <-stop:
			return false
		}
	}
	return false
}

// FreePort returns a port that only who asks for it by its number gets until the test ends, as redis-server does.
func FreePort(t testing.TB) string {
	t.Helper()
	for from := 0; ; { // any
		if port, err := takePort(t, from, true); err == nil && port <= 55535 { // a cluster node also listens on port + 10000
			return strconv.Itoa(port)
		}
		from = 20_000 + rand.IntN(10_000)
	}
}

// RefusedAddr returns an address that refuses connections until the test ends: its port is taken,
// and nobody listens there.
func RefusedAddr(t testing.TB) string {
	t.Helper()
	port, err := takePort(t, 0, false)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", port)
}

// takePort keeps a port, or any for 0, from others until the test ends. Who asks for it by its number may share it.
func takePort(t testing.TB, port int, shared bool) (int, error) {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Close(socket)) })
	if shared {
		require.NoError(t, syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	addr, err := syscall.Getsockname(socket)
	require.NoError(t, err)
	return addr.(*syscall.SockaddrInet4).Port, nil
}

// Connect returns a client of the server at addr that ends with the test.
func Connect(t testing.TB, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ConnectDirect is [Connect], with a client that ends calls with their context: callers go to Redis themselves.
func ConnectDirect(t testing.TB, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ConnectCluster is [Connect] of a cluster.
func ConnectCluster(t testing.TB, addrs ...string) *redis.ClusterClient {
	t.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// StartCluster starts n masters that share the slots out, and returns their addresses.
func StartCluster(t testing.TB, n int) []string {
	addrs, _ := StartClusterProcesses(t, n)
	return addrs
}

// StartClusterProcesses is [StartCluster] with options of redis-server, and returns the processes too.
func StartClusterProcesses(t testing.TB, n int, args ...string) ([]string, []*os.Process) {
	t.Helper()
	ctx := t.Context()
	nodes := make([]*redis.Client, n)
	addrs, processes := make([]string, n), make([]*os.Process, n)
	for i := range nodes {
		addrs[i], processes[i] = StartRedisProcess(t, append([]string{"--cluster-enabled", "yes"}, args...)...)
		nodes[i] = Connect(t, addrs[i])
		const slots = 16384
		require.NoError(t, nodes[i].Do(ctx, "CLUSTER", "ADDSLOTSRANGE", i*slots/n, (i+1)*slots/n-1).Err())
		if i > 0 {
			host, port, err := net.SplitHostPort(addrs[0])
			require.NoError(t, err)
			require.NoError(t, nodes[i].ClusterMeet(ctx, host, port).Err())
		}
	}
	for i, node := range nodes {
		require.True(t, BecomesTrue(ctx.Done(), func() bool {
			info, err := node.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, "cluster_slots_assigned:16384")
		}), fmt.Sprintf("node %d does not join", i))
	}
	return addrs, processes
}

// Patience is how long clients wait for a reply, where that must not be what ends a decision.
const Patience = time.Hour

// Clients are two of one server: one that ends calls with their context, so that callers go themselves, and
// one that does not.
func Clients(t *testing.T, addr string) map[string]*redis.Client {
	both := map[string]*redis.Client{}
	for name, direct := range map[string]bool{"direct": true, "by a goroutine": false} {
		rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: direct, ReadTimeout: Patience})
		t.Cleanup(func() { _ = rdb.Close() })
		both[name] = rdb
	}
	return both
}
