package integration

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// Clients that retry by themselves, above a transport.

// hourly are the tokens, and atOnce the slots, of the clients' policies. A block leaves a window what it had.
const hourly, atOnce = 1000, 2

// beneath returns a transport for a client, and what it leaves.
func beneath(t *testing.T, rdb redis.UniversalClient, opts ...transport.Option) (http.RoundTripper, func() []int) {
	t.Helper()
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), quietly))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	p := testkit.Must(limiter.Policy("partner",
		ginlimit.PerHour(hourly).WithAlgorithm(ginlimit.FixedWindow), ginlimit.InFlight(atOnce)))
	key := transport.WithKey(func(*http.Request) (string, error) { return "account", nil })
	calls := testkit.Must(transport.New(p, nil, append(opts, key)...))
	return calls, func() (left []int) {
		rows := testkit.Must(p.Status(t.Context(), "account"))
		for _, row := range rows {
			left = append(left, row.Remaining)
		}
		return left
	}
}

// denyFirst answers the first request with a 429, and lets f answer the others.
func denyFirst(t *testing.T, requests *atomic.Int64, f http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		f(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// TestRetryableHTTP of HashiCorp: each of its attempts counts and waits, with its body. What it could not connect for
// takes nothing.
func TestRetryableHTTP(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := denyFirst(t, &requests, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	calls, left := beneath(t, testkit.Connect(t, testkit.StartRedis(t)))
	client := retryablehttp.NewClient()
	client.HTTPClient, client.Logger = &http.Client{Transport: calls}, nil
	client.RetryMax, client.RetryWaitMin, client.RetryWaitMax = 2, time.Millisecond, time.Millisecond
	response, err := client.Post("http://"+testkit.RefusedAddr(t), "text/plain", []byte("body"))
	require.ErrorContains(t, err, "giving up after 3 attempt(s)")
	require.Nil(t, response)
	require.Equal(t, []int{hourly, atOnce}, left())

	// The transport waits.
	client.Backoff = func(time.Duration, time.Duration, int, *http.Response) time.Duration { return 0 }
	began := time.Now()
	response = testkit.Must(client.Post(server.URL, "text/plain", []byte("body")))
	text := testkit.Must(io.ReadAll(response.Body))
	require.NoError(t, response.Body.Close())
	require.Equal(t, "body", string(text))
	require.EqualValues(t, 2, requests.Load())
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	require.Equal(t, []int{hourly - 2, atOnce}, left())
}

// A process that calls a partner as often as it may. It is this test program, started again.

// The environment variables of such a process: the address of Redis, and the partner's URL.
const (
	transportRedis = "GINLIMIT_TRANSPORT_REDIS"
	transportURL   = "GINLIMIT_TRANSPORT_URL"
)

const (
	transportCallers = 8 // of each process
	transportSlots   = 40
	transportRate    = 100
)

// serveTransport is the program of such a process, which is killed in the end.
func serveTransport(addr, url string) {
	// The partner's burst is 100. Calls that leave evenly may arrive in bunches, so the policy has a smaller one.
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed)))
	policy := testkit.Must(limiter.Policy("partner",
		ginlimit.PerSecond(transportRate).WithBurst(transportRate/4), ginlimit.InFlight(transportSlots)))
	base := &http.Transport{MaxIdleConnsPerHost: transportCallers}
	client := &http.Client{Transport: testkit.Must(transport.New(policy, base,
		transport.WithKey(func(*http.Request) (string, error) { return "account", nil })))}
	var all sync.WaitGroup
	for range transportCallers {
		all.Go(func() {
			for {
				if status, err := callPartner(client, url); err != nil || status != 200 {
					log.Print("a call of the partner: ", status, err)
				}
			}
		})
	}
	all.Wait()
}

// startTransportProcess starts such a process. It ends with the test, or when it is killed.
func startTransportProcess(t *testing.T, addr, url string) (kill func()) {
	t.Helper()
	program := testkit.Must(os.Executable())
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), transportRedis+"="+addr, transportURL+"="+url)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// TestTransportsOfProcesses hold a partner's limit for a minute without a 429, and use it, while one of them is killed
// and started again. A killed process keeps no slot.
func TestTransportsOfProcesses(t *testing.T) {
	const lasts, life = time.Minute, 10 * time.Second
	addr := testkit.StartRedis(t)
	p := startPartner(t, ginlimit.PerSecond(transportRate))
	for range 3 {
		startTransportProcess(t, addr, p.url)
	}
	for p.allowed.Load() < transportRate { // they have started, and used up the bursts
		pause(time.Millisecond)
	}
	from, began := p.allowed.Load(), time.Now()
	for time.Since(began) < lasts {
		kill := startTransportProcess(t, addr, p.url)
		pause(min(life, lasts-time.Since(began)))
		kill()
	}
	used := float64(p.allowed.Load()-from) / (transportRate * time.Since(began).Seconds())
	say(t, "%d calls, %.3f of the limit, at most %d at once, %d denied", p.allowed.Load(), used, p.most.Load(),
		p.denied.Load())
	require.Zero(t, p.denied.Load())
	assert.GreaterOrEqual(t, used, 0.97)
	assert.LessOrEqual(t, p.most.Load(), int64(transportSlots))
}

var quietly = ginlimit.WithLogger(slog.New(slog.DiscardHandler))

// apiPartner is an API that applications call. It limits all of them together, by this library, and counts.
type apiPartner struct {
	url      string
	allowed  atomic.Int64
	denied   atomic.Int64
	inFlight atomic.Int64
	most     atomic.Int64 // in flight at once
}

// startPartner starts one that reports its limit in the draft's fields and in X-RateLimit.
func startPartner(t *testing.T, limit ginlimit.Limit) *apiPartner {
	t.Helper()
	p := &apiPartner{}
	limiter := testkit.NewLocal(t)
	router := gin.New()
	router.Use(func(c *gin.Context) {
		for now := p.inFlight.Add(1); ; {
			if most := p.most.Load(); now <= most || p.most.CompareAndSwap(most, now) {
				break
			}
		}
		defer p.inFlight.Add(-1)
		c.Next()
		if c.Writer.Status() == http.StatusTooManyRequests {
			p.denied.Add(1)
		}
	}, limiter.Handler("api", limit, testkit.All(), ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit)))
	router.GET("/", func(*gin.Context) { p.allowed.Add(1) })
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// callPartner sends one request and reads its response.
func callPartner(client *http.Client, url string) (status int, err error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, fmt.Errorf("the body: %w", err)
	}
	return response.StatusCode, nil
}
