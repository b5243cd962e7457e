package transport_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// over returns a client of a server through a transport, whose policy has slots, and the policy.
func over(t *testing.T, server *httptest.Server) (*http.Client, *ginlimit.Policy) {
	t.Helper()
	t.Cleanup(server.Close)
	p := testkit.NewPolicy(t, testkit.NewLocal(t), "partner", ginlimit.PerHour(100), ginlimit.InFlight(3))
	client := server.Client()
	calls := testkit.Must(transport.New(p, client.Transport,
		transport.WithKey(func(*http.Request) (string, error) { return "key", nil })))
	client.Transport = calls
	return client, p
}

// used requires how many tokens and slots are used.
func used(t *testing.T, p *ginlimit.Policy, tokens, slots int) {
	t.Helper()
	rows := testkit.Must(p.Status(t.Context(), "key"))
	require.Equal(t, []int{100 - tokens, 3 - slots}, []int{rows[0].Remaining, rows[1].Remaining})
}

// TestHTTP of both versions works through a transport as it does without.
func TestHTTP(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		testkit.Run(t, fmt.Sprint(version), func(t *testing.T) {
			next := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/moved":
					http.Redirect(w, r, "/echo", http.StatusTemporaryRedirect)
				case "/echo":
					text, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					_, _ = w.Write(text)
				case "/stream":
					for i := range 3 {
						fmt.Fprintln(w, i)
						w.(http.Flusher).Flush()
						<-next
					}
				case "/trailer":
					w.Header().Set("Trailer", "Sum")
					_, _ = io.WriteString(w, "body")
					w.Header().Set("Sum", "4")
				}
			}))
			server.EnableHTTP2 = version == 2
			server.StartTLS()
			client, p := over(t, server)

			response, err := client.Post(server.URL+"/moved", "text/plain", strings.NewReader("body")) // by GetBody
			require.NoError(t, err)
			require.Equal(t, version, response.ProtoMajor)
			text := testkit.Must(io.ReadAll(response.Body))
			require.Equal(t, "body", string(text))
			used(t, p, 2, 0)

			response = testkit.Must(client.Get(server.URL + "/stream"))
			lines := bufio.NewScanner(response.Body)
			for i := range 3 {
				require.True(t, lines.Scan())
				require.Equal(t, fmt.Sprint(i), lines.Text())
				used(t, p, 3, 1)
				next <- struct{}{}
			}
			require.False(t, lines.Scan())
			used(t, p, 3, 0)

			response = testkit.Must(client.Get(server.URL + "/trailer"))
			testkit.Must(io.ReadAll(response.Body))
			require.Equal(t, "4", response.Trailer.Get("Sum"))
			require.NoError(t, response.Body.Close())

			r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/echo",
				strings.NewReader("body")))
			r.Header.Set("Expect", "100-continue")
			response = testkit.Must(client.Do(r))
			text = testkit.Must(io.ReadAll(response.Body))
			require.Equal(t, "body", string(text))
			used(t, p, 5, 0)

			ctx, cancel := context.WithCancel(t.Context()) // in the middle of a body
			r = testkit.Must(http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/stream", http.NoBody))
			response = testkit.Must(client.Do(r))
			cancel()
			require.ErrorIs(t, testkit.Err(io.ReadAll(response.Body)), context.Canceled)
			used(t, p, 6, 0)
			close(next)
		})
	}
}

// TestUpgrade: the body of a 101 can be written to, and holds its slot until it is closed.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	}))
	client, p := over(t, server)
	r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody))
	r.Header.Set("Connection", "upgrade")
	r.Header.Set("Upgrade", "echo")
	response := testkit.Must(client.Transport.RoundTrip(r))
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	used(t, p, 1, 1)
	stream, ok := response.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	testkit.Must(io.WriteString(stream, "hello\n"))
	require.Equal(t, "hello\n", testkit.Must(bufio.NewReader(stream).ReadString('\n')))
	half, ok := response.Body.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	used(t, p, 1, 1)
	require.NoError(t, stream.Close())
	used(t, p, 1, 0)
}

// TestNobodyReadsABody that the server does not want: the transport sends Expect and passes its answer on.
func TestNobodyReadsABody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	server.Client().Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	client, p := over(t, server)
	sent := &closed{Reader: strings.NewReader("body")}
	r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, sent))
	r.Header.Set("Expect", "100-continue")
	response := testkit.Must(client.Do(r))
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Equal(t, 4, sent.Len(), "left to read")
	used(t, p, 100, 0) // it is blocked
}

// TestAServerThatLimits by the same library, and a client that keeps its limits, never meet a 429.
func TestAServerThatLimits(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		router := testkit.Serve(testkit.NewLocal(t).Handler("api", ginlimit.PerSecond(100),
			ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit),
			ginlimit.WithKey(ginlimit.ByHeader("X-Account"))))
		p := newPartner(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("X-Account", "a")
			router.ServeHTTP(w, r)
		})
		client, _ := process(t, b.Redis, p, limits(ginlimit.PerSecond(100)))
		start := time.Now()
		for range 500 {
			require.Equal(t, 200, testkit.Must(get(t.Context(), client, "http://partner.example/")))
		}
		require.Equal(t, 4*time.Second, time.Since(start).Round(time.Second), "all of it is used")
	})
}

// partner is an API that an application calls, without a network: a test answers its requests.
type partner struct {
	answer http.HandlerFunc // nil is 200

	mu     sync.Mutex
	start  time.Time
	called []time.Duration // since start
}

func newPartner(answer http.HandlerFunc) *partner { return &partner{answer: answer, start: time.Now()} }

// RoundTrip implements [http.RoundTripper]. It reports what it does, as net/http does.
func (p *partner) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		trace.GetConn(r.URL.Host)
		trace.GotConn(httptrace.GotConnInfo{})
	}
	p.mu.Lock()
	p.called = append(p.called, time.Since(p.start))
	p.mu.Unlock()
	w := httptest.NewRecorder()
	if p.answer != nil {
		p.answer(w, r)
	}
	response := w.Result()
	response.Request = r
	return response, nil
}

// calls returns when the partner was called.
func (p *partner) calls() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration{}, p.called...)
}

// process is a process of the application: a limiter of its own, and a client for the partner.
func process(t *testing.T, rdb redis.UniversalClient, base http.RoundTripper, policy []ginlimit.PolicyOption,
	opts ...transport.Option) (*http.Client, *ginlimit.Policy) {
	t.Helper()
	limiter := testkit.Must(ginlimit.NewLimiter(rdb))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	p := testkit.Must(limiter.Policy("partner", policy...))
	calls := testkit.Must(transport.New(p, base, opts...))
	return &http.Client{Transport: calls}, p
}

const url = "http://Partner.example/a?secret=b"

// get sends a request and reads its body.
func get(ctx context.Context, c *http.Client, url string) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode, err
}

// closed is a request's body that knows whether it was closed.
type closed struct {
	*strings.Reader
	is bool
}

func (c *closed) Close() error {
	c.is = true
	return nil
}
