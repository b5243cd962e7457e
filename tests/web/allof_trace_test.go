package web_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				t.Parallel()
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
		opts := []ginlimit.PolicyOption{ginlimit.WithLimits(p.limits...), testkit.Key("X-" + p.name), ginlimit.WithCost(number("X-Cost-" + p.name))}
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
				require.Negative(t, res.RetryAfter, what)
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
