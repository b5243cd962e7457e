package web_test

import (
	"log/slog"
	"net/netip"
	"slices"
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
		{"a /64 that begins as NAT64", "64:ff9b::/64", served, false, nil},
		{"an IPv6 address", "2001:db8::1", served, true, nil},
		{"the address that begins a /64", "2001:db8::", served, true, nil},
		{"an address in capitals", "2001:DB8::1", served, true, nil},
		{"a /64 in capitals", "2001:DB8::/64", served, true, nil},
		{"a /64 with all zeros", "2001:db8:0:0::/64", served, true, nil},
		{"a /64 with an address", "2001:db8::1/64", served, true, nil},
		{"a /48", "2001:db8::/48", served, true, nil},
		{"a network of IPv4", "203.0.113.0/24", served, true, nil},
		{"an IPv4-mapped address", "::ffff:203.0.113.7", served, true, nil},
		{"an address of NAT64", "64:ff9b::203.0.113.7", served, true, nil},
		{"an address with a zone", "fe80::1%eth0", served, true, nil},
		{"an address with a port", "203.0.113.7:443", served, true, nil},
		{"a user", "ada", served, true, nil},
		{"a worker's key", "ada", notServed, false, nil},
		{"a worker's URL", "https://example.com/hook", notServed, false, nil},
		{"an address in a tool", "203.0.113.7", notServed, false, nil},
		{"an IPv6 address in a tool", "2001:db8::1", notServed, true, nil},
		{"a /48 in a tool", "2001:db8::/48", notServed, true, nil},
		{"a key function of its own", "2001:db8::1", served, false, []ginlimit.PolicyOption{testkit.ByUser()}},
		{"other networks", "2001:db8::/48", served, false,
			[]ginlimit.PolicyOption{ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
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

// TestSpoofableAddressesAreLogged wants one line if Gin trusts headers of a stranger, and none if not.
func TestSpoofableAddressesAreLogged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		key     ginlimit.KeyFunc
		trusted []string
		warned  bool
		opts    []ginlimit.PolicyOption
	}{
		{"everyone is trusted", ginlimit.ByClientIP, []string{"0.0.0.0/0", "::/0"}, true, nil},
		{"networks of others", ginlimit.ByClientIPPrefix(24, 48), []string{"0.0.0.0/0"}, true, nil},
		{"behind another key", ginlimit.ByAny(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP),
			[]string{"0.0.0.0/0"}, true, nil},
		{"by a deny list", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, true,
			[]ginlimit.PolicyOption{ginlimit.WithDenyList(netip.MustParsePrefix("198.51.100.0/24"))}},
		{"by an allow list", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, true,
			[]ginlimit.PolicyOption{ginlimit.WithAllowList(netip.MustParsePrefix("0.0.0.0/0"))}},
		{"nobody is trusted", ginlimit.ByClientIP, nil, false, nil},
		{"the proxies are", ginlimit.ByClientIP, []string{"10.0.0.0/8"}, false, nil},
		{"no address counts", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			var log testkit.Buffer
			limiter := testkit.NewLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			r := gin.New()
			require.NoError(t, r.SetTrustedProxies(c.trusted))
			r.GET("/", limiter.Handler("minute", append(c.opts, ginlimit.PerMinute(100), ginlimit.WithKey(c.key))...),
				limiter.Handler("hour", ginlimit.PerHour(100), ginlimit.WithKey(c.key)))
			testkit.Get(r, "/", testkit.With("X-User", "ada")) // by this key first
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { testkit.Get(r, "/", testkit.With("X-Forwarded-For", "203.0.113.99")) })
			}
			all.Wait()
			lines := strings.Split(log.String(), "\n")
			lines = slices.DeleteFunc(lines[:len(lines)-1], func(line string) bool { // see TestAllowListNeedsTrustedProxies
				return strings.Contains(line, "level=ERROR") && strings.Contains(line, "WithAllowList")
			})
			assert.Equal(t, c.warned, len(lines) == 1, log.String())
			assert.Equal(t, c.warned, strings.Contains(log.String(), "SetTrustedProxies"))
			assert.NotContains(t, log.String(), "203.0.113.99")
		})
	}
}

// spoofable serves handlers of a limiter by an engine that trusts these proxies, and returns its log.
func spoofable(t *testing.T, trusted []string,
	handlers func(*testkit.Limiter) []gin.HandlerFunc) (*gin.Engine, *testkit.Buffer) {
	t.Helper()
	rdb, _ := testkit.NewMiniredis(t)
	log := &testkit.Buffer{}
	limiter := testkit.NewLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(trusted))
	r.GET("/", handlers(limiter)...)
	return r, log
}

// TestSpoofableHeadersAreNamed: the first that Gin trusts from any client, whatever the engine calls it.
func TestSpoofableHeadersAreNamed(t *testing.T) {
	t.Parallel()
	everybody := []string{"0.0.0.0/0"}
	for name, row := range map[string]struct {
		trusted []string
		edit    func(*gin.Engine)
		named   string // "" if there is nothing to warn of
	}{
		"the default": {everybody, func(*gin.Engine) {}, "X-Forwarded-For"},
		"another": {everybody, func(r *gin.Engine) {
			r.RemoteIPHeaders = []string{"CF-Connecting-IP"}
		}, "CF-Connecting-IP"},
		"in odd case": {everybody, func(r *gin.Engine) {
			r.RemoteIPHeaders = []string{"x-REAL-client-iP"}
		}, "x-REAL-client-iP"},
		"the first of several": {everybody, func(r *gin.Engine) {
			r.RemoteIPHeaders = []string{"True-Client-IP", "X-Real-IP"}
		}, "True-Client-IP"},
		"IPv6 clients only": {[]string{"::/0"}, func(*gin.Engine) {}, "X-Forwarded-For"},
		"nobody is trusted": {nil, func(r *gin.Engine) { r.RemoteIPHeaders = []string{"CF-Connecting-IP"} }, ""},
		"only proxies are": {[]string{"10.0.0.0/8", "fd00::/8"}, func(r *gin.Engine) {
			r.RemoteIPHeaders = []string{"CF-Connecting-IP"}
		}, ""},
		"no header at all": {everybody, func(r *gin.Engine) { r.RemoteIPHeaders = nil }, ""},
		"not by headers":   {everybody, func(r *gin.Engine) { r.ForwardedByClientIP = false }, ""},
		"a platform":       {nil, func(r *gin.Engine) { r.TrustedPlatform = gin.PlatformCloudflare }, ""},
		"a platform's own": {nil, func(r *gin.Engine) { r.TrustedPlatform = "X-Real-Ip" }, ""},
		"a platform's, as both": {everybody, func(r *gin.Engine) {
			r.TrustedPlatform, r.RemoteIPHeaders = "X-Real-Ip", []string{"X-Real-Ip"}
		}, ""},
		"a platform, and others": {everybody, func(r *gin.Engine) {
			r.TrustedPlatform = gin.PlatformCloudflare
		}, "X-Forwarded-For"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, log := spoofable(t, row.trusted, func(l *testkit.Limiter) []gin.HandlerFunc {
				return []gin.HandlerFunc{l.Handler("100/m", ginlimit.PerMinute(100)), l.Handler("100/h", ginlimit.PerHour(100))}
			})
			row.edit(r)
			for range 3 {
				testkit.Get(r, "/", testkit.With("Cf-Connecting-Ip", "203.0.113.99"), testkit.With("X-Real-Ip", "203.0.113.99"))
			}
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
