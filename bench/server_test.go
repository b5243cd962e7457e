package bench

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startRedis starts a redis-server of the benchmark's own and returns its address.
func startRedis(tb testing.TB) string {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		tb.Skip("needs redis-server: apt-get install redis-server")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = listener.Close()
	cmd := exec.Command(binary, "--port", port, "--bind", "127.0.0.1", "--dir", tb.TempDir(), "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return addr
		}
		if time.Now().After(deadline) {
			tb.Fatal("redis-server does not start: ", err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// connect returns a client that ends with the benchmark, and calls with their context.
func connect(tb testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// stat returns a number of INFO: the first group of the expression in a section.
func stat(ctx context.Context, rdb *redis.Client, section, expression string) (float64, error) {
	info, err := rdb.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(expression).FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("no %s in INFO %s", expression, section)
	}
	return strconv.ParseFloat(m[1], 64)
}
