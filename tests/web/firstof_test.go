package web_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// countingKey is a key function that counts its calls.
func countingKey(calls *int, f ginlimit.KeyFunc) ginlimit.Option {
	return ginlimit.WithKey(func(c *gin.Context) (string, error) { *calls++; return f(c) })
}

// TestFirstOf: the first policy that finds a key limits the request, and the others do not see it.
func TestFirstOf(t *testing.T) {
	t.Parallel()
	limiter := testkit.NewLocal(t)
	var byKey, byUser, byAddress int
	keys := testkit.NewPolicy(t, limiter, "api key", ginlimit.PerHour(3),
		countingKey(&byKey, ginlimit.ByHeader("X-Api-Key")))
	users := testkit.NewPolicy(t, limiter, "user", ginlimit.PerHour(2),
		countingKey(&byUser, ginlimit.ByHeader("X-User")))
	addresses := testkit.NewPolicy(t, limiter, "address", ginlimit.PerHour(1),
		countingKey(&byAddress, ginlimit.ByClientIP))
	policies := []*ginlimit.Policy{keys, users, addresses}
	var found ginlimit.Result
	r := testkit.Serve(func(c *gin.Context) {
		c.Next()
		found, _ = ginlimit.FromContext(c)
	}, ginlimit.FirstOf(policies...))
	clear(policies) // what is changed afterwards has no effect
	ask := func(code int, name string, edit ...func(*http.Request)) {
		t.Helper()
		rec := testkit.Get(r, "/", edit...)
		require.Equal(t, code, rec.Code)
		require.Equal(t, name, found.Name)
		require.Equal(t, rec.Header().Get("X-RateLimit-Limit"), fmt.Sprint(found.Limit.Rate))
	}
	key, user := testkit.With("X-Api-Key", "k"), testkit.With("X-User", "u")
	for range 3 {
		ask(200, "api key", key, user)
	}
	require.Equal(t, []int{3, 0, 0}, []int{byKey, byUser, byAddress}, "one call for each request, and none behind it")
	ask(429, "api key", key, user)
	ask(200, "user", user)
	require.Equal(t, []int{5, 1, 0}, []int{byKey, byUser, byAddress})
	ask(200, "address")
	ask(429, "address")
	ask(200, "user", user)
	ask(429, "user", user)
	ask(200, "api key", testkit.With("X-Api-Key", "another"))
	ask(200, "address", testkit.From("198.51.100.7:1"))
	for p, left := range map[*ginlimit.Policy]int{keys: 0, users: 0, addresses: 0} {
		client := map[*ginlimit.Policy]string{keys: "k", users: "u", addresses: "192.0.2.1"}[p]
		require.Equal(t, left, testkit.Must(p.Peek(t.Context(), client)).Remaining)
	}
}

// TestFirstOfEndsAtAnError: only a key that is not there sends a request on to the next policy.
func TestFirstOfEndsAtAnError(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	broken := errors.New("broken")
	noKey := func(err error) ginlimit.Option {
		return ginlimit.WithKey(func(*gin.Context) (string, error) { return "", err })
	}
	keyed := func(*gin.Context) (string, error) { return "k", nil }
	key, five := ginlimit.WithKey(keyed), ginlimit.PerHour(5)
	fails := func(err error) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, err })
	}
	for name, row := range map[string]struct {
		first options
		by    string // which policy answers
		code  int
	}{
		"a header is missing": {options{five, ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key"))}, "second", 200},
		"ErrNoKey":            {options{five, noKey(ginlimit.ErrNoKey)}, "second", 200},
		"an error that wraps it": {options{five, noKey(fmt.Errorf("%w, as it happens",
			ginlimit.ErrNoKey))}, "second", 200},
		"none of several": {options{five, ginlimit.WithKey(ginlimit.ByAny(
			ginlimit.ByHeader("X-A"), ginlimit.ByHeader("X-B")))}, "second", 200},
		"an address that cannot be read": {options{five, ginlimit.WithKey(ginlimit.ByClientIP)}, "second", 200},
		"a malformed key":                {options{five, noKey(ginlimit.ErrBadRequest)}, "first", 400},
		"a missing key, said to be a fault": {options{five, noKey(fmt.Errorf("%w: %w",
			ginlimit.ErrNoKey, ginlimit.ErrBadRequest))}, "second", 200},
		"a client's own key is not known": {options{five, noKey(ginlimit.ErrUnknownClient)}, "first", 403},
		"a source that is unavailable":    {options{five, noKey(ginlimit.ErrUnavailable)}, "first", 503},
		"a client that is not known":      {options{key, fails(ginlimit.ErrUnknownClient)}, "first", 403},
		"a denial":                        {options{key, ginlimit.WithLimitFunc(limits(ginlimit.PerHour(0)))}, "first", 429},
		"a cost that cannot be": {options{five, key,
			ginlimit.WithCost(func(*gin.Context) int { return -1 })}, "first", 500},
		"a dry run of a key that is broken": {options{five, noKey(broken), ginlimit.WithDryRun()}, "first", 200},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			var seen events
			limiter := testkit.NewLocal(t, ginlimit.WithObserver(seen.observe))
			first := testkit.NewPolicy(t, limiter, "first", row.first...)
			second := testkit.NewPolicy(t, limiter, "second", ginlimit.PerHour(5), key)
			rec := testkit.Get(testkit.Serve(ginlimit.FirstOf(first, second)), "/", testkit.From("@"))
			require.Equal(t, row.code, rec.Code)
			events := seen.take(t)
			require.Len(t, events, 1)
			require.Equal(t, row.by, events[0].Name)
			require.Equal(t, row.by == "first", testkit.Must(second.Peek(t.Context(), "k")).Remaining == 5)
		})
	}
}

func limits(all ...ginlimit.Limit) func(context.Context, string) ([]ginlimit.Limit, error) {
	return func(context.Context, string) ([]ginlimit.Limit, error) { return all, nil }
}

func TestFirstOfPanics(t *testing.T) {
	t.Parallel()
	one, another := testkit.NewLocal(t), testkit.NewLocal(t)
	a, b := testkit.NewPolicy(t, one, "a", ginlimit.PerHour(1)), testkit.NewPolicy(t, another, "a", ginlimit.PerHour(1))
	for name, row := range map[string]struct {
		policies []*ginlimit.Policy
		want     []string
	}{
		"none": {nil, []string{"FirstOf without a policy"}},
		"all at once": {[]*ginlimit.Policy{a, nil, b, {}},
			[]string{"policy 2 is nil", "policy 3 is of another limiter", "policy 4 is nil"}},
		"two limiters, and nil first": {[]*ginlimit.Policy{nil, a, b}, []string{"policy 1 is nil", "another limiter"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := testkit.PanicText(t, func() { ginlimit.FirstOf(row.policies...) })
			for _, want := range row.want {
				assert.Contains(t, text, want)
			}
			assert.Equal(t, len(row.want), strings.Count(text, "ginlimit: "), text)
		})
	}
	require.NotPanics(t, func() { ginlimit.FirstOf(a, a) })
}

// modelled is a policy of a trace: clients of its header take tokens of a day, of which none comes back meanwhile.
type modelled struct {
	name   string
	limits []ginlimit.Limit
	most   int // tokens of the strictest limit
	back   bool
	used   map[string]int // by client
}

// TestAllOfEqualsAModel has requests of random clients and costs: each is allowed exactly if every policy has its
// tokens, a denied one takes nothing, and what each policy tells is exact.
func TestAllOfEqualsAModel(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		seeds := uint64(3)
		if testkit.Full() {
			seeds = 40
		}
		for seed := range seeds {
			testkit.Run(t, fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				l := make(t)
				traceAllOf(t, l, rand.New(rand.NewPCG(seed, 1)), name)
			})
		}
	}
}

func traceAllOf(t *testing.T, l *testkit.Limiter, r *rand.Rand, store string) {
	t.Helper()
	var all []*modelled
	var policies []*ginlimit.Policy
	for i := range 2 + r.IntN(3) {
		most := 10 + r.IntN(60)
		p := &modelled{name: fmt.Sprint("p", i), most: most, back: r.IntN(3) == 0, used: map[string]int{}}
		limit := ginlimit.PerDay(most)
		if store != "without Redis" { // which decides by a share
			limit.Algorithm = ginlimit.Algorithm(r.IntN(3))
		}
		p.limits = []ginlimit.Limit{limit}
		if r.IntN(3) == 0 {
			p.limits = append(p.limits, ginlimit.Per(most+r.IntN(9), 48*time.Hour))
		}
		opts := []ginlimit.PolicyOption{ginlimit.WithLimits(p.limits...), testkit.Key("X-" + p.name),
			ginlimit.WithCost(number("X-Cost-" + p.name))}
		if p.back {
			opts = append(opts, ginlimit.WithRefund(func(c *gin.Context) bool { return c.GetHeader("X-Back") != "" }))
		}
		if r.IntN(3) == 0 {
			opts = append(opts, ginlimit.WithFloor(0))
		}
		all, policies = append(all, p), append(policies, l.Must(p.name, opts...))
	}
	var results []ginlimit.Result
	router := testkit.Serve(func(c *gin.Context) { c.Next(); results = ginlimit.Results(c) }, ginlimit.AllOf(policies...))
	inTurn := store == "cluster" || store == "a client of a cluster's node" || store == "without Redis"
	for step := range 150 {
		back := r.IntN(4) == 0
		var edit []func(*http.Request)
		if back {
			edit = append(edit, testkit.With("X-Back", "1"))
		}
		var denies []string
		clients, costs := map[string]string{}, map[string]int{}
		for _, p := range all {
			client, cost := strconv.Itoa(r.IntN(2)), r.IntN(6)
			if r.IntN(40) == 0 {
				cost = p.most + 1
			}
			clients[p.name], costs[p.name] = client, cost
			edit = append(edit, testkit.With("X-"+p.name, client), testkit.With("X-Cost-"+p.name, strconv.Itoa(cost)))
			if cost > 0 && p.used[client]+cost > p.most {
				denies = append(denies, p.name)
			}
		}
		what := fmt.Sprintf("step %d: %v %v, want a denial by %v", step, clients, costs, denies)
		rec := testkit.Get(router, "/", edit...)
		require.Equal(t, map[bool]int{true: 200, false: 429}[len(denies) == 0], rec.Code, what)
		var told []string
		for _, res := range results {
			told = append(told, res.Name)
			i := slices.IndexFunc(all, func(p *modelled) bool { return p.name == res.Name })
			p := all[i]
			left := res.Limit.Rate - p.used[clients[p.name]] // of the limit that denies for longest
			if len(denies) == 0 {
				left = p.most - p.used[clients[p.name]] - costs[p.name]
			}
			require.Equal(t, len(denies) == 0, res.Allowed, what)
			require.Equal(t, left, res.Remaining, "%s: %s", what, res.Name)
			if costs[p.name] > p.most {
				require.Equal(t, ginlimit.Never, res.RetryAfter, what)
			}
		}
		switch {
		case len(denies) == 0:
			require.Len(t, told, len(all), what)
		case inTurn:
			require.Subset(t, denies, told, what)
			require.NotEmpty(t, told, what)
		default:
			require.NotEmpty(t, told, what)
			require.Subset(t, denies, told, what) // the deny cache knows one of them
		}
		for _, p := range all {
			if len(denies) == 0 && !(p.back && back) {
				p.used[clients[p.name]] += costs[p.name]
			}
		}
	}
	for i, p := range all {
		for client := range maps.Keys(p.used) {
			left := testkit.Must(policies[i].Peek(t.Context(), client))
			require.Equal(t, p.most-p.used[client], left.Remaining, "%s %s", p.name, client)
		}
	}
}
