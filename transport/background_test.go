package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// leaves is a partner that says what is left of each request by its path.
func leaves(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-RateLimit-Remaining", r.URL.Path[1:])
}

// TestAResponseDoesNotWaitUntilThePolicyIsLowered, and what follows goes by it all the same.
func TestAResponseDoesNotWaitUntilThePolicyIsLowered(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const away = 20 * time.Millisecond
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error { time.Sleep(away); return send() }))
		client, policy := process(t, b.Redis, newPartner(leaves), limits(ginlimit.Per(100, 10*time.Second)))
		took := func(left int) time.Duration {
			start := time.Now()
			testkit.Must(get(t.Context(), client, fmt.Sprintf("http://partner.example/%d", left)))
			return time.Since(start)
		}
		took(99) // it connects
		time.Sleep(time.Second)
		require.Equal(t, away, took(30))
		require.Equal(t, away, took(29), "another request may be sent")
		time.Sleep(time.Second)
		require.Less(t, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining, 50, "of 99 without it")
		require.Equal(t, away, took(0))
		require.Equal(t, 2*away, took(0), "it waits for what the one before was told: one token may have flowed back since")
		require.Greater(t, took(0), 2*away, "the next one waits for a token")
	})
}

// TestNewerCorrectionsReplaceWaitingOnes: one call of a key is on its way, and then one more, for the newest response.
func TestNewerCorrectionsReplaceWaitingOnes(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var asked atomic.Int64
		stuck := make(chan struct{})
		limitsOf := ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
			if _, limited := ctx.Deadline(); limited { // in the background
				asked.Add(1)
				<-stuck
			}
			return limitsOf(ginlimit.PerHour(100)), nil
		})
		client, policy := process(t, b.Redis, newPartner(leaves), []ginlimit.PolicyOption{limitsOf})
		for left := range 10 {
			testkit.Must(get(t.Context(), client, fmt.Sprintf("http://partner.example/%d", 60-left)))
			time.Sleep(150 * time.Millisecond)
		}
		require.EqualValues(t, 1, asked.Load())
		close(stuck)
		synctest.Wait()
		require.EqualValues(t, 2, asked.Load())
		require.Equal(t, 52, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining,
			"the last response said 51, and a token may have flowed back since")
	})
}

// TestCorrectionsAreBounded: of so many keys at once. The response of a further one waits, and its policy is lowered
// too.
func TestCorrectionsAreBounded(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var waiting atomic.Int64
		stuck := make(chan struct{})
		limitsOf := ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
			if _, limited := ctx.Deadline(); limited { // in the background
				waiting.Add(1)
				<-stuck
			}
			return limitsOf(ginlimit.PerHour(100)), nil
		})
		client, policy := process(t, b.Redis, newPartner(leaves), []ginlimit.PolicyOption{limitsOf})
		for i := range 300 {
			testkit.Must(get(t.Context(), client, fmt.Sprintf("http://h%d.example/30", i)))
		}
		synctest.Wait()
		require.EqualValues(t, 256, waiting.Load())
		require.Equal(t, 99, testkit.Must(policy.Peek(t.Context(), "h0.example")).Remaining)
		require.Equal(t, 30, testkit.Must(policy.Peek(t.Context(), "h299.example")).Remaining)
		close(stuck)
		synctest.Wait()
		require.Equal(t, 30, testkit.Must(policy.Peek(t.Context(), "h0.example")).Remaining)
	})
}

// TestCloseWaitsForCorrections, and begins none after it.
func TestCloseWaitsForCorrections(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.Must(ginlimit.NewLimiter(b.Redis))
		policy := testkit.Must(limiter.Policy("partner", ginlimit.PerHour(100)))
		client := &http.Client{Transport: testkit.Must(transport.New(policy, newPartner(leaves)))}
		testkit.Must(get(t.Context(), client, "http://partner.example/99"))
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error { time.Sleep(20 * time.Millisecond); return send() }))
		testkit.Must(get(t.Context(), client, "http://partner.example/30"))
		synctest.Wait() // until it is on its way
		require.NoError(t, limiter.Close())
		other := testkit.Must(testkit.Must(ginlimit.NewLimiter(b.Connect(t))).Policy("partner", ginlimit.PerHour(100)))
		require.Equal(t, 30, testkit.Must(other.Peek(t.Context(), "partner.example")).Remaining)
	})
}

// TestAPanicInTheBackgroundEndsNoProcess: a policy's function may panic there too.
func TestAPanicInTheBackgroundEndsNoProcess(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var panics atomic.Bool
		limitsOf := ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
			if _, limited := ctx.Deadline(); limited && panics.Swap(false) {
				panic("why")
			}
			return limitsOf(ginlimit.PerHour(100)), nil
		})
		client, policy := process(t, b.Redis, newPartner(leaves), []ginlimit.PolicyOption{limitsOf})
		panics.Store(true)
		for range 2 {
			testkit.Must(get(t.Context(), client, "http://partner.example/30"))
			time.Sleep(time.Second)
		}
		require.Equal(t, 30, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining, "the next response counts")
		require.False(t, panics.Load())
	})
}

// TestASettlementWaitsForACorrection, but not without an end, and what is not settled does not wait.
func TestASettlementWaitsForACorrection(t *testing.T) {
	for name, row := range map[string]struct {
		lowers time.Duration // how long a correction takes
		actual int
		waits  time.Duration
		left   int // after it: one token may have flowed back since
	}{
		"a correction in time":        {time.Second, 4, time.Second, 37},
		"a correction without end":    {time.Minute, 4, 5 * time.Second, 96},
		"a response without a number": {time.Minute, -1, 0, 90},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			limitsOf := ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
				if _, limited := ctx.Deadline(); limited { // in the background
					time.Sleep(row.lowers)
				}
				return limitsOf(ginlimit.PerHour(100)), nil
			})
			client, policy := process(t, b.Redis, newPartner(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-RateLimit-Remaining-Tokens", "30")
			}), []ginlimit.PolicyOption{limitsOf},
				transport.WithCost(func(*http.Request) int { return 10 }),
				transport.WithSettle(func(*http.Response) int { return row.actual }))
			start := time.Now()
			testkit.Must(get(t.Context(), client, url))
			require.Equal(t, row.waits, time.Since(start))
			require.Equal(t, row.left, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining)
			time.Sleep(2 * time.Minute) // until no correction is left
		})
	}
}

// TestAKeyIsHeldUpOnce by a correction that does not end, whatever other responses say.
func TestAKeyIsHeldUpOnce(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limitsOf := ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
			if _, limited := ctx.Deadline(); limited { // in the background
				time.Sleep(time.Minute)
			}
			return limitsOf(ginlimit.PerSecond(100)), nil
		})
		client, _ := process(t, b.Redis, newPartner(leaves), []ginlimit.PolicyOption{limitsOf})
		start := time.Now()
		for range 10 {
			testkit.Must(get(t.Context(), client, "http://partner.example/0"))
			time.Sleep(time.Second)
		}
		require.Equal(t, 18*time.Second, time.Since(start), "two corrections until 5 s after each began to be due")
		time.Sleep(2 * time.Minute) // until no correction is left
	})
}

// TestWhoLeavesDoesNotWaitForRedis, which gives back or settles what the request took all the same. Close waits for it.
func TestWhoLeavesDoesNotWaitForRedis(t *testing.T) {
	const away = 20 * time.Millisecond
	hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, &transport.TooLateError{}
	})
	for name, row := range map[string]struct {
		base http.RoundTripper
		more []ginlimit.PolicyOption
		left int // of 100, of which the request takes 10
	}{
		"before it is sent":            {hangs, nil, 100},
		"before it is sent, of a slot": {hangs, limits(ginlimit.InFlight(1)), 100},
		"after the response":           {newPartner(nil), nil, 97},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			b.Redis.AddHook(testkit.EveryScript(func(send func() error) error { time.Sleep(away); return send() }))
			limiter := testkit.Must(ginlimit.NewLimiter(b.Redis))
			policy := testkit.Must(limiter.Policy("partner", append(row.more, ginlimit.PerDay(100))...))
			client := &http.Client{Transport: testkit.Must(transport.New(policy, row.base,
				transport.WithCost(func(*http.Request) int { return 10 }),
				transport.WithSettle(func(*http.Response) int { return 3 })))}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			response, err := client.Do(testkit.Must(http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)))
			if err == nil {
				<-ctx.Done()
				require.NoError(t, response.Body.Close())
			}
			require.Equal(t, time.Second, time.Since(start))
			require.NoError(t, limiter.Close())
			other := testkit.Must(testkit.NewLimiter(t, b.Connect(t)).Policy("partner", ginlimit.PerDay(100)))
			require.Equal(t, row.left, testkit.Must(other.Peek(t.Context(), "partner.example")).Remaining)
		})
	}
}

// roundTripper is an API in a function.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
