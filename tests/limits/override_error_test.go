package limits_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Overrides in an outage, and beside slots; and results whose limits are wrong.

// TestAnOutageIsNoOverridesFault: no field is wrong if Redis does not say which policies there are.
func TestAnOutageIsNoOverridesFault(t *testing.T) {
	t.Parallel()
	down := testkit.WithoutRedis(t)
	testkit.NewPolicy(t, down, "api", ginlimit.PerMinute(3))
	known, other := override("ann", ginlimit.PerMinute(9)), override("ann", ginlimit.PerMinute(9))
	require.ErrorIs(t, down.Override(t.Context(), known), ginlimit.ErrUnavailable)
	require.ErrorIs(t, testkit.Err(down.Policies(t.Context())), ginlimit.ErrUnavailable)
	other.Policy = "of another process"
	err := down.OverrideAll(t.Context(), other, override("bob", ginlimit.PerMinute(9)))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.False(t, errors.As(err, new(*ginlimit.OverrideError)), "%v", err)
	require.Equal(t, http.StatusServiceUnavailable, ginlimit.ErrorStatus(err))
	require.Equal(t, http.StatusInternalServerError, ginlimit.ErrorStatus(new(ginlimit.Limiter).Override(t.Context(), other)),
		"the program is wrong, and not who asked")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range []ginlimit.Override{known, other} {
		require.ErrorIs(t, down.Override(ended, o), context.Canceled)
	}
}

// TestAResultOfABadLimitHasNoJSON, and the error says what is wrong with it.
func TestAResultOfABadLimitHasNoJSON(t *testing.T) {
	t.Parallel()
	for _, good := range []ginlimit.Limit{{}, ginlimit.Unlimited(), unnamedZone()} {
		testkit.Must(ginlimit.Result{Limit: good}.MarshalJSON())
	}
	bad := ginlimit.Result{Limit: ginlimit.Limit{Rate: 1}}
	_, err := bad.MarshalJSON()
	require.EqualError(t, err, "ginlimit: invalid argument: 1/0s: the period is missing")
	_, err = json.Marshal(bad)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
}

// TestAnOverrideKeepsTheSlotsOfAFunction, unless it names some itself. Then the function is not asked.
func TestAnOverrideKeepsTheSlotsOfAFunction(t *testing.T) {
	onReaders(t, func(t *testing.T, l, _ *testkit.Limiter) {
		ctx := t.Context()
		of := map[string][]ginlimit.Limit{
			"ann": {ginlimit.PerMinute(60), ginlimit.InFlight(2)}, "bob": {ginlimit.PerMinute(60)}, "bad": {{}},
		}
		down, asked := errors.New("no database"), 0
		plan := ginlimit.WithLimitFunc(func(_ context.Context, client string) ([]ginlimit.Limit, error) {
			if asked++; client == "down" {
				return nil, down
			}
			if of[client] == nil {
				return nil, ginlimit.ErrUnknownClient
			}
			return of[client], nil
		})
		p := testkit.NewPolicy(t, l, "plan", plan)
		five := testkit.NewPolicy(t, l, "five", plan, ginlimit.InFlight(5))
		put := func(client string, limits ...ginlimit.Limit) {
			for _, name := range []string{"plan", "five"} {
				o := override(client, limits...)
				o.Policy = name
				require.NoError(t, l.Override(ctx, o))
			}
		}
		held := func(p *ginlimit.Policy, client string) (n int) {
			for {
				r := testkit.Must(p.Reserve(ctx, client, 1))
				defer r.Release()
				if !r.Result().Allowed || n == 9 {
					return n
				}
				n++
			}
		}
		for _, client := range []string{"ann", ""} {
			put(client, ginlimit.PerMinute(600))
			require.Equal(t, []int{2, 2}, []int{held(p, "ann"), held(five, "ann")})
			rows := testkit.Must(p.Status(ctx, "ann"))
			require.Equal(t, ginlimit.PerMinute(600), rows[0].Limit)
			require.Equal(t, ginlimit.InFlight(2), rows[1].Limit)
			require.ErrorIs(t, testkit.Err(p.Allow(ctx, "ann")), ginlimit.ErrInvalidArgument, "as without the override")
		}
		require.Equal(t, []int{9, 5}, []int{held(p, "bob"), held(five, "bob")}, "the function has none")
		require.True(t, testkit.Must(p.Allow(ctx, "bob")).Allowed)
		require.Equal(t, []int{9, 5}, []int{held(p, "stranger"), held(five, "stranger")}, "by the override alone")
		for _, client := range []string{"down", "bad"} {
			require.Equal(t, []int{9, 5}, []int{held(p, client), held(five, client)}, "the function fails")
		}

		put("", ginlimit.PerMinute(600), ginlimit.InFlight(3))
		before := asked
		for _, client := range []string{"down", "bob"} {
			require.Equal(t, []int{3, 3}, []int{held(p, client), held(five, client)})
		}
		require.True(t, testkit.Must(p.Allow(ctx, "down")).Allowed, "the operator's slots make no method an error")
		require.Equal(t, before, asked)
		time.Sleep(inForce)
	})
}

// TestAnOutageInTheMiddleOfManyChanges: they are an error, some may be in force, and the same call makes the others.
func TestAnOutageInTheMiddleOfManyChanges(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		calls := 0
		b.Redis.AddHook(testkit.EveryScript(func(send func() error) error {
			if calls++; calls == 3 {
				return errors.New("gone")
			}
			return send()
		}))
		l, ctx := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis}), t.Context()
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "someone"))
		time.Sleep(inForce)
		var all []ginlimit.Override
		for i := range 1000 {
			all = append(all, override(fmt.Sprintf("client %03d", i), ginlimit.PerMinute(60)))
		}
		calls = 0
		require.ErrorIs(t, l.OverrideAll(ctx, all...), ginlimit.ErrUnavailable)
		some := len(testkit.Must(l.Overrides(ctx)))
		require.True(t, 0 < some && some < 1000, some)
		require.NoError(t, l.OverrideAll(ctx, all...))
		require.Equal(t, 1000, len(testkit.Must(l.Overrides(ctx))))
	})
}
