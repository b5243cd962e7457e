package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The names of policies in the fields of the draft.

// checkNames wants each policy of a response to have a name of its own, and every other place to
// use one of these names.
func checkNames(t testing.TB, rec *httptest.ResponseRecorder, want ...string) {
	t.Helper()
	var names, left []string
	for _, one := range policiesOf(t, rec) {
		names = append(names, one.name)
	}
	for _, one := range limitsOf(t, rec) {
		left = append(left, one.name)
	}
	assert.Equal(t, want, names)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), "policies have one name: %q", names)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(left))), len(left), "limits have one name: %q", left)
	assert.Subset(t, names, left)
	if rec.Code == http.StatusTooManyRequests {
		assert.Subset(t, names, violated(t, rec))
	}
}

// TestLimitsOfOnePolicyHaveDifferentNames, by their final names.
func TestLimitsOfOnePolicyHaveDifferentNames(t *testing.T) {
	t.Parallel()
	perMinute, perHour := ginlimit.PerMinute(1), ginlimit.PerHour(1)
	long := strings.Repeat("n", 64)
	plan := func(limits ...ginlimit.Limit) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })
	}
	type options = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		policy  string
		options options
		want    []string
	}{
		"one limit":  {"a b", options{perMinute}, []string{"a-b"}},
		"long names": {long + "1", options{perMinute, perHour}, []string{long + "-m", long + "-h"}},
		"two algorithms of one period": {"x",
			options{perMinute, perMinute.WithAlgorithm(ginlimit.FixedWindow)}, []string{"x-m", "x-m-2"}},
		"a limit that prohibits": {"x", options{perMinute, ginlimit.PerMinute(0)}, []string{"x-m", "x-m-2"}},
		"a plan":                 {"x", options{plan(perHour, ginlimit.PerDay(9))}, []string{"x-h", "x-d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler(row.policy, append(row.options, draft)...))
			for range 2 {
				checkNames(t, testkit.Get(r, "/"), row.want...)
			}
		})
	}
}
