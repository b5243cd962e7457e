package web_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// namesOf returns the names of the Items of a field.
func namesOf(h http.Header, field string) (names []string) {
	for _, found := range regexp.MustCompile(`"([^"]*)";[qr]=`).FindAllStringSubmatch(h.Get(field), -1) {
		names = append(names, found[1])
	}
	return names
}

// TestNamesOfAResponseDiffer, whichever policies and handlers it is of.
func TestNamesOfAResponseDiffer(t *testing.T) {
	t.Parallel()
	minute, hour := ginlimit.PerMinute(100), ginlimit.PerHour(1000)
	type list = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		names   []string
		options []list
		want    []string
	}{
		"nothing in common":  {[]string{"x", "y"}, []list{{minute, hour}, {minute}}, []string{"x-m", "x-h", "y"}},
		"a common beginning": {[]string{"api", "api-login"}, []list{{minute}, {minute}}, []string{"api", "api-login"}},
		"a policy and a limit": {[]string{"x", "x-m"}, []list{{minute, hour}, {minute}},
			[]string{"x-m", "x-h", "x-m-2"}},
		"the other way": {[]string{"x-m", "x"}, []list{{minute}, {minute, hour}},
			[]string{"x-m", "x-m-2", "x-h"}},
		"a byte that is no name's": {[]string{"a b", "a-b", "a_b", "a\tb"}, []list{{minute}, {minute}, {minute}, {minute}},
			[]string{"a-b", "a-b-2", "a_b", "a-b-3"}},
		"a name that has a number": {[]string{"a b", "a-b-2", "a-b"}, []list{{minute}, {minute}, {minute}},
			[]string{"a-b", "a-b-2", "a-b-3"}},
		"slots": {[]string{"x", "x-c"}, []list{{minute, ginlimit.InFlight(9)}, {minute}},
			[]string{"x", "x-c", "x-c-2"}},
		"two of several limits": {[]string{"a b", "a-b"}, []list{{minute, hour}, {minute, hour}},
			[]string{"a-b-m", "a-b-h", "a-b-m-2", "a-b-h-2"}},
		"a number of its own limit": {[]string{"x", "x-m"},
			[]list{{minute, hour}, {minute, ginlimit.PerMinute(9).WithAlgorithm(ginlimit.FixedWindow)}},
			[]string{"x-m", "x-h", "x-m-m", "x-m-m-2"}},
	} {
		limiter := testkit.NewLocal(t, ginlimit.WithHeaders(ginlimit.RateLimitDraft))
		var policies []*ginlimit.Policy
		var handlers []gin.HandlerFunc
		for i, name := range row.names {
			policies = append(policies, testkit.NewPolicy(t, limiter, name, row.options[i]...))
			handlers = append(handlers, policies[i].Handler())
		}
		for kind, handler := range map[string][]gin.HandlerFunc{"AllOf": {ginlimit.AllOf(policies...)}, "stacked": handlers} {
			h := testkit.Get(testkit.Serve(handler...), "/").Header()
			assert.Equal(t, row.want, namesOf(h, "RateLimit"), "%s, %s", name, kind)
			assert.Equal(t, row.want, namesOf(h, "RateLimit-Policy"), "%s, %s", name, kind)
		}
	}
}

// TestAViolatedLimitHasTheNameOfTheFields, on every response: also if a policy before is skipped, has other limits for
// a time, or sets no fields.
func TestAViolatedLimitHasTheNameOfTheFields(t *testing.T) {
	t.Parallel()
	limiter := testkit.NewLocal(t)
	skip := ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("skip") != "" })
	draft := ginlimit.WithHeaders(ginlimit.RateLimitDraft)
	first := testkit.NewPolicy(t, limiter, "x", ginlimit.PerMinute(100), ginlimit.PerHour(1000), skip)
	second := testkit.NewPolicy(t, limiter, "x-m", ginlimit.PerHour(1), draft)
	for kind, handlers := range map[string][]gin.HandlerFunc{
		"AllOf": {ginlimit.AllOf(first, second)}, "stacked": {first.Handler(), second.Handler()},
	} {
		r := testkit.Serve(handlers...)
		check := func(path string, wantStatus int) {
			rec := testkit.Get(r, path)
			assert.Equal(t, wantStatus, rec.Code, "%s, %s", kind, path)
			assert.Equal(t, []string{"x-m-2"}, namesOf(rec.Header(), "RateLimit"), "%s, %s", kind, path)
			if rec.Code == http.StatusOK {
				return
			}
			var body struct {
				Violated []string `json:"violated-policies"`
			}
			require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &body))
			assert.Equal(t, []string{"x-m-2"}, body.Violated, "%s, %s", kind, path)
		}
		for range 2 {
			require.NoError(t, second.Reset(t.Context(), "192.0.2.1"))
			check("/", http.StatusOK)
			check("/", http.StatusTooManyRequests)
			check("/?skip=1", http.StatusTooManyRequests)
			require.NoError(t, second.Reset(t.Context(), "192.0.2.1"))
			check("/?skip=1", http.StatusOK)
			require.NoError(t, limiter.Override(context.Background(), ginlimit.Override{
				Policy: "x", Limits: []ginlimit.Limit{ginlimit.PerDay(100)}, Until: time.Now().Add(time.Hour),
			}))
		}
		require.NoError(t, limiter.Override(context.Background(), ginlimit.Override{Policy: "x"}))
	}
}
