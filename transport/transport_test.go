package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

func limits(l ...ginlimit.Limit) []ginlimit.PolicyOption {
	return []ginlimit.PolicyOption{ginlimit.WithLimits(l...)}
}

// TestRequestsWaitInOrder, each for its token.
func TestRequestsWaitInOrder(t *testing.T) {
	for name, more := range map[string]ginlimit.PolicyOption{
		"reserved": ginlimit.WithFloor(0), "leased": ginlimit.WithLease(time.Second),
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var mu sync.Mutex
			var order []string
			p := newPartner(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, r.URL.Path)
			})
			client, _ := process(t, b.Redis, p, append(limits(ginlimit.PerSecond(5).WithBurst(2)), more))
			var all sync.WaitGroup
			var want []string
			for i := range 8 {
				path := fmt.Sprintf("/%d", i)
				want = append(want, path)
				all.Go(func() {
					status, err := get(t.Context(), client, "http://partner.example"+path)
					assert.NoError(t, err)
					assert.Equal(t, 200, status)
				})
				synctest.Wait()
			}
			all.Wait()
			require.Equal(t, want, order)
			calls := p.calls()
			for i := 2; i < 8; i++ {
				require.Equal(t, time.Duration(i-1)*200*time.Millisecond, calls[i].Round(10*time.Millisecond))
			}
		})
	}
}

// TestTooLate requests are not sent, take nothing, and say when.
func TestTooLate(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := newPartner(nil)
		client, policy := process(t, b.Redis, p, limits(ginlimit.PerSecond(5).WithBurst(1)))
		testkit.Must(get(t.Context(), client, url))
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		sent := &closed{Reader: strings.NewReader("body")}
		r := testkit.Must(http.NewRequestWithContext(ctx, http.MethodPost, url, sent))
		start := time.Now()
		_, err := client.Transport.RoundTrip(r)
		var late *transport.TooLateError
		require.ErrorAs(t, err, &late)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 200*time.Millisecond, late.RetryAfter)
		require.EqualError(t, err, "ginlimit: the limit allows the request only in 200ms, later than it waits")
		require.Zero(t, time.Since(start), "at once")
		require.True(t, sent.is)
		require.Len(t, p.calls(), 1)
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, 1, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining)
	})
}

// TestWhatIsLeftIsLowered, and never raised.
func TestWhatIsLeftIsLowered(t *testing.T) {
	t.Parallel()
	tokens := transport.WithCost(func(*http.Request) int { return 1 })
	settled := []transport.Option{tokens, transport.WithSettle(func(*http.Response) int { return 7 })}
	unsettled := []transport.Option{tokens, transport.WithSettle(func(*http.Response) int { return -1 })}
	for name, row := range map[string]struct {
		header map[string]string
		opts   []transport.Option
		policy []ginlimit.PolicyOption
		want   int // of 99
	}{
		"X-RateLimit":     {map[string]string{"X-RateLimit-Remaining": "30"}, nil, nil, 30},
		"nothing is left": {map[string]string{"X-RateLimit-Remaining": "0"}, nil, nil, 0},
		"more":            {map[string]string{"X-RateLimit-Remaining": "1000"}, nil, nil, 99},
		"unreadable":      {map[string]string{"X-RateLimit-Remaining": "few"}, nil, nil, 99},
		"the draft":       {map[string]string{"RateLimit": `"a, b";r=40;t=4`}, nil, nil, 40},
		"the draft's own period": {map[string]string{"RateLimit": `"a";r=4, "b, c";r=50`,
			"RateLimit-Policy": `"a";q=9;w=60, "b, c";q=100;w=3600`}, nil, nil, 50},
		"the draft's others": {map[string]string{"RateLimit": `"a";r=4, "b";r=50`, "RateLimit-Policy": `"a";q=9;w=60`,
			"X-RateLimit-Remaining": "4"}, nil, nil, 99},
		"the draft's other unit": {map[string]string{"RateLimit": `"a";r=4, "b";r=50`,
			"RateLimit-Policy": `"a";q=9;qu="content-bytes"`}, nil, nil, 50},
		"an earlier draft": {map[string]string{"RateLimit-Remaining": "41"}, nil, nil, 41},
		"OpenAI": {map[string]string{"x-ratelimit-remaining-requests": "42",
			"x-ratelimit-remaining-tokens": "7"}, nil, nil, 42},
		"OpenAI's tokens": {map[string]string{"x-ratelimit-remaining-requests": "7",
			"x-ratelimit-remaining-tokens": "43"}, []transport.Option{tokens}, nil, 43},
		"Anthropic": {map[string]string{"anthropic-ratelimit-requests-remaining": "44",
			"anthropic-ratelimit-tokens-remaining": "7"}, nil, nil, 44},
		"Anthropic's tokens": {map[string]string{"anthropic-ratelimit-requests-remaining": "7",
			"anthropic-ratelimit-tokens-remaining": "45"}, []transport.Option{tokens}, nil, 45},
		"without a free slot": {map[string]string{"X-RateLimit-Remaining": "30"}, nil,
			limits(ginlimit.PerHour(100), ginlimit.InFlight(1)), 30},
		"settled": {map[string]string{"x-ratelimit-remaining-tokens": "30"}, settled,
			limits(ginlimit.PerHour(100)), 24},
		"settled with slots": {map[string]string{"x-ratelimit-remaining-tokens": "30"}, settled,
			limits(ginlimit.PerHour(100), ginlimit.InFlight(1)), 24},
		"not settled": {map[string]string{"x-ratelimit-remaining-tokens": "30"}, unsettled,
			limits(ginlimit.PerHour(100), ginlimit.InFlight(1)), 30},
		"leased": {map[string]string{"X-RateLimit-Remaining": "30"}, nil,
			append(limits(ginlimit.PerHour(100)), ginlimit.WithLease(time.Second)), 30},
		"a window": {map[string]string{"X-RateLimit-Remaining": "30"}, nil,
			limits(ginlimit.PerHour(100).WithAlgorithm(ginlimit.FixedWindow)), 30},
		"a long window": {map[string]string{"X-RateLimit-Remaining": "0"}, nil,
			limits(ginlimit.PerDay(100).WithAlgorithm(ginlimit.FixedWindow)), 99},
		"a quota": {map[string]string{"X-RateLimit-Remaining": "0"}, nil,
			limits(ginlimit.PerCalendar(100, ginlimit.CalendarMonth(nil, 1))), 99},
		"no more than an hour's": {map[string]string{"X-RateLimit-Remaining": "0"}, nil, limits(ginlimit.PerDay(100)), 95},
		"of several": {map[string]string{"X-RateLimit-Remaining": "30"}, nil,
			limits(ginlimit.PerHour(100), ginlimit.PerDay(1000)), 99},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := newPartner(func(w http.ResponseWriter, _ *http.Request) {
				for field, value := range row.header {
					w.Header().Set(field, value)
				}
			})
			if row.policy == nil {
				row.policy = limits(ginlimit.PerHour(100))
			}
			client, policy := process(t, b.Redis, p, row.policy, row.opts...)
			for _, host := range []string{"partner.example", "other.example"} { // each at once
				testkit.Must(get(t.Context(), client, "http://"+host))
				synctest.Wait() // the policy is lowered in the background
				require.Equal(t, row.want, testkit.Must(policy.Peek(t.Context(), host)).Remaining)
			}
		})
	}
}

func limitsOf(l ...ginlimit.Limit) []ginlimit.Limit { return l }

// TestSlots are held until a body is closed or read to its end, and by nothing that failed.
func TestSlots(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, finish := range map[string]func(t *testing.T, r *http.Response){
		"closed":          func(t *testing.T, r *http.Response) { require.NoError(t, r.Body.Close()) },
		"closed twice":    func(_ *testing.T, r *http.Response) { _ = r.Body.Close(); _ = r.Body.Close() },
		"read to its end": func(_ *testing.T, r *http.Response) { _, _ = io.ReadAll(r.Body) },
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := newPartner(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/fails" {
					panic(failed)
				}
				_, _ = io.WriteString(w, "body")
			})
			client, _ := process(t, b.Redis, p, limits(ginlimit.PerSecond(1000), ginlimit.InFlight(1)))
			response := testkit.Must(client.Get(url))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := get(ctx, client, url)
			var late *transport.TooLateError
			require.ErrorAs(t, err, &late)
			require.Zero(t, late.RetryAfter, "nobody knows when a slot becomes free")
			require.ErrorContains(t, err, "the limit did not allow the request before its context ended")
			require.Equal(t, time.Second, time.Since(start))
			finish(t, response)
			testkit.Must(get(t.Context(), client, url))
			require.PanicsWithError(t, failed.Error(), func() {
				_,
					_ = get(t.Context(), client, "http://partner.example/fails")
			})
			testkit.Must(get(t.Context(), client, url))
			require.Len(t, p.calls(), 4)
		})
	}
}

// TestWhatWasNotSentIsGivenBack: the connection could not be made, or the request was canceled before.
func TestWhatWasNotSentIsGivenBack(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	hangs := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	refuses := func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	cuts := func(context.Context, string, string) (net.Conn, error) {
		own, other := net.Pipe()
		go func() { _, _ = other.Read(make([]byte, 1000)); _ = other.Close() }()
		return own, nil
	}
	for name, row := range map[string]struct {
		dial func(context.Context, string, string) (net.Conn, error)
		more ginlimit.PolicyOption
		want int // of 100
	}{
		"refused":                   {refuses, ginlimit.WithFloor(0), 100},
		"refused, leased":           {refuses, ginlimit.WithLease(time.Second), 100},
		"a connection that hangs":   {hangs, ginlimit.WithFloor(0), 100},
		"a connection that was cut": {cuts, ginlimit.WithFloor(0), 99},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			base := &http.Transport{DialContext: row.dial}
			defer base.CloseIdleConnections()
			client, policy := process(t, b.Redis, base, append(limits(ginlimit.PerHour(100)), row.more))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			require.Error(t, testkit.Err(get(ctx, client, url)))
			synctest.Wait() // until it is given back
			require.Equal(t, row.want, testkit.Must(policy.Peek(t.Context(), "partner.example")).Remaining)
		})
	}
	testkit.RunInBubble(t, "canceled while it waits", func(t *testing.T, b *testkit.Bubble) {
		client, policy := process(t, b.Redis, newPartner(nil), limits(ginlimit.PerHour(1)))
		testkit.Must(get(t.Context(), client, url))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, testkit.Err(get(ctx, client, url)), context.Canceled)
		left := testkit.Must(policy.Peek(t.Context(), "partner.example"))
		require.Equal(t, time.Hour-time.Second, left.RetryAfter.Round(time.Second))
	})
}

// TestNoRequestWaitsLongerThanADay for a slot, or begins to wait for tokens that come later.
func TestNoRequestWaitsLongerThanADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.NewLocal(t)
		second := func(name string, limits ...ginlimit.PolicyOption) (waited time.Duration, err error) {
			calls := testkit.Must(transport.New(testkit.NewPolicy(t, limiter, name, limits...), newPartner(nil)))
			client := &http.Client{Transport: calls}
			testkit.Keep(t, testkit.Must(client.Get(url))) // its body stays open
			start := time.Now()
			_, err = get(t.Context(), client, url)
			return time.Since(start), err
		}
		var late *transport.TooLateError
		const day = 24 * time.Hour
		if testkit.Full() { // it looks for a slot fifty times a second
			waited, err := second("slot", ginlimit.PerSecond(1), ginlimit.InFlight(1))
			require.ErrorAs(t, err, &late)
			require.Zero(t, late.RetryAfter)
			require.Equal(t, day, waited)
		}
		require.Equal(t, day, testkit.Must(second("a day", ginlimit.Per(1, day))))
		waited, err := second("a moment more", ginlimit.Per(1, day+time.Millisecond))
		require.ErrorAs(t, err, &late)
		require.Equal(t, day+time.Millisecond, late.RetryAfter)
		require.Zero(t, waited)
		waited, err = second("quota", ginlimit.PerSecond(1), ginlimit.PerCalendar(1, ginlimit.CalendarMonth(nil, 1)))
		require.ErrorAs(t, err, &late)
		require.Greater(t, late.RetryAfter, day)
		require.Zero(t, waited)
	})
}

// TestSettle replaces the estimate once the body is closed.
func TestSettle(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		used := 30
		client, policy := process(t, b.Redis, newPartner(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "body")
		}), limits(ginlimit.PerHour(100)),
			transport.WithCost(func(*http.Request) int { return 50 }),
			transport.WithSettle(func(*http.Response) int { return used }))
		left := func() int {
			r := testkit.Must(policy.Peek(t.Context(), "partner.example"))
			return r.Remaining
		}
		response := testkit.Must(client.Get(url))
		require.Equal(t, 50, left())
		require.NoError(t, response.Body.Close())
		require.Equal(t, 70, left())
		require.NoError(t, response.Body.Close())
		require.Equal(t, 70, left())
		used = -1
		testkit.Must(get(t.Context(), client, url))
		require.Equal(t, 20, left(), "the estimate stands")
	})
}

// TestNothingOfARequestReachesRedis but the key.
func TestNothingOfARequestReachesRedis(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		client, _ := process(t, b.Redis, newPartner(nil), limits(ginlimit.PerHour(100)))
		testkit.Must(get(t.Context(), client, "http://user:password@partner.example/a?secret=b"))
		for _, key := range b.Mini.Keys() {
			require.NotRegexp(t, "user|password|secret|/a", key)
		}
		require.Contains(t, fmt.Sprint(b.Mini.Keys()), "partner.example")
	})
}

// TestHooksOfCallers are called for their own request alone.
func TestHooksOfCallers(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		client, _ := process(t, b.Redis, newPartner(nil), limits(ginlimit.PerHour(100)))
		calls := make([]int, 4)
		for i := range calls {
			testkit.Must(get(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GetConn: func(string) { calls[i]++ },
			}), client, url))
		}
		require.Equal(t, []int{1, 1, 1, 1}, calls)
	})
}
