//go:build integration

package web_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Guarantee 3, from end to end: over a connection, by the clock of a real server.
func TestClientThatHonoursRetryAfterIsAdmittedNext(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(testkit.Serve(testkit.Middleware(rdb,
				ginlimit.Per(1, 1900*time.Millisecond).WithAlgorithm(a),
				ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft))))
			defer server.Close()
			client := honouring{server.Client()}
			denied := 0
			for try := 0; denied < 2 && try < 100; try++ {
				tries := testkit.Must(client.get(t.Context(), server.URL))
				require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, tries[0])
				if len(tries) > 1 {
					denied++
					assert.Equal(t, []int{http.StatusTooManyRequests, http.StatusOK}, tries)
				}
			}
			assert.Equal(t, 2, denied)
		})
	}
}

// honouring is a client that waits as long as it is told to.
type honouring struct{ *http.Client }

// get returns the statuses of all tries.
func (c honouring) get(ctx context.Context, url string) (tries []int, err error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return tries, err
		}
		res, err := c.Do(req)
		if err != nil {
			return tries, err
		}
		_ = res.Body.Close()
		tries = append(tries, res.StatusCode)
		if res.StatusCode != http.StatusTooManyRequests || len(tries) == 5 {
			return tries, nil
		}
		wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if err != nil {
			return tries, fmt.Errorf("Retry-After: %w", err)
		}
		select {
		case <-time.After(time.Duration(wait) * time.Second):
		case <-ctx.Done():
			return tries, ctx.Err()
		}
	}
}
