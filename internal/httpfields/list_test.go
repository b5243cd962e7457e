package httpfields_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

type (
	statuses = []httpfields.Status
	header   = http.Header
)

// limits are limits of a policy: two with a window, one that prohibits, and requests in flight.
func limits() []httpfields.Limit {
	return []httpfields.Limit{
		{Name: "x-m", Quota: 10, Problem: httpfields.QuotaProblem("", "x-m")},
		{Name: "x-h", Quota: 100, Problem: httpfields.QuotaProblem("", "x-h")},
		{Name: "never", Detail: httpfields.ProhibitedDetail,
			Problem: httpfields.QuotaProblem(httpfields.ProhibitedDetail, "never")},
		{Name: "x-c", Quota: 4, Unit: httpfields.ConcurrentRequests, Problem: httpfields.QuotaProblem("", "x-c")},
	}
}

// window returns the window of a limit.
func window(limit int) time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, time.Minute - 1, 0}[limit]
}

func TestDraft(t *testing.T) {
	t.Parallel()
	all := limits()
	for name, row := range map[string]struct {
		list   httpfields.List
		denied bool
		want   http.Header
	}{
		"nothing": {httpfields.List{}, false, http.Header{}},
		"limits without a status": {httpfields.List{Limits: all}, false, header{"Ratelimit-Policy": {
			`"x-m";q=10;w=60, "x-h";q=100;w=3600, "never";q=0;w=60, "x-c";q=4;qu="concurrent-requests"`}}},
		"allowed": {httpfields.List{Limits: all[:2], Statuses: statuses{
			{Limit: 0, Remaining: 9, More: 6}, {Limit: 1, Remaining: 100}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-m";r=9;t=6, "x-h";r=100`}}},
		"in another order": {httpfields.List{Limits: all[:2], Statuses: statuses{{Limit: 1, Remaining: 3}, {Limit: 0}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-h";r=3, "x-m";r=0`}}},
		"only limits that deny have a t": {httpfields.List{Limits: all[:2], Statuses: []httpfields.Status{
			{Limit: 0, More: 6, Denies: true}, {Limit: 1, Remaining: 50, More: 36}}},
			true, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-m";r=0;t=6, "x-h";r=50`}}},
		"a second": {httpfields.List{Limits: all[:1], Statuses: statuses{{More: 1}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60`}, "Ratelimit": {`"x-m";r=0;t=1`}}},
		"no time that is not positive": {httpfields.List{Limits: all[:1], Statuses: statuses{{More: -1, Denies: true}}},
			true, header{"Ratelimit-Policy": {`"x-m";q=10;w=60`},
				"Ratelimit": {`"x-m";r=0`}}},
		"integers have fifteen digits": {httpfields.List{
			Limits:   []httpfields.Limit{{Name: "x", Quota: math.MaxInt64}},
			Statuses: statuses{{Remaining: 1e15, More: 1e15 - 1}}},
			false, header{"Ratelimit-Policy": {`"x";q=999999999999999;w=60`},
				"Ratelimit": {`"x";r=999999999999999;t=999999999999999`}}},
	} {
		h := http.Header{}
		httpfields.SetDraft(h, row.list.AppendPolicy(nil, window), row.list.AppendRateLimit(nil, row.denied))
		assert.Equal(t, row.want, h, name)
	}
}

// TestListsOfSeveralPolicies are Items of one List.
func TestListsOfSeveralPolicies(t *testing.T) {
	t.Parallel()
	all := limits()
	first := httpfields.List{Limits: all[:1], Statuses: statuses{{Remaining: 1}}}
	second := httpfields.List{Limits: all[3:], Statuses: statuses{{Remaining: 4}}}
	require.Equal(t, `"x-m";q=10;w=60, "x-c";q=4;qu="concurrent-requests"`,
		string(second.AppendPolicy(first.AppendPolicy(nil, window), window)))
	require.Equal(t, `"x-m";r=1, "x-c";r=4`, string(second.AppendRateLimit(first.AppendRateLimit(nil, false), false)))
}

func TestProblemOfAList(t *testing.T) {
	t.Parallel()
	all := limits()
	denies := func(limits ...int) (all statuses) {
		for _, i := range limits {
			all = append(all, httpfields.Status{Limit: i, Denies: true}, httpfields.Status{Limit: 1 - min(i, 1)})
		}
		return all
	}
	for name, row := range map[string]struct {
		list   httpfields.List
		detail string
		want   []byte
	}{
		"no limit": {httpfields.List{Limits: all}, "", httpfields.QuotaProblem("")},
		"one":      {httpfields.List{Limits: all, Statuses: denies(1)}, "", httpfields.QuotaProblem("", "x-h")},
		"twice":    {httpfields.List{Limits: all, Statuses: denies(1, 1)}, "", httpfields.QuotaProblem("", "x-h")},
		"several": {httpfields.List{Limits: all, Statuses: denies(1, 0, 3)}, "",
			httpfields.QuotaProblem("", "x-h", "x-m", "x-c")},
		"prohibited": {httpfields.List{Limits: all, Statuses: denies(2)}, httpfields.ProhibitedDetail,
			all[2].Problem},
		"another cost": {httpfields.List{Limits: all, Statuses: denies(0)}, "why",
			httpfields.QuotaProblem("why", "x-m")},
	} {
		assert.Equal(t, string(row.want), string(row.list.Problem(row.detail)), name)
	}
}

// TestProblemOfOneLimitAllocatesNothing, nor do Items in memory that is large enough.
func TestProblemOfOneLimitAllocatesNothing(t *testing.T) { // not parallel: it counts allocations
	list := httpfields.List{Limits: limits(),
		Statuses: statuses{{Limit: 1, Denies: true, More: 60}, {Limit: 0}}}
	memory := make([]byte, 0, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if len(list.Problem("")) == 0 || len(list.AppendPolicy(memory, window)) == 0 ||
			len(list.AppendRateLimit(memory, true)) == 0 {
			t.Error("nothing is written")
		}
	}))
}
