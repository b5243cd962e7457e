package web_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAllowListNeedsTrustedProxies: while any client can spoof its address, the list has no effect,
// and each of its policies says so once. Guarantee 8.
func TestAllowListNeedsTrustedProxies(t *testing.T) {
	t.Parallel()
	const listed, other = "198.51.100.7", "203.0.113.9"
	allow := ginlimit.WithAllowList(netip.MustParsePrefix("198.51.100.0/24"))
	deny := ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24"))
	claims := func(address string) func(*http.Request) { return testkit.With("X-Forwarded-For", address) }
	proxies := func(trusted ...string) func(*gin.Engine) error {
		return func(r *gin.Engine) error { return r.SetTrustedProxies(trusted) }
	}
	unset := func(*gin.Engine) error { return nil }
	platform := func(r *gin.Engine) error {
		r.TrustedPlatform = gin.PlatformCloudflare
		return r.SetTrustedProxies(nil)
	}
	platformAlone := func(r *gin.Engine) error { r.TrustedPlatform = gin.PlatformCloudflare; return nil }
	for name, row := range map[string]struct {
		set    func(*gin.Engine) error
		opts   []ginlimit.PolicyOption
		edit   []func(*http.Request)
		codes  []int // of three requests, of which one is allowed if they are counted
		logged bool
	}{
		"Gin's default, a listed address": {unset, nil,
			[]func(*http.Request){testkit.From(listed + ":1")}, []int{200, 429, 429}, true},
		"Gin's default, a forged address": {unset, nil,
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, true},
		"Gin's default, another address": {unset, nil,
			[]func(*http.Request){testkit.From(other + ":1")}, []int{200, 429, 429}, false},
		"Gin's default, on both lists": {unset, []ginlimit.PolicyOption{deny},
			[]func(*http.Request){testkit.From(listed + ":1")}, []int{403, 403, 403}, true},
		"everybody is trusted over IPv6": {proxies("::/0"), nil,
			[]func(*http.Request){testkit.From("[2001:db8::1]:1"), claims(listed)}, []int{200, 429, 429}, true},
		"a platform alone": {platformAlone, nil,
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, true},
		"nobody is trusted, a listed address": {proxies(), nil,
			[]func(*http.Request){testkit.From(listed + ":1")}, []int{200, 200, 200}, false},
		"nobody is trusted, a forged address": {proxies(), nil,
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, false},
		"nobody is trusted, on both lists": {proxies(), []ginlimit.PolicyOption{deny},
			[]func(*http.Request){testkit.From(listed + ":1")}, []int{200, 200, 200}, false},
		"behind a proxy": {proxies("10.0.0.0/8"), nil,
			[]func(*http.Request){testkit.From("10.0.0.1:1"), claims(listed)}, []int{200, 200, 200}, false},
		"past the proxy": {proxies("10.0.0.0/8"), nil,
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, false},
		"through a platform": {platform, nil,
			[]func(*http.Request){testkit.From(other + ":1"), testkit.With("Cf-Connecting-Ip", listed)},
			[]int{200, 200, 200}, false},
		"past the platform": {platform, nil,
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, false},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			rdb, _ := testkit.NewMiniredis(t)
			limiter, log := testkit.LoggedLimiter(t, rdb, allow, ginlimit.WithKey(testkit.Everybody))
			r := gin.New()
			require.NoError(t, row.set(r))
			for _, policy := range []string{"first", "second"} {
				r.GET("/"+policy, limiter.Handler(policy, append(row.opts, ginlimit.PerHour(1))...))
			}
			for _, policy := range []string{"first", "second"} {
				for i, code := range row.codes {
					rec := testkit.Get(r, "/"+policy, row.edit...)
					require.Equal(t, code, rec.Code, "%s, request %d", policy, i)
					counted := row.codes[1] == http.StatusTooManyRequests
					require.Equal(t, counted, testkit.Remaining(rec) != "")
				}
			}
			require.Equal(t, row.logged, strings.Contains(log.String(), "WithAllowList"), log.String())
			require.NotContains(t, log.String(), listed)
			if row.logged {
				require.Equal(t, 2, strings.Count(log.String(), "level=ERROR"), log.String())
				for _, policy := range []string{"first", "second"} {
					require.Regexp(t, `level=ERROR msg="ginlimit: WithAllowList has no effect, as Gin trusts X-Forwarded-For `+
						`from any client[^"]*SetTrustedProxies[^"]*" name=`+policy, log.String())
				}
			}
		})
	}
}

// TestAllowListOfTwoEngines: one handler, behind an engine that trusts nobody and one that trusts everybody.
func TestAllowListOfTwoEngines(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter, log := testkit.LoggedLimiter(t, rdb)
	handler := limiter.Handler("p", ginlimit.PerHour(1), ginlimit.WithKey(testkit.Everybody),
		ginlimit.WithAllowList(netip.MustParsePrefix("198.51.100.0/24")))
	safe, unsafe := gin.New(), gin.New()
	require.NoError(t, safe.SetTrustedProxies(nil))
	safe.GET("/", handler)
	unsafe.GET("/", handler)
	listed, forged := testkit.From("198.51.100.7:1"), testkit.With("X-Forwarded-For", "198.51.100.7")
	for i, code := range []int{200, 429, 429} {
		require.Equal(t, http.StatusOK, testkit.Get(safe, "/", listed).Code, i)
		require.Equal(t, code, testkit.Get(unsafe, "/", forged).Code, i)
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
}

// TestDryRunSharesNoKey with the policy in force of its name: no token, slot or ban.
func TestDryRunSharesNoKey(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		force := testkit.NewPolicy(t, e.Limiter, "api", ginlimit.PerHour(2), testkit.ByUser(), ginlimit.InFlight(1),
			ginlimit.WithBan(10*time.Hour, 20*time.Hour))
		trial := testkit.Derive(t, force, ginlimit.WithDryRun())
		var found ginlimit.Result
		var inner int
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) },
			trial.Handler(), force.Handler(), func(*gin.Context) { inner++ })
		tried := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		for i := range 4 { // it is denied twice, and banned
			require.Equal(t, http.StatusOK, testkit.Get(tried, "/", testkit.User("alice")).Code)
			require.Equal(t, i < 2, found.Allowed)
		}
		require.Equal(t, ginlimit.CauseBan, found.Cause)
		require.Greater(t, found.RetryAfter, 9*time.Hour)
		for i := range 3 {
			rec := testkit.Get(router, "/", testkit.User("alice"))
			require.Equal(t, i < 2, rec.Code == http.StatusOK, rec.Body.String())
		}
		require.Equal(t, 2, inner)
		require.NoError(t, force.Reset(t.Context(), "alice"))
		require.Equal(t, ginlimit.CauseBan, testkit.Must(trial.Peek(t.Context(), "alice")).Cause)
		require.Equal(t, ginlimit.CauseBan, testkit.Must(trial.Reserve(t.Context(), "alice", 1)).Result().Cause)
	})
}
