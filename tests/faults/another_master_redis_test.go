//go:build integration

package faults_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A master is replaced behind its address, and the old one goes on. The first command that it answers by
// an error closes all connections to it: each would cost a decision, and go-redis keeps most of them.
func TestAnotherMasterBehindTheSameAddress(t *testing.T) {
	t.Parallel()
	for code, demote := range map[string]func(old, master *redis.Client){
		"READONLY": func(old, master *redis.Client) { follow(t, old, master) },
		"MASTERDOWN": func(old, _ *redis.Client) {
			require.NoError(t, old.ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err())
			require.NoError(t, old.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		},
		"NOREPLICAS": func(old, _ *redis.Client) {
			require.NoError(t, old.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		},
		"LOADING": func(old, master *redis.Client) {
			testkit.Must(master.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for i := range 2000 {
					pipe.Set(t.Context(), fmt.Sprint("ballast ", i), strings.Repeat("x", 1000), 0)
				}
				return nil
			}))
			follow(t, old, master)
		},
	} {
		for name, use := range map[string]func(t *testing.T, l *ginlimit.Limiter) (done func()){
			"a decision": func(t *testing.T, l *ginlimit.Limiter) func() {
				policy := testkit.Must(l.Policy("rate", ginlimit.PerHour(10)))
				return func() { _, _ = policy.Allow(t.Context(), "client") }
			},
			"a report": func(t *testing.T, l *ginlimit.Limiter) func() {
				policy := testkit.Must(l.Policy("slots", ginlimit.InFlight(10)))
				testkit.Must(policy.Reserve(t.Context(), "client", 1))
				slot := testkit.Must(policy.Reserve(t.Context(), "client", 1))
				return slot.Release // the report says that one is still held
			},
		} {
			t.Run(code+" to "+name, func(t *testing.T) {
				t.Parallel()
				a := testkit.StartRedis(t, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
				b := testkit.StartRedis(t, "--repl-diskless-sync-delay", "0")
				old, master := testkit.Connect(t, a), testkit.Connect(t, b)
				proxy, addr := testkit.StartProxy(t, a)
				rdb := redis.NewClient(&redis.Options{Addr: addr, ClientName: "application", ReadTimeout: testkit.Patience})
				t.Cleanup(func() { _ = rdb.Close() })
				l := testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithReplicas(1)))
				t.Cleanup(func() { _ = l.Close() })
				command := use(t, l)
				openConnections(t, rdb, 10)
				proxy.Switch(b)
				demote(old, master)
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
					return redis.HasErrorPrefix(old.Get(t.Context(), "x").Err(), code) ||
						redis.HasErrorPrefix(old.Set(t.Context(), "x", 1, 0).Err(), code)
				}))
				command()
				connections := func() int {
					return strings.Count(old.ClientList(t.Context()).Val(), " name=application ")
				}
				assert.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return connections() == 0 }),
					"%d connections are left", connections())
			})
		}
	}
}

// follow makes a server a replica of another.
func follow(t *testing.T, replica, master *redis.Client) {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Options().Addr)
	require.NoError(t, err)
	require.NoError(t, replica.ReplicaOf(t.Context(), host, port).Err())
}

// openConnections has a client make n connections.
func openConnections(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	for range n {
		conn := rdb.Conn()
		defer conn.Close()
		require.NoError(t, conn.Ping(t.Context()).Err())
	}
}
