package web_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Guarantee 8: with no proxy trusted, nobody chooses a bucket by a header.
func TestForgedHeadersChooseNoBucket(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(1)))
	testkit.Get(r, "/")
	for _, header := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "Cf-Connecting-Ip"} {
		rec := testkit.Get(r, "/", func(req *http.Request) { req.Header.Set(header, "203.0.113.9") })
		assert.Equal(t, http.StatusTooManyRequests, rec.Code, header)
	}
}

// TestALineOfItsOwnChoosesNoBucket: a proxy adds a line to what the client has sent, as HAProxy's forwardfor does.
func TestALineOfItsOwnChoosesNoBucket(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		unix    bool
		trusted []string
	}{
		"a proxy":                   {false, []string{"10.0.0.0/8"}},
		"a proxy at a unix socket":  {true, nil},
		"of which others are known": {true, []string{"10.0.0.0/8"}},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			limiter, log := loggedLocal(t)
			r := gin.New()
			require.NoError(t, r.SetTrustedProxies(row.trusted))
			r.GET("/", limiter.Handler("1/m", ginlimit.PerMinute(1),
				ginlimit.WithAllowList(netip.MustParsePrefix("198.51.100.0/24"))), testkit.OK)
			through := func(lines ...string) int {
				return testkit.Get(r, "/", testkit.From("10.0.0.1:1"), func(req *http.Request) {
					req.Header["X-Forwarded-For"] = lines
					if row.unix {
						req.RemoteAddr = "@"
						*req = *req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"}))
					}
				}).Code
			}
			require.Equal(t, http.StatusOK, through("198.51.100.1", "203.0.113.7"))
			require.Equal(t, http.StatusTooManyRequests, through("198.51.100.2", "203.0.113.7"))
			require.Equal(t, http.StatusOK, through("203.0.113.7", "203.0.113.8"))
			require.Empty(t, log.String())
		})
	}
}

// TestPortsAreLogged: Gin cannot read addresses with ports. The warning names the header, once.
func TestPortsAreLogged(t *testing.T) {
	t.Parallel()
	proxies := func(r *gin.Engine) error { return r.SetTrustedProxies([]string{"10.0.0.0/8"}) }
	platform := func(r *gin.Engine) error { r.TrustedPlatform = "x-client"; return r.SetTrustedProxies(nil) }
	for name, row := range map[string]struct {
		set           func(*gin.Engine) error
		from          string
		header, value string
		named         bool
	}{
		"IPv4":                            {proxies, "10.0.0.1:1", "X-Forwarded-For", "203.0.113.7:5678", true},
		"IPv6":                            {proxies, "10.0.0.1:1", "X-Forwarded-For", "[2001:db8::7]:5678", true},
		"IPv6 in brackets without a port": {proxies, "10.0.0.1:1", "X-Forwarded-For", "[2001:db8::7]", true},
		"before another proxy":            {proxies, "10.0.0.1:1", "X-Forwarded-For", "203.0.113.7:5678, 10.0.0.2:1", true},
		"another header":                  {proxies, "10.0.0.1:1", "X-Real-Ip", "203.0.113.7:5678", true},
		"a platform's header":             {platform, "192.0.2.1:1", "X-Client", "203.0.113.7:5678", true},
		"none":                            {proxies, "10.0.0.1:1", "X-Forwarded-For", "2001:db8::7, 10.0.0.2", false},
		"what a client has sent before":   {proxies, "10.0.0.1:1", "X-Forwarded-For", "203.0.113.9:5678, 203.0.113.7", false},
		"of a client past the proxy":      {proxies, "192.0.2.1:1", "X-Forwarded-For", "203.0.113.7:5678", false},
		"past the platform":               {platform, "192.0.2.1:1", "X-Forwarded-For", "203.0.113.7:5678", false},
		"no address":                      {proxies, "10.0.0.1:1", "X-Forwarded-For", "host:1, [x], [, :, ]:1", false},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			limiter, log := loggedLocal(t)
			r := gin.New()
			require.NoError(t, row.set(r))
			r.GET("/", limiter.Handler("minute", ginlimit.PerMinute(9)), limiter.Handler("hour", ginlimit.PerHour(9)))
			for range 3 {
				testkit.Get(r, "/", testkit.From(row.from), testkit.With(row.header, row.value))
			}
			lines := strings.Count(log.String(), "ginlimit: Gin cannot read "+row.header+", as its addresses have ports; ")
			require.Equal(t, row.named, lines == 1, log.String())
			require.NotContains(t, log.String(), "203.0.113.7")
		})
	}
}

func TestUnreadableAddressIsAnErrorNotABucket(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(100)))
	for _, address := range []string{"", "@", "unix", "300.1.1.1:1", "[::g]:1"} {
		rec := testkit.Get(r, "/", testkit.From(address))
		assert.Equal(t, http.StatusInternalServerError, rec.Code, address)
		assert.NotContains(t, rec.Body.String(), "address")
	}
	require.Zero(t, rdb.DBSize(t.Context()).Val())
}

// TestKeysOfNoClientAreLogged: a method is given a key that ByClientIP never returns, so no request counts under it.
func TestKeysOfNoClientAreLogged(t *testing.T) {
	t.Parallel()
	const served, notServed = true, false
	for _, c := range []struct {
		name, key string
		serves    bool // requests
		warned    bool
		opts      []ginlimit.PolicyOption
	}{
		{"an IPv4 address", "203.0.113.7", served, false, nil},
		{"a /64", "2001:db8::/64", served, false, nil},
		{"an IPv6 address", "2001:db8::1", served, true, nil},
		{"a /48", "2001:db8::/48", served, true, nil},
		{"a user", "ada", served, true, nil},
		{"a worker's key", "ada", notServed, false, nil},
		{"an address in a tool", "203.0.113.7", notServed, false, nil},
		{"a key function of its own", "2001:db8::1", served, false, []ginlimit.PolicyOption{testkit.ByUser()}},
		{"other networks", "2001:db8::/48", served, false,
			[]ginlimit.PolicyOption{ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))}},
	} {
		testkit.Run(t, c.name, func(t *testing.T) {
			var log testkit.Buffer
			limiter := testkit.Must(ginlimit.NewLocal(ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			defer limiter.Close()
			p := testkit.Must(limiter.Policy("login", append(c.opts, ginlimit.PerMinute(5))...))
			if c.serves {
				p.Handler()
			}
			require.NoError(t, p.Block(t.Context(), c.key, time.Hour))
			if !c.warned {
				require.Empty(t, log.String())
				return
			}
			require.Regexp(t, `level=WARN msg="ginlimit: [^"]*ByClientIP[^"]*" name=login\n$`, log.String())
			require.NotContains(t, log.String(), c.key)
		})
	}
}

// spoofable serves handlers of a limiter by an engine that trusts these proxies, and returns its log.
func spoofable(t *testing.T, trusted []string,
	handlers func(*testkit.Limiter) []gin.HandlerFunc) (*gin.Engine, *testkit.Buffer) {
	t.Helper()
	limiter, log := loggedLocal(t)
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(trusted))
	r.GET("/", handlers(limiter)...)
	return r, log
}

// TestSpoofableAddressesAreLogged in one line if Gin trusts headers of a stranger, which names the first of them that
// it trusts from any client, whatever the engine calls it.
func TestSpoofableAddressesAreLogged(t *testing.T) {
	t.Parallel()
	everybody, ipv6 := []string{"0.0.0.0/0"}, []string{"::/0"}
	byUser := ginlimit.ByHeader("X-User")
	headers := func(names ...string) func(*gin.Engine) { return func(r *gin.Engine) { r.RemoteIPHeaders = names } }
	platform := func(name string) func(*gin.Engine) { return func(r *gin.Engine) { r.TrustedPlatform = name } }
	for name, row := range map[string]struct {
		trusted []string
		key     ginlimit.KeyFunc // nil is ByClientIP
		edit    func(*gin.Engine)
		named   string // "" if there is nothing to warn of
		opts    []ginlimit.PolicyOption
	}{
		"everybody":          {trusted: everybody, named: "X-Forwarded-For"},
		"IPv6 clients":       {trusted: ipv6, named: "X-Forwarded-For"},
		"networks of others": {trusted: everybody, key: ginlimit.ByClientIPPrefix(24, 48), named: "X-Forwarded-For"},
		"behind another key": {trusted: everybody, key: ginlimit.ByAny(byUser, ginlimit.ByClientIP),
			named: "X-Forwarded-For"},
		"another header":       {trusted: everybody, edit: headers("CF-Connecting-IP"), named: "CF-Connecting-IP"},
		"in odd case":          {trusted: everybody, edit: headers("x-REAL-client-iP"), named: "x-REAL-client-iP"},
		"the first of several": {trusted: everybody, edit: headers("True-Client-IP", "X-Real-IP"), named: "True-Client-IP"},
		"by a deny list": {trusted: everybody, key: byUser, named: "X-Forwarded-For",
			opts: []ginlimit.PolicyOption{ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24"))}},
		"beside a platform": {trusted: everybody, edit: platform(gin.PlatformCloudflare), named: "X-Forwarded-For"},

		"nobody":            {edit: headers("CF-Connecting-IP")},
		"proxies":           {trusted: []string{"10.0.0.0/8", "fd00::/8"}, edit: headers("CF-Connecting-IP")},
		"no address counts": {trusted: everybody, key: byUser},
		"no header at all":  {trusted: everybody, edit: headers()},
		"not by headers":    {trusted: everybody, edit: func(r *gin.Engine) { r.ForwardedByClientIP = false }},
		"a platform":        {edit: platform("X-Real-Ip")},
		"a platform's own, as both": {trusted: everybody, edit: func(r *gin.Engine) {
			r.TrustedPlatform, r.RemoteIPHeaders = "X-Real-Ip", []string{"X-Real-Ip"}
		}},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			if row.key == nil {
				row.key = ginlimit.ByClientIP
			}
			opts := append(row.opts, ginlimit.PerMinute(100), ginlimit.WithKey(row.key))
			r, log := spoofable(t, row.trusted, func(l *testkit.Limiter) []gin.HandlerFunc {
				return []gin.HandlerFunc{l.Handler("minute", opts...),
					l.Handler("hour", ginlimit.PerHour(100), ginlimit.WithKey(row.key))}
			})
			if row.edit != nil {
				row.edit(r)
			}
			testkit.Get(r, "/", testkit.With("X-User", "ada")) // by this key first
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					testkit.Get(r, "/", testkit.With("X-Forwarded-For", "203.0.113.99"), testkit.With("X-Real-Ip", "203.0.113.99"))
				})
			}
			all.Wait()
			if row.named == "" {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), `"ginlimit: Gin trusts `+row.named+` from any client; `)
			require.NotContains(t, log.String(), "203.0.113.99")
		})
	}
}

// TestSpoofableAddressesOfASecondEngine are found, though the first engine of the limiter trusts nobody.
func TestSpoofableAddressesOfASecondEngine(t *testing.T) {
	t.Parallel()
	var limiter *testkit.Limiter
	safe, log := spoofable(t, nil, func(l *testkit.Limiter) []gin.HandlerFunc {
		limiter = l
		return []gin.HandlerFunc{l.Handler("100/m", ginlimit.PerMinute(100))}
	})
	testkit.Get(safe, "/")
	require.Empty(t, log.String())
	unsafe := gin.New() // it trusts everybody
	unsafe.GET("/", limiter.Handler("100/h", ginlimit.PerHour(100)), limiter.Handler("100/d", ginlimit.PerDay(100)))
	for range 3 {
		testkit.Get(unsafe, "/")
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
}

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
		"a network of proxies in IPv6's notation, with a prefix of IPv4's": {proxies("::ffff:10.0.0.0/8"), nil, // CVE-2026-90711
			[]func(*http.Request){testkit.From(other + ":1"), claims(listed)}, []int{200, 429, 429}, false},
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
