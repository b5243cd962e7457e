package integration

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
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
