package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// TestAPanicAfterAResponse of a function of the policy frees the slot and closes the body.
func TestAPanicAfterAResponse(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		panics, calls := false, 0
		p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls == 1 {
				panics = true
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests) // the policy is blocked
			}
		})
		body := &tracked{RoundTripper: p}
		client, _ := process(t, b.Redis, body, []ginlimit.PolicyOption{
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
				if panics {
					panics = false
					panic("policy")
				}
				return limitsOf(ginlimit.PerSecond(1000), ginlimit.InFlight(1)), nil
			})})
		require.Panics(t, func() { _, _ = get(t.Context(), client, url) })
		require.True(t, body.is)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := get(ctx, client, url)
		require.NoError(t, err, "it has the slot")
	})
}

// tracked is an API of which the responses' bodies know whether they were closed.
type tracked struct {
	http.RoundTripper
	closed
}

// RoundTrip implements [http.RoundTripper].
func (c *tracked) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	c.Reader = strings.NewReader("")
	response.Body = &c.closed
	return response, err
}

// TestStackedTransports: the outer one gives back what it took for a request that the inner one does not send.
func TestStackedTransports(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.NewLimiter(t, b.Redis)
		inner := testkit.Must(transport.New(testkit.NewPolicy(t, limiter, "inner", ginlimit.PerHour(1)), newPartner(nil)))
		policy := testkit.NewPolicy(t, limiter, "outer", ginlimit.PerHour(100))
		outer := testkit.Must(transport.New(policy, inner))
		client := &http.Client{Transport: outer}
		testkit.Must(get(t.Context(), client, url))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := get(ctx, client, url)
		var late *transport.TooLateError
		require.ErrorAs(t, err, &late)
		require.Equal(t, 99, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining)
	})
}

// TestACanceledRequestWithAConnection may have been sent: of HTTP/2 nobody says when.
func TestACanceledRequestWithAConnection(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		client, policy := process(t, b.Redis, cancels{}, limits(ginlimit.PerHour(100)))
		require.ErrorIs(t, testkit.Err(get(t.Context(), client, url)), context.Canceled)
		require.Equal(t, 99, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining)
	})
}

// cancels is HTTP/2 whose caller goes away while a request is written.
type cancels struct{}

// RoundTrip implements [http.RoundTripper].
func (cancels) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(r.Context())
	trace.GetConn(r.URL.Host)
	trace.GotConn(httptrace.GotConnInfo{})
	return nil, context.Canceled
}

// TestErrorsOfOthers are not taken for a deadline of the request.
func TestErrorsOfOthers(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for _, more := range []ginlimit.PolicyOption{ginlimit.WithFloor(0), ginlimit.WithLease(time.Second)} {
			client, _ := process(t, b.Redis, newPartner(nil), []ginlimit.PolicyOption{more,
				ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
					return nil, fmt.Errorf("database: %w", context.DeadlineExceeded)
				})})
			_, err := get(t.Context(), client, url)
			var late *transport.TooLateError
			require.NotErrorAs(t, err, &late)
			require.ErrorContains(t, err, "database")
		}
	})
}

// TestRequestsWithoutRedis go on as the failure mode says: they wait for what this process may send, pass, or are not
// sent.
func TestRequestsWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		mode ginlimit.FailureMode
		took time.Duration // in seconds, rounded down
		sent int
		err  error
	}{
		{ginlimit.FailLocal, 2 * time.Second, 3, nil},
		{ginlimit.FailOpen, 0, 3, nil},
		{ginlimit.FailClosed, 0, 0, ginlimit.ErrUnavailable},
	} {
		testkit.RunSynctest(t, row.mode.String(), func(t *testing.T) {
			p := newPartner(nil)
			client, _ := process(t, testkit.Unreachable(t), p,
				[]ginlimit.PolicyOption{ginlimit.PerSecond(1), ginlimit.WithFailureMode(row.mode)})
			start := time.Now()
			for range 3 {
				require.ErrorIs(t, testkit.Err(get(t.Context(), client, url)), row.err)
			}
			require.Equal(t, row.took, time.Since(start).Truncate(time.Second))
			require.Len(t, p.calls(), row.sent)
		})
	}
}
