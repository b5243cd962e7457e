package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// TestARequestThatIsCanceledOnItsWayToRedis gives back what that takes, whether Redis or its answer is late.
func TestARequestThatIsCanceledOnItsWayToRedis(t *testing.T) {
	for name, policy := range map[string][]ginlimit.PolicyOption{
		"reserved":   limits(ginlimit.PerHour(100)),
		"leased":     append(limits(ginlimit.PerHour(100)), ginlimit.WithLease(time.Second)),
		"a window":   limits(ginlimit.PerHour(100).WithAlgorithm(ginlimit.SlidingWindow)),
		"with slots": limits(ginlimit.PerHour(100), ginlimit.InFlight(2)),
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var before, after atomic.Int64
			b.Redis.AddHook(testkit.EveryScript(func(send func() error) error {
				time.Sleep(time.Duration(before.Load()))
				defer func() { time.Sleep(time.Duration(after.Load())) }()
				return send()
			}))
			p := newPartner(nil)
			client, own := process(t, b.Redis, p, policy)
			status := func() (remaining []int) {
				rows := testkit.Must(own.Status(t.Context(), "partner.example"))
				for _, row := range rows {
					remaining = append(remaining, row.Remaining)
				}
				return remaining
			}
			all := status()
			for _, late := range []*atomic.Int64{&before, &after} {
				late.Store(int64(ginlimit.DefaultTimeout / 2))
				ctx, cancel := context.WithTimeout(t.Context(), ginlimit.DefaultTimeout/10)
				defer cancel()
				for range 3 {
					require.ErrorIs(t, testkit.Err(get(ctx, client, url)), context.DeadlineExceeded)
				}
				time.Sleep(4 * ginlimit.DefaultTimeout)
				late.Store(0)
				require.Equal(t, all, status())
			}
			require.Empty(t, p.calls())
		})
	}
}

// TestWhoWaitsWhenAKeyIsStopped leaves the line without a call to Redis, and then waits in order of arrival.
func TestWhoWaitsWhenAKeyIsStopped(t *testing.T) {
	const waiting = 60
	for name, policy := range map[string][]ginlimit.PolicyOption{
		"reserved":   limits(ginlimit.PerSecond(10).WithBurst(1)),
		"leased":     append(limits(ginlimit.PerSecond(10).WithBurst(1)), ginlimit.WithLease(time.Second)),
		"with slots": limits(ginlimit.PerSecond(10).WithBurst(1), ginlimit.InFlight(2)),
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var scripts atomic.Int64
			b.Redis.AddHook(testkit.EveryScript(func(send func() error) error {
				scripts.Add(1)
				return send()
			}))
			var mu sync.Mutex
			var order []int
			stop := stopsOnce(5, "3", time.Second)
			p := newPartner(func(w http.ResponseWriter, r *http.Request) {
				var n int
				_, err := fmt.Sscanf(r.URL.Path, "/%d", &n)
				assert.NoError(t, err)
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				stop.answer(w, r)
			})
			client, _ := process(t, b.Redis, p, policy)
			var all sync.WaitGroup
			for i := range waiting {
				all.Go(func() {
					_, err := get(t.Context(), client, fmt.Sprintf("http://partner.example/%d", i))
					assert.NoError(t, err)
				})
				time.Sleep(time.Millisecond)
			}
			time.Sleep(500 * time.Millisecond) // the fifth is stopped
			before := scripts.Load()
			time.Sleep(3700 * time.Millisecond) // until the first one after the stop is about to be answered
			require.LessOrEqual(t, scripts.Load(), before+5)
			all.Wait()
			calls := p.calls()
			require.GreaterOrEqual(t, calls[5]-calls[4], 3*time.Second)
			require.GreaterOrEqual(t, calls[6]-calls[5], time.Second, "the first is answered")
			require.Len(t, order, waiting)
			descents := 0
			for i, n := range order[1:] {
				if n < order[i] {
					descents++
				}
			}
			require.LessOrEqual(t, descents, 5, "but for a few that found no line: %v", order)
		})
	}
}

// TestALeasedRequestWaitsForADayAtMost: if its token comes later, it hears so at once.
func TestALeasedRequestWaitsForADayAtMost(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		client, _ := process(t, b.Redis, newPartner(nil),
			append(limits(ginlimit.Limit{Rate: 1, Period: 36 * time.Hour}), ginlimit.WithLease(time.Second)))
		testkit.Must(get(t.Context(), client, url))
		start := time.Now()
		_, err := get(t.Context(), client, url)
		var late *transport.TooLateError
		require.ErrorAs(t, err, &late)
		require.Equal(t, 36*time.Hour, late.RetryAfter)
		require.Zero(t, time.Since(start))
	})
}

// TestARequestThatNothingWillAllow hears so at once, whatever forbids it, and is not sent.
func TestARequestThatNothingWillAllow(t *testing.T) {
	daily, none := ginlimit.Limit{Rate: 1, Period: 36 * time.Hour}, ginlimit.Limit{Period: 36 * time.Hour}
	for name, row := range map[string]struct {
		cost   int
		limits []ginlimit.Limit // each time that they are asked for, the last one for ever
	}{
		"a cost above the burst":            {2, limitsOf(daily)},
		"no tokens at all":                  {1, limitsOf(none)},
		"limits that change while it waits": {1, limitsOf(daily, none)}, // with leases: others hear of the first
	} {
		for kind, more := range map[string]ginlimit.PolicyOption{
			"reserved": ginlimit.WithFloor(0), "leased": ginlimit.WithLease(time.Second),
		} {
			if len(row.limits) > 1 && kind != "leased" {
				continue
			}
			testkit.RunInBubble(t, name+", "+kind, func(t *testing.T, b *testkit.Bubble) {
				var left []ginlimit.Limit
				p := newPartner(nil)
				client, policy := process(t, b.Redis, p, []ginlimit.PolicyOption{more,
					ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
						if len(left) > 1 {
							defer func() { left = left[1:] }()
						}
						return limitsOf(left[0]), nil
					})}, transport.WithCost(func(*http.Request) int { return row.cost }))
				left = limitsOf(daily)
				testkit.Must(policy.Allow(t.Context(), "partner.example"))
				left = row.limits
				start := time.Now()
				_, err := get(t.Context(), client, url)
				var late *transport.TooLateError
				require.ErrorAs(t, err, &late)
				require.Equal(t, ginlimit.Never, late.RetryAfter)
				require.EqualError(t, late, "ginlimit: the limit never allows the request")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, ginlimit.ErrInvalidArgument)
				require.Zero(t, time.Since(start))
				require.Empty(t, p.calls())
			})
		}
	}
}

// TestARequestThatWaitsGoesByAnOverride within a second, in its place, however long it has waited.
func TestARequestThatWaitsGoesByAnOverride(t *testing.T) {
	hourly := ginlimit.PerHour(1).WithBurst(4)
	for name, policy := range map[string][]ginlimit.PolicyOption{
		"reserved":   limits(hourly),
		"leased":     append(limits(hourly), ginlimit.WithLease(time.Second)),
		"with slots": limits(hourly, ginlimit.InFlight(2)),
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			own := testkit.NewPolicy(t, testkit.NewOperated(t, b.Redis), "partner", policy...)
			operator := testkit.NewOperated(t, b.Connect(t))
			testkit.NewPolicy(t, operator, "partner", policy...)
			p := newPartner(nil)
			client := &http.Client{Transport: testkit.Must(transport.New(own, p))}
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := get(ctx, client, url)
				cancel()
				if err != nil {
					break
				}
			}
			sent, waits := len(p.calls()), make(chan error)
			go func() { waits <- testkit.Err(get(t.Context(), client, url)) }()
			time.Sleep(10 * time.Minute)
			require.Len(t, p.calls(), sent)
			require.NoError(t, operator.Override(t.Context(), ginlimit.Override{
				Policy: "partner", Limits: []ginlimit.Limit{ginlimit.PerSecond(100)}, Until: time.Now().Add(time.Hour),
			}))
			start := time.Now()
			require.NoError(t, <-waits)
			require.Less(t, time.Since(start), time.Second)
		})
	}
}
