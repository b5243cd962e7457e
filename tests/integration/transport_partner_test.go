package integration

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

var quietly = ginlimit.WithLogger(slog.New(slog.DiscardHandler))

// apiPartner is an API that applications call. It limits all of them together, by this library, and counts.
type apiPartner struct {
	url      string
	allowed  atomic.Int64
	denied   atomic.Int64
	inFlight atomic.Int64
	most     atomic.Int64 // in flight at once

	mu     sync.Mutex
	served map[string][]time.Time // by the path of a request that was allowed
}

// startPartner starts one that reports its limit in the draft's fields and in X-RateLimit.
func startPartner(t *testing.T, limit ginlimit.Limit) *apiPartner {
	t.Helper()
	p := &apiPartner{served: map[string][]time.Time{}}
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
	router.GET("/*path", func(c *gin.Context) {
		p.allowed.Add(1)
		p.mu.Lock()
		defer p.mu.Unlock()
		path := c.Request.URL.Path
		p.served[path] = append(p.served[path], time.Now())
	})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// between returns how many requests it served between two times.
func (p *apiPartner) between(from, to time.Time) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.served {
		for _, at := range times {
			if at.After(from) && at.Before(to) {
				n++
			}
		}
	}
	return n
}

// through returns a client of a partner through a transport: of a process' own limiter, or another process in one.
func through(rdb redis.UniversalClient, policy []ginlimit.PolicyOption, opts ...ginlimit.LimiterOption) (*http.Client,
	*ginlimit.Limiter, error) {
	limiter, err := ginlimit.NewLimiter(rdb, opts...)
	if err != nil {
		return nil, nil, err
	}
	quota, err := limiter.Policy("partner", policy...)
	if err != nil {
		return nil, nil, err
	}
	base := &http.Transport{MaxIdleConnsPerHost: transportCallers}
	calls, err := transport.New(quota, base, transport.WithKey(func(*http.Request) (string, error) { return "account", nil }))
	return &http.Client{Transport: calls}, limiter, err
}

// callPartner sends one request and reads its response.
func callPartner(ctx context.Context, client *http.Client, url string) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, fmt.Errorf("the body: %w", err)
	}
	return response.StatusCode, nil
}

// transportClient is [through] for a test.
func transportClient(t *testing.T, rdb redis.UniversalClient, policy []ginlimit.PolicyOption,
	opts ...ginlimit.LimiterOption) *http.Client {
	t.Helper()
	client, limiter, err := through(rdb, policy, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	return client
}
