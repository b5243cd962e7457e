package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestTransportRequestsThatAreCanceled on their way to a Redis that answers late give back what they took, each of
// them, alone and many at once.
func TestTransportRequestsThatAreCanceled(t *testing.T) {
	t.Parallel()
	const requests, burst, held = 50, 1000, 50
	for name, policy := range map[string][]ginlimit.PolicyOption{
		"reserved":   {ginlimit.PerDay(burst)},
		"leased":     {ginlimit.PerDay(burst), ginlimit.WithLease(100 * time.Millisecond)},
		"a window":   {ginlimit.PerDay(burst).WithAlgorithm(ginlimit.SlidingWindow)},
		"with slots": {ginlimit.PerDay(burst), ginlimit.InFlight(held)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.StartRedis(t)
			proxy, addr := testkit.StartProxy(t, server)
			client := transportClient(t, testkit.Connect(t, addr), policy, testkit.Patient())
			own := testkit.NewPolicy(t, testkit.NewLimiter(t, testkit.Connect(t, server)), "partner", policy...)
			p := startPartner(t, ginlimit.Unlimited())
			require.Equal(t, 200, testkit.Must(callPartner(t.Context(), client, p.url+"/first")))
			proxy.Delay.Store(int64(300 * time.Millisecond))
			var all sync.WaitGroup
			for i := range requests {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
					defer cancel()
					assert.ErrorIs(t, testkit.Err(callPartner(ctx, client, fmt.Sprintf("%s/%d", p.url, i))), context.DeadlineExceeded)
				})
			}
			all.Wait()
			proxy.Delay.Store(0)
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				rows, err := own.Status(t.Context(), "account")
				ok := err == nil && rows[0].Remaining == burst-1
				if !ok {
					t.Log(err, rows)
				}
				return ok && (len(rows) == 1 || rows[1].Remaining == held)
			}))
			require.EqualValues(t, 1, p.allowed.Load())
		})
	}
}
