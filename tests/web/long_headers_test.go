package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Clients choose how long their headers are, up to the MaxHeaderBytes of the server, a megabyte by default.

// TestLongHeadersTakeNoMemory, also of requests that are denied, however many policies and keys there are. It runs
// alone, as it counts bytes.
func TestLongHeadersTakeNoMemory(t *testing.T) {
	const requests, each = 50, 64 << 10
	long := func(part string) string { return strings.Repeat(part, 900_000/len(part)) }
	key := ginlimit.ByHeader("X-Key")
	for name, row := range map[string]struct {
		header, value string
		key           ginlimit.KeyFunc
	}{
		"addresses with ports":  {"X-Forwarded-For", long("203.0.113.7:5, ") + "203.0.113.7:5", ginlimit.ByClientIP},
		"a key":                 {"X-Key", long("a"), key},
		"a key of separators":   {"X-Key", long("|"), key},
		"several headers":       {"X-Key", long("|"), ginlimit.ByHeader("X-Key", "X-Key")},
		"the first of several":  {"X-Key", long(`\`), ginlimit.ByAny(key)},
		"all of all of several": {"X-Key", long("|"), ginlimit.ByAll(ginlimit.ByAll(key, ginlimit.ByAll(key)), key)},
	} {
		limiter := testkit.NewLocal(t)
		handler := ginlimit.AllOf(
			testkit.Must(limiter.Policy("a", ginlimit.PerHour(1), ginlimit.WithKey(row.key))),
			testkit.Must(limiter.Policy("b", ginlimit.PerDay(1), ginlimit.WithKey(row.key),
				ginlimit.WithDenyList(netip.MustParsePrefix("203.0.113.0/24")))))
		r := testkit.Serve(handler)
		request := func() int { return testkit.Get(r, "/", testkit.With(row.header, row.value)).Code }
		require.Equal(t, http.StatusOK, request(), name)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range requests {
			require.Equal(t, http.StatusTooManyRequests, request(), name)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/requests, uint64(each), name)
	}
}

// asks counts how often Gin is asked for the address of a request with this context.
type asks struct {
	context.Context
	n int
}

// Value implements [context.Context]. Gin needs to know whether the request came through a unix socket.
func (a *asks) Value(key any) any {
	if key == http.LocalAddrContextKey {
		a.n++
	}
	return a.Context.Value(key)
}

// TestGinIsAskedOnce for the address of a request, as it reads all of a header: not for each list and each key of the
// policies that decide.
func TestGinIsAskedOnce(t *testing.T) {
	t.Parallel()
	list := ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))
	networks := ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))
	address := ginlimit.WithKey(ginlimit.ByClientIP)
	type opts = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		policies []opts
		asked    int
	}{
		"one policy":               {[]opts{{}}, 1},
		"its key function":         {[]opts{{address}}, 1},
		"its list":                 {[]opts{{list}}, 1},
		"its list, and its key":    {[]opts{{list, networks}}, 1},
		"several policies":         {[]opts{{}, {}, {}}, 1},
		"of different networks":    {[]opts{{}, {networks}, {address}}, 1},
		"lists of each":            {[]opts{{list}, {list, networks}, {list, address}}, 1},
		"other keys":               {[]opts{{testkit.ByUser()}}, 0},
		"a list beside other keys": {[]opts{{testkit.ByUser(), list}}, 1},
	} {
		limiter := testkit.NewLocal(t)
		var policies []*ginlimit.Policy
		for i, o := range row.policies {
			policies = append(policies, testkit.Must(limiter.Policy(string(rune('a'+i)), append(o, ginlimit.PerHour(9))...)))
		}
		r := gin.New()
		require.NoError(t, r.SetTrustedProxies([]string{"10.0.0.0/8"}))
		r.Use(ginlimit.AllOf(policies...))
		r.GET("/", testkit.OK)
		ctx := &asks{Context: t.Context()}
		request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		request.RemoteAddr = "10.0.0.1:1"
		request.Header.Set("X-User", "ada")
		rec := httptest.NewRecorder()
		r.ServeHTTP(rec, request)
		require.Equal(t, http.StatusOK, rec.Code, name)
		require.Equal(t, row.asked, ctx.n, name)
	}
}

// TestAHandlerSeesTheAddressAsItIs when it calls ByClientIP, though the request has changed since a limiter decided, or
// failed to.
func TestAHandlerSeesTheAddressAsItIs(t *testing.T) {
	t.Parallel()
	limiter, _ := loggedLocal(t) // it logs addresses that cannot be read
	list := ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))
	pass := ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.Next() })
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		return testkit.Must(limiter.Policy(name, append(opts, ginlimit.PerHour(100), pass)...))
	}
	for name, handler := range map[string]gin.HandlerFunc{
		"one policy": policy("a").Handler(),
		"its list":   policy("b", list).Handler(),
		"several": ginlimit.AllOf(policy("c"), policy("d", ginlimit.WithKey(ginlimit.ByClientIP)),
			policy("e", ginlimit.WithDryRun(), list)),
		"several with lists": ginlimit.AllOf(policy("f", list), policy("g", list)),
	} {
		for _, address := range []string{"203.0.113.7:1", "unreadable"} {
			served := false
			r := testkit.Serve(handler, func(c *gin.Context) {
				for _, moved := range []string{"203.0.113.8", "203.0.113.9"} {
					c.Request.RemoteAddr = moved + ":1"
					require.Equal(t, moved, testkit.Must(ginlimit.ByClientIP(c)), name)
				}
				served = true
			}, policy("behind "+name+" of "+address).Handler(), func(c *gin.Context) {
				require.Equal(t, "203.0.113.9", testkit.Must(ginlimit.ByClientIP(c)), name)
			})
			require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.From(address)).Code, name)
			require.True(t, served, name)
		}
	}
}
