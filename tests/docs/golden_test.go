package docs_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
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
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.SetTime(time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC))
	mini.ClockTTL(true)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, mini.Addr()))
	var golden strings.Builder
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		p := testkit.Must(limiter.Limiter.Policy(name, opts...))
		return p
	}
	policies := []*ginlimit.Policy{
		policy("bucket", ginlimit.PerMinute(2), ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft)),
		policy("fixed", ginlimit.PerMinute(2).WithAlgorithm(ginlimit.FixedWindow)),
		policy("sliding", ginlimit.PerMinute(2).WithAlgorithm(ginlimit.SlidingWindow)),
		policy("ban", ginlimit.PerSecond(2), ginlimit.WithBan(time.Minute, time.Hour)),
		policy("two", ginlimit.PerSecond(2), ginlimit.PerHour(7).WithBurst(3), ginlimit.WithHeaders(ginlimit.RateLimitDraft)),
		policy("spaces and {braces}", ginlimit.Per(3, 90*time.Second)),
		policy("tenants", ginlimit.PerMinute(4), ginlimit.WithShares(func(*gin.Context) (string, int) { return "acme", 2 })),
		policy("never", ginlimit.Prohibited()),
	}
	for _, p := range policies {
		router := testkit.Serve(p.Handler())
		for range 3 {
			answer := testkit.Get(router, "/")
			fmt.Fprintln(&golden, answer.Code, answer.Header(), answer.Body)
		}
	}
	ctx := context.Background()
	reserved := testkit.Must(policy("reserve", ginlimit.PerMinute(5), ginlimit.InFlight(1)).Reserve(ctx, "client", 3))
	require.NoError(t, reserved.Settle(ctx, 1))
	reserved.Release()
	require.NoError(t, policies[0].Block(ctx, "blocked", time.Hour))
	for _, client := range []string{"blocked", "new"} {
		result := testkit.Must(policies[0].Allow(ctx, client))
		text := testkit.Must(json.Marshal(result))
		fmt.Fprintln(&golden, string(text))
	}
	limiter.Close()
	for _, key := range mini.Keys() {
		fmt.Fprintln(&golden, mini.TTL(key), key)
	}
	// The last number is for how many milliseconds the charge was on its way.
	onItsWay := regexp.MustCompile(`(:back\n.*) \d+"`)
	fmt.Fprint(&golden, onItsWay.ReplaceAllString(mini.Dump(), "$1 …"))
	if *update {
		require.NoError(t, os.WriteFile(goldenFile, []byte(golden.String()), 0o600))
	}
	assert.Equal(t, testkit.Read(t, goldenFile), golden.String())
}
