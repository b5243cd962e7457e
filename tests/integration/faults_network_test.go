package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Faults of the way to Redis.

func slower(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Delay.Store(int64(200 * time.Millisecond)) },
		mend: func() { p.Delay.Store(0) },
	}
}

// slowerThanTheClient has replies come after the client's timeout, and before the limiter's.
func slowerThanTheClient(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb:   outageClient(t, redis.Options{Addr: addr}).WithTimeout(20 * time.Millisecond),
		lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Delay.Store(int64(40 * time.Millisecond)) },
		mend: func() { p.Delay.Store(0) },
	}
}

// nameNotFound cuts connections, and then has the server's name be unknown.
func nameNotFound(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	var unknown atomic.Bool
	var dialer net.Dialer
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if unknown.Load() {
			return nil, &net.DNSError{Err: "no such host", Name: "redis.example.com", IsNotFound: true}
		}
		return dialer.DialContext(ctx, network, addr)
	}
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr, Dialer: dial}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() {
			unknown.Store(true)
			p.CutAll()
			p.Cut.Store(false)
		},
		mend: func() { unknown.Store(false) },
	}
}

func cut(t *testing.T) *site        { return cutAt(t, 0, redis.Options{}) }
func cutFarAway(t *testing.T) *site { return cutAt(t, 10*time.Millisecond, redis.Options{}) }

func cutFartherDirect(t *testing.T) *site {
	return cutAt(t, 20*time.Millisecond, redis.Options{ContextTimeoutEnabled: true})
}

func cutAt(t *testing.T, distance time.Duration, opts redis.Options) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	p.Delay.Store(int64(distance))
	opts.Addr = addr
	return &site{
		rdb: outageClient(t, opts), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: p.CutAll,
		mend: func() { p.Cut.Store(false) },
	}
}

func swallowed(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Swallow.Store(true) },
		mend: func() { p.Swallow.Store(false) },
	}
}

// TestApacheBenchGetsExactlyTheLimit runs the command of bench/README.md: of 1,200 requests to a
// limit of 1,000, exactly 1,000 pass.
func TestApacheBenchGetsExactlyTheLimit(t *testing.T) { // not parallel: a token comes back every 3.6 s
	testkit.Need(t, "ab")
	var mu sync.Mutex
	statuses := map[int]int{}
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		mu.Lock()
		defer mu.Unlock()
		statuses[c.Writer.Status()]++
	}, testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t))).Handler("1000/h", ginlimit.PerHour(1000)))
	r.GET("/", func(*gin.Context) {})
	server := httptest.NewServer(r)
	defer server.Close()

	text := testkit.Must(os.ReadFile("../../bench/README.md"))
	readme := regexp.MustCompile(
		"(?s)```sh\n(ab [^\n]*) http://127.0.0.1:8080/ping\n```\n\n```text\n(.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, readme)
	command := append(strings.Fields(readme[1]), server.URL+"/")
	report, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, string(report))
	require.Equal(t, map[int]int{http.StatusOK: 1000, http.StatusTooManyRequests: 200}, statuses)
	for line := range strings.Lines(readme[2]) {
		if !strings.HasPrefix(line, "Time taken") {
			require.Contains(t, string(report), line, "as bench/README.md shows")
		}
	}
	require.Contains(t, readme[2], "Non-2xx responses:      200\n")
}

// tlsFiles are those of a server that is its own authority.
type tlsFiles struct{ certificate, key string }

// certificates makes the files of a server at 127.0.0.1, and the configuration of its clients.
func certificates(t *testing.T) (tlsFiles, *tls.Config) {
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certificate := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	private := testkit.Must(x509.MarshalPKCS8PrivateKey(key))
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	files := tlsFiles{write("cert.pem", "CERTIFICATE", certificate), write("key.pem", "PRIVATE KEY", private)}
	parsed := testkit.Must(x509.ParseCertificate(certificate))
	authorities := x509.NewCertPool()
	authorities.AddCert(parsed)
	return files, &tls.Config{RootCAs: authorities}
}

// TestHashSlotsThatMigrate has many callers take tokens of clients whose hash slots migrate. Redis
// decides on one limit. It decides on several while all of a client's keys are on one node, and
// answers TRYAGAIN while they are on two. What it admits and what it charges are the same, and no
// more than the limits.
func TestHashSlotsThatMigrate(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		for _, limits := range [][]ginlimit.Limit{
			{{Rate: 40, Period: 23 * time.Hour}},
			{{Rate: 40, Period: 23 * time.Hour}, ginlimit.PerDay(50)},
		} {
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), testkit.Patient(), ginlimit.WithDenyCache(0),
				ginlimit.WithFailureMode(ginlimit.FailClosed))
			client := m.ClientOnFirst(t, a, limits[0])
			var admitted, failed atomic.Int64
			take := func(n int) {
				var all sync.WaitGroup
				for range n {
					all.Go(func() {
						switch r, err := limiter.Allow(context.Background(), client, limits...); {
						case err != nil:
							assert.ErrorContains(t, err, "TRYAGAIN")
							failed.Add(1)
						case r.Allowed:
							assert.Equal(t, ginlimit.FromRedis, r.Source)
							admitted.Add(1)
						}
					})
				}
				all.Wait()
			}
			charged := func(n int64) {
				t.Helper()
				require.Equal(t, n, admitted.Load())
				require.EqualValues(t, 40-n, testkit.Must(limiter.Peek(t.Context(), client, limits...)).Remaining)
			}
			take(5)
			m.Begin(t, testkit.RedisKeyOf(a, client, limits[0]))
			take(5)
			charged(10)
			m.Move(t, testkit.RedisKeyOf(a, client, limits[0]))
			take(5)
			if len(limits) == 1 {
				charged(15)
			} else {
				require.EqualValues(t, 5, failed.Load())
				m.Move(t, testkit.RedisKeyOf(a, client, limits[1]))
				charged(10)
			}
			take(60)
			charged(40)
		}
	}
}

// TestMovedNamesTheClientToUse has a cluster refuse keys of another node. Only a client of one
// server is the wrong one: the cluster client of the test is told wrong slots.
func TestMovedNamesTheClientToUse(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 2)
	one := testkit.Connect(t, addrs[0])
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRedirects: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}}}, nil
		},
	})
	defer cluster.Close()
	for _, rdb := range []redis.UniversalClient{one, cluster} {
		limiter, log := testkit.LoggedLimiter(t, rdb)
		for i := range 20 {
			_, _ = limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerDay(5)) // those of the other node fail
		}
		require.Contains(t, log.String(), "MOVED")
		require.Equal(t, rdb == one, strings.Contains(log.String(), "redis.NewClusterClient"), log.String())
	}
}
