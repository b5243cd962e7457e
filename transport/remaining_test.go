package transport_test

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
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
