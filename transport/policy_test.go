package transport_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// fault is what an OptionError is about, and a part of its text.
type fault struct {
	index        int
	option, text string
}

// requireFaults requires that an error joins these faults, in their order.
func requireFaults(t *testing.T, err error, want []fault) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	require.Len(t, joined.Unwrap(), len(want), "%v", err)
	for i, err := range joined.Unwrap() {
		var of *ginlimit.OptionError
		require.ErrorAs(t, err, &of)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.Equal(t, want[i], fault{of.Index, of.Option, want[i].text}, "%v", err)
		require.ErrorContains(t, err, "ginlimit: invalid argument: transport: "+want[i].text)
	}
}

// TestBadInput is reported, all of it at once, and sends nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	limiter, hour := testkit.NewLocal(t), ginlimit.PerHour(100)
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		return testkit.NewPolicy(t, limiter, name, opts...)
	}
	plain, slots, free := policy("plain", hour), policy("slots", ginlimit.InFlight(20)),
		policy("free", ginlimit.Unlimited())
	shared := policy("shared", hour, ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 }))
	defaults := testkit.NewPolicy(t, testkit.NewLocal(t, ginlimit.WithBan(time.Minute, time.Hour), ginlimit.WithDryRun()),
		"defaults", hour)
	served := policy("served", hour, ginlimit.WithKey(ginlimit.ByClientIP),
		ginlimit.WithCost(func(*gin.Context) int { return 1 }), ginlimit.WithSettle(func(*gin.Context) int { return 1 }),
		ginlimit.WithQueue(1, time.Second), ginlimit.WithSkip(func(*gin.Context) bool { return true }),
		ginlimit.WithAllowList(), ginlimit.WithDenyList(), ginlimit.WithHeaders(ginlimit.NoHeaders),
		ginlimit.WithHeaderFunc(func(http.Header, []ginlimit.Result) {}),
		ginlimit.WithDeniedHandler(func(*gin.Context, ginlimit.Result) {}),
		ginlimit.WithErrorHandler(func(*gin.Context, error) {}))
	refunds := policy("refunds", hour, ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	derived := testkit.Derive(t, refunds, ginlimit.WithFloor(1))
	daily := policy("daily", ginlimit.PerCalendar(100, ginlimit.CalendarDay(nil)))
	million := 1_000_000                                          // a constant of 4_000_000_000_000 compiles on 64 bits only
	fast := policy("fast", ginlimit.PerSecond(4*million*million)) // it can be blocked for 37 minutes
	costs, settles := func(*http.Request) int { return 1 }, func(*http.Response) int { return 1 }
	leased := testkit.NewPolicy(t, testkit.WithoutRedis(t), "leased", hour, ginlimit.WithLease(time.Second))
	const day = 24 * time.Hour
	one := func(index int, option, text string) []fault { return []fault{{index, option, text}} }
	ofPolicy := func(texts ...string) (all []fault) {
		for _, text := range texts {
			all = append(all, fault{-1, "policy", text})
		}
		return all
	}
	for name, row := range map[string]struct {
		policy *ginlimit.Policy
		opts   []transport.Option
		want   []fault
	}{
		"no policy":        {nil, nil, ofPolicy("the policy was not made")},
		"a zero policy":    {&ginlimit.Policy{}, nil, ofPolicy("the policy was not made")},
		"shares":           {shared, nil, ofPolicy("a policy WithShares cannot be stopped")},
		"a tenant's share": {shared.Share("a", 1), nil, ofPolicy("a policy WithShares cannot be stopped")},
		"a limiter's defaults": {defaults, nil, ofPolicy("WithBan", "WithDryRun would let no request wait; leave it out, or "+
			"make the policy by a limiter without that default")},
		"what Gin serves": {served, nil, ofPolicy("WithKey", "WithCost", "WithSettle", "WithQueue", "WithSkip",
			"WithAllowList", "WithDenyList", "WithHeaders", "WithHeaderFunc", "WithDeniedHandler", "WithErrorHandler")},
		"a refund":         {refunds, nil, ofPolicy("WithRefund is about requests that Gin serves; give New a transport.WithSettle")},
		"a derived policy": {derived, nil, ofPolicy("WithRefund")},
		"slots alone":      {slots, nil, ofPolicy("after a 429 the policy stops no other process")},
		"no limit":         {free, nil, ofPolicy("after a 429 the policy stops no other process")},
		"a stop that is too long": {daily, []transport.Option{transport.WithCost(costs), transport.WithMaxStop(60 * day)},
			one(1, "WithMaxStop", "WithMaxStop: ginlimit: invalid argument: a block of 1440h0m0s is too long")},
		"a default stop that is too long": {fast, nil, one(-1, "WithMaxStop", "WithMaxStop: ")},
		"a lease and a settlement": {leased, []transport.Option{transport.WithSettle(settles)},
			one(0, "WithSettle", "WithSettle does not go together with WithLease")},
		"nil functions": {plain, []transport.Option{nil, transport.WithKey(nil), transport.WithCost(nil),
			transport.WithSettle(nil), transport.WithMaxStop(0)}, []fault{{0, "", "option 1 is nil"},
			{1, "WithKey", "WithKey: the function is nil"}, {2, "WithCost", "WithCost: the function is nil"},
			{3, "WithSettle", "WithSettle: the function is nil"}, {4, "WithMaxStop", "WithMaxStop(0s): want at least 1s"}}},
		"options and policy": {nil, []transport.Option{transport.WithCost(nil)},
			[]fault{{0, "WithCost", "WithCost"}, {-1, "policy", "the policy was not made"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := transport.New(row.policy, nil, row.opts...)
			requireFaults(t, err, row.want)
		})
	}
	require.NoError(t, testkit.Err(transport.New(daily, nil, transport.WithMaxStop(30*day))))
	failed := errors.New("failed")
	for name, row := range map[string]struct {
		opt  transport.Option
		want error
	}{
		"a key that fails": {transport.WithKey(func(*http.Request) (string, error) { return "", failed }), failed},
		"no key":           {transport.WithKey(func(*http.Request) (string, error) { return "", nil }), ginlimit.ErrNoKey},
		"a cost of 0":      {transport.WithCost(func(*http.Request) int { return 0 }), ginlimit.ErrInvalidArgument},
		"a negative cost":  {transport.WithCost(func(*http.Request) int { return -1 }), ginlimit.ErrInvalidArgument},
	} {
		p := newPartner(nil)
		calls := testkit.Must(transport.New(plain, p, row.opt))
		require.ErrorIs(t, testkit.Err(get(t.Context(), &http.Client{Transport: calls}, url)), row.want, name)
		require.Empty(t, p.calls(), name)
	}
}

// TestSlotsOfAClientsOwnLimits are released too.
func TestSlotsOfAClientsOwnLimits(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for _, more := range []ginlimit.PolicyOption{ginlimit.WithFloor(0), ginlimit.WithLease(time.Second)} {
			client, _ := process(t, b.Redis, newPartner(nil), []ginlimit.PolicyOption{
				testkit.LimitsFrom(ginlimit.PerSecond(1000), ginlimit.InFlight(2)), more})
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := get(ctx, client, url)
				cancel()
				require.NoError(t, err)
			}
		}
	})
}

// TestDefaultsOfALimiter: a lease serves, unless the transport settles; what is about Gin has no effect.
func TestDefaultsOfALimiter(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		events := 0
		limiter := testkit.Must(ginlimit.NewLimiter(b.Redis, ginlimit.WithLease(time.Second),
			ginlimit.WithQueue(1, time.Millisecond),
			ginlimit.WithSkip(func(*gin.Context) bool { return true }), ginlimit.WithKey(ginlimit.ByHeader("X-User")),
			ginlimit.WithObserver(func(context.Context, ginlimit.Event) { events++ })))
		defer limiter.Close()
		asked := 0
		for name, row := range map[string]struct {
			opts   []transport.Option
			leased bool
		}{
			"leased":  {nil, true},
			"settled": {[]transport.Option{transport.WithSettle(func(*http.Response) int { return 1 })}, false},
		} {
			source := func(context.Context, string) ([]ginlimit.Limit, error) {
				asked++
				return limitsOf(ginlimit.PerSecond(1000)), nil
			}
			p := testkit.Must(limiter.Policy(name, ginlimit.WithLimitFunc(source)))
			before, beforeAsked, beforeEvents := limiter.Stats().Leased, asked, events
			calls := testkit.Must(transport.New(p, newPartner(nil), row.opts...))
			require.Equal(t, []int{beforeAsked, beforeEvents}, []int{asked, events}, "New asks nobody")
			for range 10 {
				testkit.Must(get(t.Context(), &http.Client{Transport: calls}, url))
			}
			require.Equal(t, row.leased, limiter.Stats().Leased > before, name)
		}
	})
}
