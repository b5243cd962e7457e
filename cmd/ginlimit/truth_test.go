package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What the tool says of a client is what the application decides.

// serving returns the tool for an application that has made policies with these options, and their methods called.
func serving(t *testing.T, all map[string][]ginlimit.PolicyOption) (map[string]*ginlimit.Policy, *runner) {
	t.Helper()
	rdb, _ := testkit.NewMiniredis(t)
	return servingOn(t, rdb, all)
}

// servingOn is serving on a Redis.
func servingOn(
	t *testing.T, rdb *redis.Client, all map[string][]ginlimit.PolicyOption,
) (map[string]*ginlimit.Policy, *runner) {
	t.Helper()
	l, policies := testkit.NewOperated(t, rdb), map[string]*ginlimit.Policy{}
	for name, opts := range all {
		policies[name] = testkit.NewPolicy(t, l, name, opts...)
		testkit.Must(policies[name].Reserve(t.Context(), "someone", 1)).Release()
	}
	testkit.Must(l.Policies(t.Context())) // which publishes them
	return policies, newRunner(t, "redis://"+rdb.Options().Addr)
}

// TestClientsOfMethods are any text, such as a customer: no key function says what they are.
func TestClientsOfMethods(t *testing.T) {
	t.Parallel()
	policies, r := serving(t, map[string][]ginlimit.PolicyOption{"account": {ginlimit.PerHour(3), ginlimit.InFlight(2)}})
	reserve := func() bool {
		reserved := testkit.Must(policies["account"].Reserve(t.Context(), "customer 7", 1))
		defer reserved.Release()
		return reserved.Result().Allowed
	}
	held := testkit.Must(policies["account"].Reserve(t.Context(), "customer 7", 1))
	defer held.Release()
	require.Equal(t, 2, read[shown](r, "status", "account", "customer 7").Limits[0].Remaining)
	require.Equal(t, 1, read[[]operate.Holder](r, "slots", "account", "customer 7")[0].Slots)
	r.ok("block", "account", "customer 7", "1h", "-y")
	require.False(t, reserve())
	r.ok("reset", "account", "customer 7", "-y")
	require.True(t, reserve())
	r.ok("override", "account", "customer 7", "9/h", "--for", "1h", "-y")
	r.in = "- {policy: account, client: customer 8, limits: 9/h, for: 2h}"
	r.ok("apply", "-", "-y")
	require.Len(t, read[[]operate.Written](r, "overrides"), 2)
	require.Regexp(t, `(?m)^account +3/h, 2 in flight +\(methods\) `, r.ok("policies"))
	require.False(t, read[[]published](r, "policies")[0].Handler)
}

// TestStatusIsWhatTheApplicationDecides under what a policy keeps: for other policies, and for leases.
func TestStatusIsWhatTheApplicationDecides(t *testing.T) {
	t.Parallel()
	hundred := ginlimit.PerHour(100)
	policies, r := serving(t, map[string][]ginlimit.PolicyOption{
		"floor": {hundred, ginlimit.WithFloor(30)},
		"lease": {hundred, ginlimit.WithLease(time.Hour)},
		"both":  {hundred, ginlimit.WithLease(time.Hour), ginlimit.WithFloor(30)},
		"plan": {ginlimit.WithFloor(30), ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{hundred}, nil
		})},
	})
	for name, p := range policies {
		more := []string{}
		if name == "plan" {
			more = []string{"--limit", "100/h"}
		}
		for _, n := range []int{1, 19, 15, 35, 20} {
			testkit.Must(p.AllowUpTo(t.Context(), "k", n))
			r0 := testkit.Must(p.Peek(t.Context(), "k"))
			got := r.run(append([]string{"status", name, "k"}, more...)...)
			require.Equal(t, map[bool]int{true: exitOK, false: exitDenied}[r0.Allowed], got.code, "%s %+v\n%s", name, r0,
				got.out)
		}
		require.False(t, testkit.Must(p.Peek(t.Context(), "k")).Allowed, name)
	}
	got := r.run("status", "plan", "new", "--limit", "30/h", "--json")
	require.Equal(t, exitDenied, got.code, "the floor is all of it")
	var s shown
	require.NoError(t, jsonOf(got.out, &s))
	require.Equal(t, ginlimit.PerHour(30), s.Limits[0].Limit)
	require.Regexp(t, `(?m)^both .* WithFloor\(30\) WithLease\(1h0m0s\)`, r.ok("policies"))
}

// TestSlotsOfAPlanUnderAnOverride stay, and only the application knows them: the tool says so.
func TestSlotsOfAPlanUnderAnOverride(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{
		"plan": {ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{ginlimit.PerHour(9), ginlimit.InFlight(2)}, nil
		})},
	})
	const text = "only the application knows"
	require.NotContains(t, r.ok("status", "plan", "k", "--limit", "9/h"), text)
	r.ok("override", "plan", "k", "99/h", "--for", "1h", "-y")
	require.Contains(t, r.ok("status", "plan", "k"), text)
	require.NotContains(t, r.ok("status", "plan", "k", "--limit", "99/h", "--limit", "2 in flight"), text)
	r.ok("override", "plan", "k", "99/h, 3 in flight", "--for", "1h", "-y")
	require.NotContains(t, r.ok("status", "plan", "k"), text)
}

// TestAnOverrideBelowAFloor is refused, as the application does.
func TestAnOverrideBelowAFloor(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"floor": {ginlimit.PerHour(100), ginlimit.WithFloor(30)}})
	const text = "WithFloor(30) leaves nothing of 20/h"
	r.fails(exitUsage, text, "override", "floor", "k", "20/h", "--for", "1h", "-y")
	r.fails(exitUsage, text, "override-all", "floor", "20/h", "--for", "1h", "-y")
	r.in = "- {policy: floor, all: true, limits: 99/h, for: 2h}\n- {policy: floor, client: k, limits: 20/h, for: 2h}"
	r.fails(exitUsage, "override 2, line 2: "+text, "apply", "-", "-y")
	require.Empty(t, read[[]operate.Written](r, "overrides"))
	r.ok("override-all", "floor", "31/h", "--for", "1h", "-y")
	r.ok("override", "floor", "k", "prohibited", "--for", "1h", "-y")
}

// TestVariantsOfAPolicy: the tool is about what serves requests, of which clients have a kind of key.
func TestVariantsOfAPolicy(t *testing.T) {
	t.Parallel()
	policies, r := serving(t, map[string][]ginlimit.PolicyOption{"search": {ginlimit.PerHour(100)}})
	batch := testkit.Derive(t, policies["search"], ginlimit.WithFloor(40))
	take(t, batch, "2001:db8::/64")
	router := testkit.Serve(policies["search"].Handler())
	require.Equal(t, 200, testkit.Get(router, "/").Code)
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return r.run("status", "search", "customer 7").code == exitUsage
	}))
	got := r.run("status", "search", "2001:db8::7")
	require.Equal(t, exitOK, got.code)
	require.Regexp(t, `(?m)^100/h +true +99 `, got.out)
}

// TestLimitsOfPlans are read where the application's processes keep them, and asked for if nobody does.
func TestLimitsOfPlans(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", strings.Repeat("s", 16)} {
		rdb, _ := testkit.NewMiniredis(t)
		r, opts := newRunner(t, "redis://"+rdb.Options().Addr), []ginlimit.LimiterOption{}
		if secret != "" {
			r.env["GINLIMIT_KEY_SECRET"] = secret
			opts = append(opts, ginlimit.WithKeySecret([]byte(secret)))
		}
		l := testkit.NewOperated(t, rdb, opts...)
		plans := testkit.Must(l.NewPlans("of customers", time.Minute,
			func(_ context.Context, client string) ([]ginlimit.Limit, error) {
				if client == "nobody" {
					return nil, ginlimit.ErrUnknownClient
				}
				return []ginlimit.Limit{ginlimit.PerHour(9), ginlimit.PerDay(50)}, nil
			}))
		p := testkit.NewPolicy(t, l, "plan", ginlimit.InFlight(2), ginlimit.WithLimitFunc(plans.Limits))
		testkit.Must(p.Reserve(t.Context(), "k", 1)).Release()
		testkit.Must(l.Policies(t.Context()))
		limits := read[shown](r, "status", "plan", "k").Limits
		require.Len(t, limits, 3)
		require.Equal(t, ginlimit.PerHour(9), limits[0].Limit)
		require.Equal(t, 8, limits[0].Remaining)
		require.Equal(t, ginlimit.InFlight(2), limits[2].Limit)
		require.Equal(t, "of customers", testkit.Must(l.Policies(t.Context()))[0].Plans)
		r.fails(exitUsage, "which only the application knows", "status", "plan", "new")
		require.Equal(t, exitOK, r.run("status", "plan", "new", "--limit", "7/h").code)
		require.ErrorIs(t, testkit.Err(p.Reserve(t.Context(), "nobody", 1)), ginlimit.ErrUnknownClient)
		r.fails(exitUsage, "do not know the client", "status", "plan", "nobody")

		r.ok("override", "plan", "k", "99/h", "--for", "1h", "-y")
		r.ok("block", "plan", "k", "1h", "-y")
		require.Equal(t, exitDenied, r.run("status", "plan", "k").code)
		r.ok("override", "plan", "k", "--end", "-y")
		require.Equal(t, exitDenied, r.run("status", "plan", "k").code, "the block outlasts the override")
		r.ok("reset", "plan", "k", "-y")
		require.Equal(t, 9, read[shown](r, "status", "plan", "k").Limits[0].Remaining)
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			reserved := testkit.Must(p.Reserve(t.Context(), "k", 1))
			defer reserved.Release()
			return reserved.OK()
		}))
	}
}
