package docs_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

const goldenFile = "tests/docs/testdata/promises.golden"

var update = flag.Bool("update", false, "write the golden file anew")

// TestPromisesOfVersions compares header fields, bodies, JSON, keys and values with testdata/promises.golden. What
// stands there is promised by docs/SECURITY.md, and read by the processes of another version: a change of a line
// needs a major version, or two versions that read both.
func TestPromisesOfVersions(t *testing.T) {
	testkit.InBubble(t, promisesOfVersions)
}

func promisesOfVersions(t *testing.T, b *testkit.Bubble) {
	time.Sleep(12 * time.Hour)
	b.Mini.SetTime(time.Now())
	limiter, down := testkit.NewOperated(t, b.Redis), testkit.NewLimiter(t, testkit.Unreachable(t))
	var golden strings.Builder
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		return testkit.Must(limiter.Limiter.Policy(name, opts...))
	}
	minute, ctx := ginlimit.PerMinute(2), context.Background()
	policies := []*ginlimit.Policy{
		policy("bucket", minute, ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft)),
		policy("fixed", minute.WithAlgorithm(ginlimit.FixedWindow)),
		policy("sliding", minute.WithAlgorithm(ginlimit.SlidingWindow)),
		policy("ban", ginlimit.PerSecond(2), ginlimit.WithBan(time.Minute, time.Hour)),
		policy("two", ginlimit.PerSecond(2), ginlimit.PerHour(7).WithBurst(3), ginlimit.WithHeaders(ginlimit.RateLimitDraft)),
		policy("spaces and {braces}", ginlimit.Per(3, 90*time.Second)),
		policy("tenants", ginlimit.PerMinute(4), ginlimit.WithShares(func(*gin.Context) (string, int) { return "acme", 2 })),
		policy("never", ginlimit.Prohibited()),
		policy("calendar", ginlimit.PerCalendar(2, ginlimit.CalendarMonth(time.UTC, 1)),
			ginlimit.WithHeaders(ginlimit.RateLimitDraft)),
		policy("leased", ginlimit.PerSecond(2), ginlimit.WithLease(time.Second)),
		policy("dry run", minute, ginlimit.WithDryRun()),
	}
	for _, p := range policies {
		router := testkit.Serve(p.Handler())
		for range 3 {
			answer := testkit.Get(router, "/")
			fmt.Fprintln(&golden, answer.Code, answer.Header(), answer.Body)
		}
	}
	slots := policy("slots", ginlimit.InFlight(2), ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft))
	for range 2 {
		require.True(t, testkit.Keep(t, testkit.Must(slots.Reserve(ctx, "192.0.2.1", 1))).OK())
	}
	errors := []*ginlimit.Policy{
		slots,
		policy("header", minute, ginlimit.WithKey(ginlimit.ByHeader("X-API-Key"))),
		policy("value", minute, ginlimit.WithKey(ginlimit.ByValue("user"))),
		policy("unknown", ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return nil, ginlimit.ErrUnknownClient
		})),
		policy("list", minute, ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))),
		testkit.Must(down.Limiter.Policy("closed", minute, ginlimit.WithFailureMode(ginlimit.FailClosed))),
		testkit.Must(down.Limiter.Policy("local", minute, ginlimit.WithFailureMode(ginlimit.FailLocal))),
		testkit.Must(down.Limiter.Policy("open", minute, ginlimit.WithFailureMode(ginlimit.FailOpen))),
	}
	for _, p := range errors {
		answer := testkit.Get(testkit.Serve(p.Handler()), "/")
		fmt.Fprintln(&golden, answer.Code, answer.Header(), answer.Body)
	}
	reserved := testkit.Must(policy("reserve", ginlimit.PerMinute(5), ginlimit.InFlight(1)).Reserve(ctx, "client", 3))
	require.NoError(t, reserved.Settle(ctx, 1))
	reserved.Release()
	require.NoError(t, policies[0].Block(ctx, "blocked", time.Hour))
	require.NoError(t, limiter.Override(ctx, ginlimit.Override{Policy: "bucket", Client: "vip", Note: "why",
		Limits: []ginlimit.Limit{ginlimit.PerHour(9)}, Until: time.Now().Add(time.Hour)}))
	plans := testkit.Must(limiter.NewPlans("plans", time.Minute, func(context.Context, string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerDay(7)}, nil
	}))
	testkit.Must(plans.Limits(ctx, "client"))
	for _, client := range []string{"blocked", "new"} {
		result := testkit.Must(policies[0].Allow(ctx, client))
		text := testkit.Must(json.Marshal(result))
		fmt.Fprintln(&golden, string(text))
	}
	synctest.Wait()
	for _, key := range b.Mini.Keys() {
		fmt.Fprintln(&golden, b.Mini.TTL(key), key)
	}
	golden.WriteString(b.Mini.Dump())
	fmt.Fprintln(&golden, b.Mini.HGet("ginlimit:{overrides}", "bucket|vip"))
	text := golden.String()
	for _, chance := range []string{ // what is random, or for how long something was on its way
		`(:back\n.*) \d+"`, `\b(P)[A-Z2-7]{13}\b`, `(overrides}\n   : )".*"`,
	} {
		text = regexp.MustCompile(chance).ReplaceAllString(text, "$1…")
	}
	if *update {
		require.NoError(t, os.WriteFile(goldenFile, []byte(text), 0o600))
	}
	assert.Equal(t, testkit.Read(t, goldenFile), text)
}
