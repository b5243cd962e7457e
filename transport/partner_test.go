package transport_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

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
