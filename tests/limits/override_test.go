package limits_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Limits that operators replace for a time.

// inForce is how soon an override is in force in every process.
const inForce = time.Second

// onReaders runs a test in bubbles with limiters of two processes, and with one of no Redis.
func onReaders(t *testing.T, test func(t *testing.T, l, other *testkit.Limiter)) {
	wrap := func(rdb *redis.Client) redis.UniversalClient { return struct{ redis.UniversalClient }{rdb} }
	for name, start := range map[string]func(t *testing.T, b *testkit.Bubble) (l, other *testkit.Limiter){
		"server": func(t *testing.T, b *testkit.Bubble) (l, other *testkit.Limiter) {
			return testkit.NewOperated(t, b.Redis), testkit.NewOperated(t, b.Connect(t))
		},
		"several": func(t *testing.T, b *testkit.Bubble) (l, other *testkit.Limiter) {
			return testkit.NewOperated(t, wrap(b.Redis)), testkit.NewOperated(t, wrap(b.Connect(t)))
		},
		"local": func(t *testing.T, _ *testkit.Bubble) (l, other *testkit.Limiter) {
			l = testkit.NewLocal(t)
			return l, l
		},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			l, other := start(t, b)
			test(t, l, other)
		})
	}
}

// limitOf returns the limit that a client has.
func limitOf(t *testing.T, p *ginlimit.Policy, client string) ginlimit.Limit {
	t.Helper()
	r := testkit.Must(p.Peek(t.Context(), client))
	return r.Limit
}

// override returns an override of the policy "api" for an hour.
func override(client string, limits ...ginlimit.Limit) ginlimit.Override {
	return ginlimit.Override{Policy: "api", Client: client, Limits: limits, Until: time.Now().Add(time.Hour)}
}

// TestOverridesEqualAModel in two processes under random changes. Overrides of a client come before a policy's, and
// both before what a function or the code says.
func TestOverridesEqualAModel(t *testing.T) {
	onReaders(t, func(t *testing.T, l, other *testkit.Limiter) {
		rng, own := rand.New(rand.NewPCG(1, 2)), ginlimit.PerMinute(1)
		limiters, policies := []*testkit.Limiter{l}, [2][]*ginlimit.Policy{}
		if other != l {
			limiters = append(limiters, other)
		}
		names := []string{"a", "a|b", `a\`}
		for i, l := range limiters {
			for n, name := range names {
				limits := []ginlimit.PolicyOption{own, testkit.LimitsFrom(own)}[n%2]
				policies[i] = append(policies[i], testkit.NewPolicy(t, l, name, limits))
				limitOf(t, policies[i][n], "x")
			}
		}
		clients := []string{"", "x", "b|x", "|", `\`, strings.Repeat("x", 100)}
		model := map[[2]string]ginlimit.Override{}
		keyOf := func(o ginlimit.Override) [2]string { return [2]string{o.Policy, o.Client} }
		lasts := func(key [2]string) bool { return time.Now().Before(model[key].Until) }
		for range 100 {
			var changes []ginlimit.Override
			for range 1 + rng.IntN(3) {
				o := ginlimit.Override{Policy: names[rng.IntN(3)], Client: clients[rng.IntN(6)]}
				if rng.IntN(4) > 0 {
					o.Limits = []ginlimit.Limit{ginlimit.PerMinute(2 + rng.IntN(1000))}
					life := time.Duration(1+rng.IntN(5000)) * time.Millisecond
					o.Until, o.Note = time.Now().Add(life).Truncate(time.Millisecond), "why"
				}
				if !slices.ContainsFunc(changes, func(c ginlimit.Override) bool { return keyOf(c) == keyOf(o) }) {
					changes = append(changes, o)
				}
			}
			require.NoError(t, limiters[rng.IntN(len(limiters))].OverrideAll(t.Context(), changes...))
			for _, o := range changes {
				model[keyOf(o)] = o
			}
			time.Sleep(inForce)
			for i, l := range limiters {
				for n, p := range policies[i] {
					for _, client := range clients[1:] {
						want := own
						for _, key := range [][2]string{{names[n], ""}, {names[n], client}} {
							if lasts(key) {
								want = model[key].Limits[0]
							}
						}
						require.Equal(t, want, limitOf(t, p, client), "%s %q", names[n], client)
					}
				}
				all := testkit.Must(l.Overrides(t.Context()))
				require.Equal(t, len(all), l.Stats().Overrides)
				for key := range model {
					i := slices.IndexFunc(all, func(o ginlimit.Override) bool { return keyOf(o) == key })
					if require.Equal(t, lasts(key), i >= 0, key); i >= 0 {
						all[i].Until = model[key].Until // of another zone
						require.Equal(t, model[key], all[i])
					}
				}
			}
		}
	})
}

// TestOverrideKeepsWhatIsMissing: a raised limit admits as soon as its own rate has a token, a lowered one
// takes as long to be full as before, another period begins full, and the override's end is such a change too.
func TestOverrideKeepsWhatIsMissing(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewOperated(t, b.Redis, testkit.RemembersDenials(), ginlimit.WithFailureMode(ginlimit.FailLocal))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(6))
		for range 6 {
			require.True(t, testkit.Must(p.Allow(t.Context(), "ann")).Allowed)
		}
		want := func(retry time.Duration) {
			t.Helper()
			r := testkit.Must(p.Allow(t.Context(), "ann"))
			require.Equal(t, retry, r.RetryAfter, "allowed: %t", r.Allowed)
		}
		want(10 * time.Second)
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(60))))
		want(time.Second) // though this process remembers the denial
		time.Sleep(time.Second)
		want(0)
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(1))))
		want(time.Minute)
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerHour(1))))
		want(0)
		require.NoError(t, l.Override(t.Context(), ginlimit.Override{Policy: "api", Client: "ann"}))
		want(10 * time.Second)
	})
}

// TestOverrideEndsWhatProcessesHold: leases and denials under the old limits, in a process that learns of it.
func TestOverrideEndsWhatProcessesHold(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		operator := testkit.NewOperated(t, b.Connect(t))
		limits := ginlimit.PerSecond(1000).WithBurst(1000)
		p := testkit.NewPolicy(t, testkit.NewOperated(t, b.Redis, testkit.RemembersDenials()), "api", limits,
			ginlimit.WithLease(time.Minute))
		for range 100 {
			require.True(t, testkit.Must(p.Allow(t.Context(), "ann")).Allowed)
		}
		time.Sleep(inForce) // it is published now
		require.NoError(t, operator.Override(t.Context(), override("ann", ginlimit.Prohibited())))
		time.Sleep(inForce)
		r := testkit.Must(p.Allow(t.Context(), "ann"))
		require.Equal(t, ginlimit.CauseNever, r.Cause)
		require.NoError(t, operator.Override(t.Context(), override("ann", ginlimit.PerSecond(2000))))
		time.Sleep(inForce)
		r = testkit.Must(p.Allow(t.Context(), "ann"))
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.PerSecond(2000), r.Limit)
	})
}

// TestOverridesWithWhatAPolicyHas: its slots and floor stay unless an override says otherwise, and none ends a ban. Of
// a policy without slots, methods that take none go on, and With has no more of them than it says.
func TestOverridesWithWhatAPolicyHas(t *testing.T) {
	onReaders(t, func(t *testing.T, l, _ *testkit.Limiter) {
		ctx := t.Context()
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3), ginlimit.InFlight(2),
			ginlimit.WithBan(time.Minute, time.Hour))
		batch := testkit.Derive(t, p, ginlimit.WithFloor(2))
		left := func(client string) (all []int) {
			for _, row := range testkit.Must(p.Status(ctx, client)) {
				all = append(all, row.Remaining)
			}
			return all
		}
		require.NoError(t, l.Override(ctx, override("ann", ginlimit.PerMinute(5))))
		require.Equal(t, []int{5, 2}, left("ann"))
		require.True(t, testkit.Keep(t, testkit.Must(batch.Reserve(ctx, "ann", 1))).OK())
		require.ErrorIs(t, testkit.Err(p.Allow(ctx, "ann")), ginlimit.ErrInvalidArgument)
		for range 4 {
			testkit.Must(p.Reserve(ctx, "k", 1)).Release()
		}
		require.Equal(t, ginlimit.CauseBan, testkit.Must(p.Peek(ctx, "k")).Cause)
		require.NoError(t, l.Override(ctx, override("k", ginlimit.PerMinute(50), ginlimit.InFlight(4))))
		require.Equal(t, ginlimit.CauseBan, testkit.Must(p.Peek(ctx, "k")).Cause)
		require.NoError(t, p.Reset(ctx, "k"))
		require.Equal(t, []int{50, 4}, left("k"))

		plain := testkit.NewPolicy(t, l, "plain", ginlimit.PerMinute(3))
		require.True(t, testkit.Must(plain.Allow(ctx, "ann")).Allowed)
		own := testkit.NewPolicy(t, l, "own", ginlimit.PerMinute(30), ginlimit.InFlight(2))
		one := override("ann", ginlimit.PerMinute(3), ginlimit.InFlight(1))
		three := override("ann", ginlimit.PerMinute(40), ginlimit.InFlight(3))
		one.Policy, three.Policy = "plain", "own"
		require.NoError(t, l.OverrideAll(ctx, one, three))
		first, second := testkit.Must(plain.Reserve(ctx, "ann", 1)), testkit.Must(plain.Reserve(ctx, "ann", 1))
		require.Equal(t, ginlimit.CauseInFlight, second.Result().Cause)
		first.Release()
		require.True(t, testkit.Must(plain.AllowN(ctx, "ann", 1)).Allowed)
		require.Equal(t, ginlimit.CauseRate, testkit.Must(plain.Allow(ctx, "ann")).Cause)
		require.True(t, testkit.Keep(t, testkit.Must(own.Reserve(ctx, "ann", 1))).OK())
		few := testkit.Derive(t, own, ginlimit.InFlight(1))
		require.Equal(t, ginlimit.InFlight(1), testkit.Must(few.Reserve(ctx, "ann", 1)).Result().Limit)
		require.Equal(t, ginlimit.InFlight(1), testkit.Must(few.Status(ctx, "ann"))[1].Limit)
		require.True(t, testkit.Keep(t, testkit.Must(own.Reserve(ctx, "ann", 1))).OK())
	})
}

// TestBlocksOutlastOverrides: what is blocked or reset under an override is so after it, too.
func TestBlocksOutlastOverrides(t *testing.T) {
	onReaders(t, func(t *testing.T, l, _ *testkit.Limiter) {
		ctx, own := t.Context(), ginlimit.PerMinute(3)
		p := testkit.NewPolicy(t, l, "api", own)
		plans := testkit.NewPolicy(t, l, "plans", testkit.LimitsFrom(own))
		for _, p := range []*ginlimit.Policy{p, plans} {
			name := testkit.Must(p.Allow(ctx, "ann")).Name
			put := override("ann", ginlimit.PerHour(7))
			put.Policy = name
			require.NoError(t, l.Override(ctx, put))
			require.NoError(t, p.Block(ctx, "ann", 3*time.Hour))
			require.False(t, testkit.Must(p.Allow(ctx, "ann")).Allowed)
			require.NoError(t, l.Override(ctx, ginlimit.Override{Policy: name, Client: "ann"}))
			require.False(t, testkit.Must(p.Allow(ctx, "ann")).Allowed, "the override's end ends no block")
			require.NoError(t, l.Override(ctx, put))
			require.NoError(t, p.Reset(ctx, "ann"))
			require.True(t, testkit.Must(p.Allow(ctx, "ann")).Allowed)
			require.NoError(t, l.Override(ctx, ginlimit.Override{Policy: name, Client: "ann"}))
			require.True(t, testkit.Must(p.Allow(ctx, "ann")).Allowed)
		}
		none := override("ann", ginlimit.Unlimited())
		require.NoError(t, l.Override(ctx, none))
		require.ErrorIs(t, p.Block(ctx, "ann", time.Hour), ginlimit.ErrInvalidArgument)
		require.NoError(t, l.Override(ctx, ginlimit.Override{Policy: "api", Client: "ann"}))
		require.True(t, testkit.Must(p.Allow(ctx, "ann")).Allowed, "an error blocks nothing")

		var fault error
		strangers := testkit.NewPolicy(t, l, "strangers", ginlimit.WithLimitFunc(
			func(context.Context, string) ([]ginlimit.Limit, error) { return nil, fault }))
		put := override("bob", own)
		put.Policy, fault = "strangers", ginlimit.ErrUnknownClient
		require.NoError(t, l.Override(ctx, put))
		require.NoError(t, strangers.Block(ctx, "bob", time.Hour), "a client that only the override knows")
		require.False(t, testkit.Must(strangers.Allow(ctx, "bob")).Allowed)
		fault = errors.New("no database")
		require.ErrorIs(t, strangers.Reset(ctx, "bob"), fault)
	})
}

// TestBadOverridesChangeNothing. They name their fields, say everything that is wrong, and are the fault of who asks.
func TestBadOverridesChangeNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb, _ := testkit.NewMiniredis(t)
	remote, local := testkit.NewOperated(t, rdb), testkit.NewLocal(t)
	for _, l := range []*testkit.Limiter{remote, local} {
		testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		testkit.NewPolicy(t, l, "batch", ginlimit.PerMinute(100), ginlimit.WithFloor(40))
		testkit.NewPolicy(t, l, "shared", ginlimit.PerMinute(30), sharesBy())
	}
	good := override("good", ginlimit.PerMinute(9))
	type over = ginlimit.Override
	of := func(limits ...ginlimit.Limit) func(o *over) { return func(o *over) { o.Limits = limits } }
	fixed := ginlimit.PerMinute(3).WithAlgorithm(ginlimit.FixedWindow)
	for _, row := range []struct {
		fields, says string
		change       func(o *over)
	}{
		{"Policy", "the override has no policy", func(o *over) { o.Policy = "" }},
		{"Policy", `no process has served a policy named "apj"`, func(o *over) { o.Policy = "apj" }},
		{"Policy", "not UTF-8", func(o *over) { o.Policy = "\xff" }},
		{"Client", "not UTF-8", func(o *over) { o.Client = "\xff" }},
		{"Client", "a client of 1025 bytes", func(o *over) { o.Client = strings.Repeat("c", 1025) }},
		{"Client", "has another override in the same call", func(o *over) { o.Client = "good" }},
		{"Until", "an override until 0001", func(o *over) { o.Until = time.Time{} }},
		{"Until", "want the future", func(o *over) { o.Until = time.Now() }},
		{"Until", "at most 366 days ahead", func(o *over) { o.Until = time.Now().AddDate(1, 0, 2) }},
		{"Note", "a note of 257 bytes", func(o *over) { o.Note = strings.Repeat("n", 257) }},
		{"Note", "not UTF-8", func(o *over) { o.Note = "\xff" }},
		{"Note", "has control characters", func(o *over) { o.Note = "a\nb" }},
		{"Limits", "the zero Limit", of(ginlimit.Limit{})},
		{"Limits Limits", "the zero Limit", of(ginlimit.Limit{}, ginlimit.InFlight(-1))},
		{"Limits", "have the same period", of(ginlimit.PerMinute(9), ginlimit.PerMinute(1))},
		{"Limits" + strings.Repeat(" Limits", 17), "17 limits", of(make([]ginlimit.Limit, 17)...)},
		{"Limits", "no time zone has that name", of(unnamedZone())},
		{"Limits", "5 in flight alone would leave the policy without its other limits", of(ginlimit.InFlight(5))},
		{"Limits Limits", "WithShares does not go together with InFlight",
			func(o *over) { of(fixed, ginlimit.InFlight(1))(o); o.Policy = "shared" }},
		{"Limits", "WithFloor(40) leaves nothing of 9/m", func(o *over) { o.Policy = "batch" }},
		{"Policy Note Until Limits", "no policy", func(o *over) { *o = over{Limits: []ginlimit.Limit{{}}, Note: "\n"} }},
	} {
		bad := good
		bad.Client = "bad"
		row.change(&bad)
		for index, all := range [][]over{{bad}, {good, bad}} {
			if index == 0 && bad.Client == "good" {
				continue
			}
			for _, l := range []*testkit.Limiter{remote, local} {
				requireFields(t, l.OverrideAll(ctx, all...), index, row.fields, row.says)
			}
		}
	}
	for _, n := range []int{0, 1001} {
		var fault *ginlimit.OverrideError
		require.ErrorAs(t, remote.OverrideAll(ctx, make([]over, n)...), &fault)
		require.ErrorContains(t, fault, fmt.Sprint(n, " overrides; want 1 to 1000 at once"))
		require.Equal(t, -1, fault.Index)
	}
	require.Empty(t, rdb.Keys(ctx, "*overrides*").Val())
	require.Empty(t, testkit.Must(local.Overrides(ctx)))
	require.NoError(t, remote.Override(ctx, over{Policy: "gone", Client: "nobody"}), "there is none to end")
	require.ErrorIs(t, testkit.Err((*ginlimit.Limiter)(nil).Overrides(ctx)), ginlimit.ErrInvalidArgument)
	require.ErrorIs(t, testkit.Err(new(ginlimit.Limiter).Policies(ctx)), ginlimit.ErrInvalidArgument)
	require.NoError(t, remote.Close())
	require.ErrorIs(t, remote.Override(ctx, good), ginlimit.ErrClosed)
}

// requireFields wants an error that has a fault of each field, and says what is wrong with them.
func requireFields(t *testing.T, err error, index int, fields, says string) {
	t.Helper()
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, says)
	assert.ErrorContains(t, err, says)
	var named []string
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		var fault *ginlimit.OverrideError
		require.ErrorAs(t, err, &fault, "%s: %v", says, err)
		require.ErrorIs(t, fault, ginlimit.ErrInvalidArgument)
		require.Equal(t, index, fault.Index)
		want := fault.Err.Error()
		if index == 1 {
			want += " (override 2)"
		}
		require.Equal(t, want, err.Error())
		require.Equal(t, http.StatusBadRequest, ginlimit.ErrorStatus(fmt.Errorf("wrapped: %w", err)))
		named = append(named, fault.Field)
	}
	require.Equal(t, fields, strings.Join(named, " "), "%s: %v", says, err)
}

// unnamedZone is a limit whose text nobody can read.
func unnamedZone() ginlimit.Limit {
	return ginlimit.PerCalendar(5, ginlimit.CalendarDay(time.FixedZone("here", 1234)))
}

// TestOverridesAreBounded: the 10,001st is an error that changes nothing, ended ones make room, and they leave
// nothing in Redis.
func TestOverridesAreBounded(t *testing.T) {
	for _, name := range []string{"Redis", "local"} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			l, ctx := testkit.NewOperated(t, b.Redis), t.Context()
			if name == "local" {
				l = testkit.NewLocal(t)
			}
			p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
			require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "0"))
			some := func(from, n int, life time.Duration) (all []ginlimit.Override) {
				for i := range n {
					o := override(fmt.Sprintf("customer-%06d", from+i), ginlimit.PerMinute(100+i%5), ginlimit.PerDay(5000))
					o.Until, o.Note = time.Now().Add(life), "asked for by the sales department"
					all = append(all, o)
				}
				return all
			}
			for i := range 10 {
				require.NoError(t, l.OverrideAll(ctx, some(i*1000, 1000, time.Duration(i+1)*time.Minute)...))
			}
			require.Equal(t, 10_000, l.Stats().Overrides, name)
			full := l.OverrideAll(ctx, append(some(0, 1, time.Minute), some(20_000, 1, time.Minute)...)...)
			require.ErrorIs(t, full, ginlimit.ErrInvalidArgument)
			require.ErrorContains(t, full, "there would be more than 10000 overrides")
			full = l.OverrideAll(ctx, append(some(0, 999, time.Minute), some(20_000, 1, time.Minute)...)...)
			require.ErrorContains(t, full, "there would be more than 10000 overrides", "of the last of several calls")
			require.Equal(t, 10_000, l.Stats().Overrides, name)
			require.NoError(t, l.OverrideAll(ctx, append(some(20_000, 1, time.Minute),
				ginlimit.Override{Policy: "api", Client: "customer-000000"})...), "one ends, another begins")
			require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "customer-000000"))
			time.Sleep(90 * time.Second)
			require.NoError(t, l.OverrideAll(ctx, some(30_000, 1000, 9*time.Minute)...), "the ended ones have made room")
			require.Equal(t, 10_000, l.Stats().Overrides, name)
			if name == "Redis" {
				time.Sleep(75 * time.Minute)
				require.Empty(t, b.Mini.Keys(), "nothing is left")
				time.Sleep(inForce)
				require.Zero(t, l.Stats().Overrides)
			}
		})
	}
}

// TestAnEvictedKeyEndsNoOverride: Redis may evict the key that says when overrides end, which is read seldom.
func TestAnEvictedKeyEndsNoOverride(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, ctx := testkit.NewOperated(t, b.Redis), t.Context()
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann"))
		long, gone, short := override("ann", ginlimit.PerMinute(60)), override("bob", ginlimit.PerMinute(60)), override("eve")
		long.Until, long.Note, gone.Until = time.Now().Add(70*time.Minute), `{"until":1}`, time.Now().Add(time.Minute)
		require.NoError(t, l.OverrideAll(ctx, long, gone))
		time.Sleep(90 * time.Second)
		require.True(t, b.Mini.Del("ginlimit:{overrides}:ends"))
		_, err := b.Mini.ZAdd("ginlimit:{overrides}:ends", float64(long.Until.UnixMilli()), "api|ann")
		require.NoError(t, err) // as another process, which ended then, has begun to add all
		short.Limits, short.Until = long.Limits, time.Now().Add(time.Minute)
		require.NoError(t, l.Override(ctx, short))
		require.NotContains(t, testkit.Must(b.Mini.HKeys("ginlimit:{overrides}")), "api|bob")
		time.Sleep(65 * time.Minute) // an hour after an end keys expire
		require.Equal(t, ginlimit.PerMinute(60), limitOf(t, p, "ann"))
		time.Sleep(65 * time.Minute)
		require.Empty(t, b.Mini.Keys())
	})
}

// TestOverridesOutliveAnOutage until their ends, and a process that ignores them has its own limits.
func TestOverridesOutliveAnOutage(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewOperated(t, b.Redis, ginlimit.WithFailureMode(ginlimit.FailLocal),
			ginlimit.WithTimeout(50*time.Millisecond))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		own := testkit.NewPolicy(t, testkit.NewOperated(t, b.Connect(t), ginlimit.WithoutOverrides()), "api",
			ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann"))
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(60))))
		time.Sleep(inForce)
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, own, "ann"))
		b.Mini.SetError("LOADING")
		time.Sleep(time.Minute)
		r := testkit.Must(p.Allow(t.Context(), "ann"))
		require.Equal(t, ginlimit.FromLocal, r.Source)
		require.Equal(t, ginlimit.PerMinute(60), r.Limit)
		time.Sleep(time.Hour)
		r = testkit.Must(p.Allow(t.Context(), "ann"))
		require.Equal(t, ginlimit.PerMinute(3), r.Limit)
		b.Mini.SetError("")
		b.Mini.FlushAll()
		time.Sleep(inForce)
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann"))
	})
}

// TestOverridesWithASecretNameNobody in Redis.
func TestOverridesWithASecretNameNobody(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewOperated(t, rdb, ginlimit.WithKeySecret([]byte("sixteen bytes...")))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
	require.NoError(t, l.Override(t.Context(), override("ann@example.com", ginlimit.PerMinute(9))))
	require.Equal(t, ginlimit.PerMinute(9), limitOf(t, p, "ann@example.com"))
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "bob@example.com"))
	stored := rdb.HGetAll(t.Context(), "ginlimit:{overrides}").Val()
	require.Len(t, stored, 2)
	require.NotContains(t, fmt.Sprint(stored), "ann")
	require.Contains(t, fmt.Sprint(stored), `{"v":1,"policy":"api","client":"#`)
	require.Regexp(t, `^#[\w-]{43}$`, testkit.Must(l.Overrides(t.Context()))[0].Client)
	require.NoError(t, l.Override(t.Context(), ginlimit.Override{Policy: "api", Client: "ann@example.com"}))
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann@example.com"))
}

// TestOverridesThatDoNotFitAreIgnored, and the log says so without the client: those that another process wrote,
// which has another policy of the name, and what cannot be read.
func TestOverridesThatDoNotFitAreIgnored(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var log testkit.Buffer
		l := testkit.NewOperated(t, b.Redis, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(30), sharesBy()).Share("a", 1)
		other := testkit.NewOperated(t, b.Connect(t))
		plain := testkit.NewPolicy(t, other, "api", ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, plain, "elk"))
		require.NoError(t, other.Override(t.Context(), override("ann", ginlimit.PerDay(9), ginlimit.PerMinute(9))))
		require.NoError(t, other.Override(t.Context(), override("bob", ginlimit.PerMinute(9))))
		require.Equal(t, ginlimit.PerMinute(30), limitOf(t, p, "ann"))
		time.Sleep(inForce)
		require.Equal(t, ginlimit.PerMinute(30), limitOf(t, p, "ann"))
		require.Equal(t, ginlimit.PerMinute(9), limitOf(t, p, "bob"))
		require.Contains(t, log.String(), "an override does not fit its policy, and is ignored")
		b.Mini.HSet("ginlimit:{overrides}", "api|cat", `{"v":2,"policy":"api"}`, "api|dog", "none", "", "another stamp")
		time.Sleep(inForce)
		require.Equal(t, ginlimit.PerMinute(9), limitOf(t, p, "bob"))
		require.Contains(t, log.String(), "overrides cannot be read, or policies not be published")
		require.NotContains(t, log.String(), "ann ")
		_, err := l.Overrides(t.Context())
		require.Error(t, err)
		text := `{"v":1,"policy":"api","client":"elk","until":4102444800000,"limits":"%s"}`
		for stamp, limits := range []string{"9/1s" + strings.Repeat(", 9/2s", 100_000), manyPeriods(17), "9/1s, 8/1s"} {
			b.Mini.HSet("ginlimit:{overrides}", "api|elk", fmt.Sprintf(text, limits), "", fmt.Sprint(stamp))
			time.Sleep(inForce)
			require.Equal(t, ginlimit.PerMinute(3), limitOf(t, plain, "elk"))
		}
		b.Mini.FlushAll()
		b.Mini.HSet("ginlimit:{overrides}", "api|elk", fmt.Sprintf(text, "none"), "", "stamp")
		_, err = l.Overrides(t.Context())
		require.ErrorContains(t, err, "cannot be read")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.NotErrorIs(t, err, ginlimit.ErrInvalidArgument, "the caller has done nothing wrong")
	})
}

// manyPeriods is the text of n limits.
func manyPeriods(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("9/%ds", i+1))
	}
	return strings.Join(all, ", ")
}

// TestACloseEndsTheLooks at overrides, of which an idle process has one every 10 s, by two commands.
func TestACloseEndsTheLooks(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewOperated(t, b.Redis)
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "ann"))
		time.Sleep(10 * time.Minute)
		before := b.Mini.CommandCount()
		time.Sleep(time.Minute)
		require.InDelta(t, 2*60/10, b.Mini.CommandCount()-before, 4)
		require.NoError(t, l.Close())
		time.Sleep(inForce)
		before = b.Mini.CommandCount()
		time.Sleep(time.Hour)
		require.Equal(t, before, b.Mini.CommandCount())
	})
}

// TestAClientThatHangsHoldsFewGoroutines, and decisions go on.
func TestAClientThatHangsHoldsFewGoroutines(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		release := make(chan struct{})
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error { <-release; return send() }))
		l := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis}, ginlimit.WithFailureMode(ginlimit.FailLocal),
			ginlimit.WithTimeout(50*time.Millisecond))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		for range 3 {
			testkit.Must(p.Allow(t.Context(), "ann"))
			time.Sleep(time.Hour)
			stacks := make([]byte, 1<<24)
			text := string(stacks[:runtime.Stack(stacks, true)])
			calls := strings.Count(text, "redisstore.(*Overrides)") + strings.Count(text, "redisstore.(*Policies)")
			require.Positive(t, calls)
			require.Less(t, calls, 40, "an hour has 5,000 looks")
		}
		require.NoError(t, l.Close())
		close(release)
	})
}

// TestAClientThatHangsHoldsUpNoOperator longer than five seconds or the context, and no later call.
func TestAClientThatHangsHoldsUpNoOperator(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		release := make(chan struct{})
		var answers atomic.Bool
		b.Redis.AddHook(testkit.EveryCall(func(send func() error) error {
			if !answers.Load() {
				<-release
			}
			return send()
		}))
		l := testkit.NewOperated(t, struct{ redis.UniversalClient }{b.Redis})
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
		limits := []ginlimit.Limit{ginlimit.PerMinute(9)}
		began := time.Now()
		require.ErrorIs(t, l.Override(t.Context(), override("ann", limits...)), ginlimit.ErrUnavailable)
		require.Equal(t, 5*time.Second, time.Since(began))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := l.Overrides(ctx)
		require.ErrorIs(t, err, context.Canceled)
		_, err = l.Policies(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 6*time.Second, time.Since(began))
		answers.Store(true)
		require.NoError(t, l.Override(t.Context(), override("ann", limits...)))
		limits[0] = ginlimit.PerMinute(1) // the caller's
		rows, err := p.Status(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(9), rows[0].Limit)
		close(release)
		time.Sleep(inForce)
		require.Equal(t, ginlimit.PerMinute(9), limitOf(t, p, "ann"))
	})
}

// TestWhoWaitsGoesByAnOverride within a second, in order but for the first, and it is one wait to observers; when it
// ends, those that still wait have the policy's limits again.
func TestWhoWaitsGoesByAnOverride(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var mu sync.Mutex // guards the lists
		var waited []time.Duration
		var order []int
		l := testkit.NewOperated(t, b.Redis, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Outcome == ginlimit.OutcomeAllowed && e.Waited > 0 {
				waited = append(waited, e.Duration, e.Waited)
			}
		}))
		seen := func() ([]int, []time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(order), slices.Clone(waited)
		}
		operator := testkit.NewOperated(t, b.Connect(t))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(1))
		testkit.NewPolicy(t, operator, "api", ginlimit.PerHour(1))
		require.NoError(t, p.Wait(t.Context(), "ann"))
		start := time.Now()
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				assert.NoError(t, p.Wait(t.Context(), "ann"))
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		now, _ := seen()
		require.Empty(t, now)
		// A token each 10 s: what is missing of the hour is missing still.
		require.NoError(t, operator.Override(t.Context(), override("ann", ginlimit.PerHour(360))))
		time.Sleep(time.Until(start.Add(35 * time.Second)))
		now, times := seen()
		require.Len(t, now, 3)
		require.IsIncreasing(t, now[1:], "whoever leaves the line first is the first of the next one")
		require.Len(t, times, 6)
		require.InDelta(t, 10*time.Second, times[1], float64(2*time.Second))
		require.InDelta(t, 30*time.Second, times[5], float64(2*time.Second))
		require.InDelta(t, times[4], times[5], float64(time.Second))
		require.NoError(t, operator.Override(t.Context(), ginlimit.Override{Policy: "api", Client: "ann"}))
		time.Sleep(30 * time.Minute)
		now, _ = seen()
		require.Len(t, now, 3)
		all.Wait()
		require.Greater(t, time.Since(start), 50*time.Minute)
	})
}

// TestWhoHasNoOverrideIsNotLogged: there is none for its policy, or only others' there.
func TestWhoHasNoOverrideIsNotLogged(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
	other := testkit.NewPolicy(t, l, "other", ginlimit.PerMinute(3))
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "bob"))
	require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(9))))
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "bob"))
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, other, "ann"))
	require.Empty(t, log.String())
}
