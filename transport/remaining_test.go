package transport_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// TestManyProcessesLowerOnce what the policy has left, however many of them read the same response at once.
func TestManyProcessesLowerOnce(t *testing.T) {
	for name, lim := range map[string][]ginlimit.Limit{
		"a bucket": {ginlimit.PerHour(1000)}, "with slots": {ginlimit.PerHour(1000), ginlimit.InFlight(100)},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Millisecond)
				w.Header().Set("X-RateLimit-Remaining", "900")
			})
			var all sync.WaitGroup
			var policy *ginlimit.Policy
			for range 20 {
				var client *http.Client
				client, policy = process(t, b.Connect(t), p, limits(lim...))
				all.Go(func() { _, err := get(t.Context(), client, url); assert.NoError(t, err) })
			}
			all.Wait()
			synctest.Wait() // the policy is lowered in the background
			rows, err := policy.Status(t.Context(), "partner.example")
			require.NoError(t, err)
			require.Equal(t, 901, rows[0].Remaining, "and what may have flowed back, rounded up")
			time.Sleep(time.Second) // slots are released in the background
			if rows, err = policy.Status(t.Context(), "partner.example"); len(lim) > 1 {
				require.Equal(t, 100, rows[1].Remaining)
			}
			require.NoError(t, err)
		})
	}
}

// TestTheGreatestRemaining lowers nothing, also after time in which tokens have flowed back.
func TestTheGreatestRemaining(t *testing.T) {
	for name, more := range map[string]ginlimit.PolicyOption{
		"reserved": ginlimit.WithFloor(0), "leased": ginlimit.WithLease(time.Second),
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("X-RateLimit-Remaining", fmt.Sprint(math.MaxInt))
			})
			client, policy := process(t, b.Redis, p, append(limits(ginlimit.PerSecond(100).WithBurst(10)), more))
			testkit.Must(get(t.Context(), client, url))
			synctest.Wait()
			left := testkit.Must(policy.Peek(t.Context(), "partner.example"))
			require.Greater(t, left.Remaining, 4, "a lease keeps a part of the burst")
		})
	}
}

// stopsOnce returns an API that stops its key for so many seconds by its n-th response, and answers the first request
// after it in so much time.
func stopsOnce(n int64, seconds string, first time.Duration) *partner {
	var calls atomic.Int64
	return newPartner(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case n:
			w.Header().Set("Retry-After", seconds)
			w.WriteHeader(http.StatusTooManyRequests)
		case n + 1:
			time.Sleep(first)
		}
	})
}

// TestAFirstRequestThatHangs holds its key for ten seconds.
func TestAFirstRequestThatHangs(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := stopsOnce(1, "50", 30*time.Second)
		client, _ := process(t, b.Redis, p, limits(ginlimit.PerSecond(10)))
		testkit.Must(get(t.Context(), client, url))
		var all sync.WaitGroup
		all.Go(func() { _, err := get(t.Context(), client, url); assert.NoError(t, err) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 55*time.Second)
		defer cancel()
		_, err := get(ctx, client, url)
		var late *transport.TooLateError
		require.ErrorAs(t, err, &late)
		require.Zero(t, late.RetryAfter, "the stop is over")
		for range 2 {
			testkit.Must(get(t.Context(), client, url))
		}
		require.Equal(t, 60*time.Second, p.calls()[2].Round(time.Second))
		require.Equal(t, 60*time.Second, p.calls()[3].Round(time.Second), "nobody goes first any more")
		all.Wait()
	})
}
