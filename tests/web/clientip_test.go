package web_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// clientIP returns what ByClientIP makes of an address that Gin takes from a platform's header, raw.
func clientIP(t testing.TB, address string) (string, error) {
	t.Helper()
	c, engine := gin.CreateTestContext(httptest.NewRecorder())
	engine.TrustedPlatform = "Cf-Connecting-Ip"
	c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
	c.Request.RemoteAddr = "unreadable"
	c.Request.Header["Cf-Connecting-Ip"] = []string{address}
	return ginlimit.ByClientIP(c)
}

func TestByClientIP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, address, want string }{
		{"IPv4", "203.0.113.7", "203.0.113.7"},
		{"IPv4-mapped is the IPv4 address", "::ffff:203.0.113.7", "203.0.113.7"},
		{"IPv4-mapped in hex", "::ffff:cb00:7107", "203.0.113.7"},
		{"IPv6 is its /64", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"IPv6 in capitals", "2001:DB8:1:2::", "2001:db8:1:2::/64"},
		{"a zone is no part of it", "fe80::1%eth0", "fe80::/64"},
		{"loopback", "::1", "::/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, testkit.Must(clientIP(t, c.address)))
		})
	}
	for _, address := range []string{"", " ", "@", "203.0.113.7:80", "203.0.113.7, 198.51.100.1", "203.0.113", "1.2.3.4.5",
		"01.2.3.4", "::g", "localhost", "203.0.113.7\n", "{203.0.113.7}", "[::1]", "::ffff:1.2.3.4%x\x00{}\x00"} {
		t.Run("not "+address, func(t *testing.T) {
			t.Parallel()
			got, err := clientIP(t, address)
			if err == nil { // a zone may be any text; it is cut off
				assert.Equal(t, "1.2.3.4", got)
				return
			}
			assert.ErrorIs(t, err, ginlimit.ErrNoKey)
			assert.Empty(t, got)
		})
	}
}

func TestEveryClientHasABucket(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(1)))
	for _, address := range []string{"192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1",
		"[2001:db8:0:1::1]:1", "[fe80::1%eth0]:1"} {
		assert.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.From(address)).Code, address)
	}
	for _, address := range []string{"192.0.2.1:2", "[::ffff:192.0.2.1]:1", "[2001:db8::ffff]:1",
		"[2001:db8:0:1:2::]:1", "[fe80::2%eth1]:1"} {
		assert.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.From(address)).Code, address)
	}
}

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// TestPlatformAloneLeavesForwardedForTrusted: for a request without the platform's header, Gin
// looks at those of proxies.
func TestPlatformAloneLeavesForwardedForTrusted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set    func(*gin.Engine) error // beside TrustedPlatform
		chosen bool
	}{
		"TrustedPlatform alone":       {func(*gin.Engine) error { return nil }, true},
		"with SetTrustedProxies(nil)": {func(r *gin.Engine) error { return r.SetTrustedProxies(nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			r := gin.New()
			r.TrustedPlatform = gin.PlatformCloudflare
			require.NoError(t, c.set(r))
			r.GET("/", limiter.Handler("1/m", ginlimit.PerMinute(1)), testkit.OK)
			through := func(client string) int { return testkit.Get(r, "/", testkit.With("Cf-Connecting-Ip", client)).Code }
			past := func(claimed string) int { return testkit.Get(r, "/", testkit.With("X-Forwarded-For", claimed)).Code }
			require.Equal(t, http.StatusOK, through("203.0.113.7"))
			require.Equal(t, http.StatusOK, through("203.0.113.8"))
			require.Equal(t, http.StatusTooManyRequests, through("203.0.113.7"))
			require.Equal(t, http.StatusOK, past("203.0.113.9"))
			require.Equal(t, c.chosen, past("203.0.113.10") == http.StatusOK)
		})
	}
}
