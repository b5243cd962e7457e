package fair_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What LiteLLM's priority reservations are documented to have got wrong. 6,000 tokens a minute are
// shared.
var upstream = ginlimit.Limit{Rate: 6000, Period: time.Minute, Burst: 800}

// onEveryShare runs a test on every backend, with the policy of each tenant.
func onEveryShare(t *testing.T, test func(t *testing.T, of func(tenant string, weight int) *ginlimit.Policy)) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "upstream", upstream, ginlimit.WithShares(noTenant))
		test(t, p.Share)
	})
}

// TestLiteLLMReservationsUnderLoadAreAllCounted: limit and reservations were skipped silently, and teams
// passed the model's capacity (BerriAI/litellm#35422). Here 200 callers reserve and settle at once, and
// together never have more than there is.
func TestLiteLLMReservationsUnderLoadAreAllCounted(t *testing.T) {
	t.Parallel()
	onEveryShare(t, func(t *testing.T, of func(string, int) *ginlimit.Policy) {
		const callers, estimate, actual = 200, 20, 5
		var reserved, admitted atomic.Int64
		var all sync.WaitGroup
		release := make(chan struct{})
		for i := range callers {
			p := of(fmt.Sprint("key ", i%4), 1)
			all.Go(func() {
				r, err := p.Reserve(t.Context(), "model", estimate)
				if err != nil || !r.Result().Allowed {
					return
				}
				reserved.Add(estimate)
				admitted.Add(1)
				<-release
				_ = r.Settle(context.WithoutCancel(t.Context()), actual) // an outage is an error though it is made
			})
		}
		time.Sleep(2 * time.Second) // all have an answer, and 200 tokens have flowed back
		require.LessOrEqual(t, reserved.Load(), int64(upstream.Burst))
		require.Greater(t, reserved.Load(), int64(upstream.Burst/2), "four tenants get four fifths of the burst and more")
		close(release)
		all.Wait()
		time.Sleep(time.Second)

		// What was not used is back: one of the four has room for half the burst again.
		used := admitted.Load() * actual
		require.Less(t, used, int64(300))
		res := testkit.Must(of("key 0", 1).AllowN(t.Context(), "model", 300))
		require.True(t, res.Allowed, "what was reserved and not used is given back")
	})
}
