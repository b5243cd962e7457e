package faults_test

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestPing(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, mini.Addr()), testkit.Patient())
	require.NoError(t, limiter.Ping(t.Context()))
	mini.SetError("LOADING Redis is loading the dataset in memory")
	err := limiter.Ping(t.Context())
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorContains(t, err, "LOADING")
	mini.SetError("")
	require.NoError(t, limiter.Ping(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, limiter.Ping(ctx), context.Canceled)
	mini.Close()
	require.ErrorIs(t, limiter.Ping(t.Context()), ginlimit.ErrUnavailable)
	require.NoError(t, limiter.Close())
	require.ErrorIs(t, limiter.Ping(t.Context()), ginlimit.ErrUnavailable)

	local, err := ginlimit.NewLocal()
	require.NoError(t, err)
	require.NoError(t, local.Ping(t.Context()))
	require.ErrorIs(t, new(ginlimit.Limiter).Ping(t.Context()), ginlimit.ErrInvalidArgument)
}

// unusable are clients that reach no Redis, each with the words that say why. The servers are real ones, outside of the
// bubble in which a test makes the clients.
func unusable(t *testing.T) map[string]struct {
	client func() redis.UniversalClient
	want   string
} {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	t.Cleanup(encrypted.Close)
	refused, alive := testkit.RefusedAddr(t), miniredis.RunT(t).Addr()
	dial := func(malformed string) func(context.Context, string, string) (net.Conn, error) {
		return func(_ context.Context, network, _ string) (net.Conn, error) { return net.Dial(network, malformed) }
	}
	server := func(o redis.Options) func() redis.UniversalClient {
		return func() redis.UniversalClient { return redis.NewClient(&o) }
	}
	ring := func(addrs ...string) func() redis.UniversalClient {
		return func() redis.UniversalClient {
			o := redis.RingOptions{Addrs: map[string]string{}}
			for _, addr := range addrs {
				o.Addrs[addr] = addr
			}
			return redis.NewRing(&o)
		}
	}
	type row = struct {
		client func() redis.UniversalClient
		want   string
	}
	return map[string]row{
		"a refused connection": {server(redis.Options{Addr: refused}), "connection refused"},
		"an unknown host":      {server(redis.Options{Addr: address, Dialer: unknownHost("no such")}), "no such host"},
		"a missing port":       {server(redis.Options{Addr: address, Dialer: dial("localhost")}), "missing port in address"},
		"TLS for a server without it": {
			server(redis.Options{Addr: plain.Listener.Addr().String(), TLSConfig: &tls.Config{InsecureSkipVerify: true}}),
			"tls: first record does not look like a TLS handshake",
		},
		"no TLS for a server with it": {server(redis.Options{Addr: encrypted.Listener.Addr().String()}), "it may expect TLS"},
		"no TLS for a server that says so": {server(redis.Options{Addr: address, Dialer: func(context.Context,
			string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				_, _ = there.Read(make([]byte, 1024))
				_, _ = there.Write([]byte("\x15\x03\x01\x00\x02\x02\x46")) // as OpenSSL does: the version is wrong
			}()
			return here, nil
		}}), "the server expects TLS"},
		"an untrusted certificate": {
			server(redis.Options{Addr: encrypted.Listener.Addr().String(), TLSConfig: &tls.Config{ServerName: "example.com"}}),
			"tls: failed to verify certificate",
		},
		"a web server": {server(redis.Options{Addr: plain.Listener.Addr().String()}),
			"the server does not speak Redis' protocol"},
		"a closed client": {func() redis.UniversalClient {
			rdb := redis.NewClient(&redis.Options{Addr: alive})
			_ = rdb.Close()
			return rdb
		}, "the client is closed"},
		"a server that never answers": {server(redis.Options{Addr: address,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				here, _ := net.Pipe()
				return here, nil
			}}), "late"},
		"an address with a password": {server(redis.Options{Addr: address, Dialer: dial("redis://:secret@localhost:6379")}),
			"address localhost:6379: too many colons"},
		"a host with a password": {server(redis.Options{Addr: address, Dialer: unknownHost("secret@no such")}),
			"lookup no such: no such host"},
		"a cluster that is dead": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{refused}})
		}, "connection refused"},
		"a cluster of which a master is dead": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{alive},
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					return []redis.ClusterSlot{
						{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: alive}}},
						{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: refused}}},
					}, nil
				},
			})
		}, "connection refused"},
		"a ring that is dead":             {ring(refused, testkit.RefusedAddr(t)), "connection refused"},
		"a ring of which a shard is dead": {ring(alive, refused), "connection refused"},
		"a ring of which a shard is a web": {ring(alive, plain.Listener.Addr().String()),
			"the server does not speak Redis' protocol"},
	}
}

// TestPingNamesTheCause, and takes no longer than the timeout. A ring leaves its dead shards out after a while.
func TestPingNamesTheCause(t *testing.T) {
	t.Parallel()
	for name, row := range unusable(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := row.client()
				defer time.Sleep(2 * time.Minute) // until calls that are late have ended
				defer rdb.Close()
				limiter := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(50*time.Millisecond))
				_, ring := rdb.(*redis.Ring)
				for pings := 3; pings > 0 && !(ring && pings < 3); pings-- {
					start := time.Now()
					err := limiter.Ping(t.Context())
					require.ErrorIs(t, err, ginlimit.ErrUnavailable)
					require.ErrorContains(t, err, row.want)
					require.NotContains(t, err.Error(), "secret")
					if row.want == "late" {
						require.Equal(t, row.want, redisstore.Word(err), "as operators see it")
					}
					require.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
					time.Sleep(20 * time.Second)
				}
			})
		})
	}
}
