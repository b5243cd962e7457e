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

// TestAStopIsOfOneKeyInAllProcesses: a 429 stops them until Retry-After, and then one request goes first.
func TestAStopIsOfOneKeyInAllProcesses(t *testing.T) {
	for name, lim := range map[string][]ginlimit.Limit{
		"a bucket": {ginlimit.PerSecond(1000)}, "a window": {ginlimit.PerMinute(1000).WithAlgorithm(ginlimit.FixedWindow)},
		"with slots": {ginlimit.PerSecond(1000), ginlimit.InFlight(100)},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			denies := 2 // responses
			var mu sync.Mutex
			p := newPartner(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if r.URL.Host == "other.example" || denies == 0 {
					return
				}
				denies--
				w.Header().Set("Retry-After", "3")
				w.WriteHeader(http.StatusTooManyRequests)
			})
			first, _ := process(t, b.Connect(t), p, limits(lim...))
			second, _ := process(t, b.Connect(t), p, limits(lim...))
			status, err := get(t.Context(), first, url)
			require.NoError(t, err)
			require.Equal(t, http.StatusTooManyRequests, status)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for _, client := range []*http.Client{first, second} {
				_, err = get(ctx, client, url)
				var late *transport.TooLateError
				require.ErrorAs(t, err, &late)
				require.Equal(t, 3*time.Second, late.RetryAfter.Round(10*time.Millisecond))
			}
			_, err = get(ctx, first, "http://other.example")
			require.NoError(t, err)
			require.Len(t, p.calls(), 2)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { _, err := get(t.Context(), first, url); assert.NoError(t, err) })
			}
			all.Wait()
			calls := p.calls()[2:]
			require.Equal(t, 3*time.Second, calls[0].Round(10*time.Millisecond))
			require.Equal(t, 6*time.Second, calls[1].Round(10*time.Millisecond), "the first was denied again, alone")
			require.Len(t, calls, 20)
		})
	}
}

// TestAStopEndsLeases of other processes, at the end of a lease at the latest.
func TestAStopEndsLeases(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const lease = 500 * time.Millisecond
		var denies atomic.Bool
		p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
			if denies.CompareAndSwap(true, false) {
				w.Header().Set("Retry-After", "3")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		policy := append(limits(ginlimit.PerSecond(100_000)), ginlimit.WithLease(lease))
		first, _ := process(t, b.Connect(t), p, policy)
		second, _ := process(t, b.Connect(t), p, policy)
		for range 1000 { // until it has a lease
			testkit.Must(get(t.Context(), second, url))
		}
		denies.Store(true)
		testkit.Must(get(t.Context(), first, url))
		_, err := get(t.Context(), second, url)
		require.NoError(t, err, "by its lease")
		time.Sleep(lease)
		for _, client := range []*http.Client{first, second} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = get(ctx, client, url)
			var late *transport.TooLateError
			require.ErrorAs(t, err, &late)
			require.GreaterOrEqual(t, late.RetryAfter.Round(10*time.Millisecond), 3*time.Second-lease)
		}
	})
}

// TestStops are how long a response stops its key.
func TestStops(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for name, row := range map[string]struct {
		status int
		header map[string]string
		want   time.Duration // 0 is none
	}{
		"seconds": {429, map[string]string{"Retry-After": "7"}, 7 * time.Second},
		"a date, by its own clock": {429, map[string]string{"Retry-After": at(7 * time.Second), "Date": at(0)},
			7 * time.Second},
		"a date that is over": {429, map[string]string{"Retry-After": at(-time.Hour), "Date": at(0)}, time.Millisecond},
		"at once":             {429, map[string]string{"Retry-After": "0"}, time.Millisecond},
		"nothing":             {429, nil, time.Second},
		"negative":            {429, map[string]string{"Retry-After": "-7"}, time.Second},
		"unreadable":          {429, map[string]string{"Retry-After": "soon"}, time.Second},
		"years":               {429, map[string]string{"Retry-After": "999999999"}, time.Hour},
		"in a hundred years": {429, map[string]string{"Retry-After": at(876_000 * time.Hour), "Date": at(0)},
			time.Hour},
		"503":       {503, map[string]string{"Retry-After": "7"}, 7 * time.Second},
		"503 alone": {503, nil, 0},
		"403 of GitHub": {403, map[string]string{"X-RateLimit-Remaining": "0",
			"X-RateLimit-Reset": fmt.Sprint(now.Unix() + 9), "Date": at(0)}, 9 * time.Second},
		"403 with Retry-After": {403, map[string]string{"Retry-After": "7"}, 7 * time.Second},
		"403 alone":            {403, map[string]string{"X-RateLimit-Remaining": "60"}, 0},
		"another status":       {500, map[string]string{"Retry-After": "7"}, 0},
		"GitHub": {429, map[string]string{"X-RateLimit-Remaining": "0",
			"X-RateLimit-Reset": fmt.Sprint(now.Unix() + 9), "Date": at(0)}, 9 * time.Second},
		"OpenAI": {429, map[string]string{"X-RateLimit-Remaining-Requests": "0",
			"X-RateLimit-Reset-Requests": "6m0s"}, 6 * time.Minute},
		"Anthropic": {429, map[string]string{"Anthropic-RateLimit-Requests-Remaining": "0",
			"Anthropic-RateLimit-Requests-Reset": now.Add(time.Minute).Format(time.RFC3339), "Date": at(0)}, time.Minute},
		"the draft": {429, map[string]string{"RateLimit": `"a";r=0;t=4, "b";r=3;t=9, "c";r=0;t=5`},
			5 * time.Second},
		"of what is used up": {429, map[string]string{"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "9"},
			time.Second},
		"tokens are not requests": {429, map[string]string{"X-RateLimit-Remaining-Tokens": "0",
			"X-RateLimit-Reset-Tokens": "9s"}, time.Second},
		"Retry-After before others": {429, map[string]string{"Retry-After": "2", "X-RateLimit-Remaining": "0",
			"X-RateLimit-Reset": "9"}, 2 * time.Second},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
				for field, value := range row.header {
					w.Header().Set(field, value)
				}
				w.WriteHeader(row.status)
			})
			client, policy := process(t, b.Redis, p, limits(ginlimit.PerHour(100)))
			testkit.Must(get(t.Context(), client, url))
			left := testkit.Must(policy.Peek(t.Context(), "partner.example"))
			require.Equal(t, row.want, left.RetryAfter, "%+v", left)
		})
	}
}

// TestOneGoesFirstInSeveralProcesses after a stop, as a block leaves one token. The process that has seen the stop
// waits for the response to it; the others go on as the policy allows.
func TestOneGoesFirstInSeveralProcesses(t *testing.T) {
	for name, row := range map[string]struct {
		limit ginlimit.Limit
		first int // requests at once after the stop
		then  time.Duration
	}{
		"a bucket": {ginlimit.PerSecond(10), 1, 100 * time.Millisecond},
		"a window": {ginlimit.PerHour(1000).WithAlgorithm(ginlimit.FixedWindow), 21, time.Second},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var stopped atomic.Bool
			p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
				if stopped.CompareAndSwap(false, true) {
					w.Header().Set("Retry-After", "3")
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				time.Sleep(time.Second)
			})
			clients := make([]*http.Client, 2)
			for i := range clients {
				clients[i], _ = process(t, b.Connect(t), p, limits(row.limit))
			}
			testkit.Must(get(t.Context(), clients[0], url))
			var all sync.WaitGroup
			for range 20 {
				for _, client := range clients {
					all.Go(func() { _, err := get(t.Context(), client, url); assert.NoError(t, err) })
				}
			}
			all.Wait()
			calls := p.calls()[1:]
			require.Len(t, calls, 40)
			for i, at := range calls {
				if i < row.first {
					require.Equal(t, 3*time.Second, at.Round(20*time.Millisecond), i)
				} else {
					require.GreaterOrEqual(t, at, 3*time.Second+row.then-20*time.Millisecond, i)
				}
			}
		})
	}
}

// TestAPanicOfThePolicy leaves the key to the next request.
func TestAPanicOfThePolicy(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		panics, denies := false, true
		p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
			if denies {
				denies = false
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		client, _ := process(t, b.Redis, p, []ginlimit.PolicyOption{
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
				if panics {
					panics = false
					panic("policy")
				}
				return limitsOf(ginlimit.PerSecond(1000)), nil
			})})
		testkit.Must(get(t.Context(), client, url))
		panics = true
		require.Panics(t, func() { _, _ = get(t.Context(), client, url) })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		testkit.Must(get(ctx, client, url))
	})
}
