package web_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// email and its kin have a text that is not the value.
type (
	email string
	level int
	flag  bool
	uuid  [2]byte
)

func (email) String() string  { return "[redacted]" }
func (level) String() string  { return "[redacted]" }
func (flag) String() string   { return "[redacted]" }
func (u uuid) String() string { return fmt.Sprintf("%x", u[:]) }

// TestByValue: what another middleware has set.
func TestByValue(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		value any
		want  string
	}{
		"a string":         {"ada", "ada"},
		"with a separator": {"auth0|5", "auth0|5"},
		"an int":           {42, "42"},
		"a negative int":   {-1, "-1"},
		"zero":             {0, "0"},
		"an int64":         {int64(math.MinInt64), "-9223372036854775808"},
		"a uint64":         {uint64(math.MaxUint64), "18446744073709551615"},
		"a uint8":          {uint8(7), "7"},
		"a named string":   {email("ada@example.org"), "ada@example.org"},
		"a named integer":  {level(7), "7"},
		"a pointer to one": {new(level), "0"},
		"a struct":         {netip.MustParseAddr("192.0.2.1"), "192.0.2.1"},
		"an array":         {uuid{1, 2}, "0102"},
		"a pointer":        {&url.URL{Scheme: "spiffe", Host: "example.org", Path: "/ada"}, "spiffe://example.org/ada"},
	} {
		c := &gin.Context{}
		c.Set("user", row.value)
		key, err := ginlimit.ByValue("user")(c)
		require.NoError(t, err, name)
		assert.Equal(t, row.want, key, name)
	}
	for name, row := range map[string]struct {
		set   bool
		value any
		noKey bool
	}{
		"nothing":                  {false, nil, true},
		"nil":                      {true, nil, true},
		"an empty string":          {true, "", true},
		"a Stringer of nothing":    {true, &url.URL{}, true},
		"a pointer that is nil":    {true, (*url.URL)(nil), true},
		"an empty named string":    {true, email(""), true},
		"a boolean":                {true, true, false},
		"a Stringer of bytes":      {true, net.IPv4(192, 0, 2, 1), false},
		"a named boolean":          {true, flag(true), false},
		"a float, which may round": {true, 1.5, false},
		"bytes":                    {true, []byte("ada"), false},
		"a struct without String":  {true, struct{ ID int }{5}, false},
		"an error":                 {true, errors.New("no user"), false},
	} {
		c := &gin.Context{}
		if row.set {
			c.Set("user", row.value)
		}
		key, err := ginlimit.ByValue("user")(c)
		require.Error(t, err, name)
		assert.Empty(t, key, name)
		assert.Equal(t, row.noKey, errors.Is(err, ginlimit.ErrNoKey), "%s: %v", name, err)
		assert.Contains(t, err.Error(), `"user"`, name)
		assert.NotContains(t, err.Error(), "ada", name)
	}
	require.Contains(t, testkit.PanicText(t, func() { ginlimit.ByValue("") }), "ginlimit: ByValue")
}

// TestByValueOfAnEarlierMiddleware, or else the address.
func TestByValueOfAnEarlierMiddleware(t *testing.T) {
	t.Parallel()
	authenticate := func(c *gin.Context) {
		if user := c.GetHeader("Authorization"); user != "" {
			c.Set("user", user)
		}
	}
	limiter := testkit.NewLocal(t)
	r := testkit.Serve(authenticate, limiter.Handler("user", ginlimit.PerHour(1),
		ginlimit.WithKey(ginlimit.ByAny(ginlimit.ByValue("user"), ginlimit.ByClientIP))))
	strict := testkit.Serve(authenticate, limiter.Handler("strict", ginlimit.PerHour(1),
		ginlimit.WithKey(ginlimit.ByValue("user"))))
	ada, bob := testkit.With("Authorization", "ada"), testkit.With("Authorization", "bob")
	for i, row := range []struct {
		edit []func(*http.Request)
		code int
	}{
		{[]func(*http.Request){ada}, 200}, {[]func(*http.Request){ada, testkit.From("198.51.100.1:1")}, 429},
		{[]func(*http.Request){bob}, 200}, {nil, 200}, {nil, 429}, {[]func(*http.Request){bob}, 429},
	} {
		require.Equal(t, row.code, testkit.Get(r, "/", row.edit...).Code, "request %d", i)
	}
	require.Equal(t, http.StatusInternalServerError, testkit.Get(strict, "/").Code, "no user is the application's fault")
	require.Equal(t, http.StatusOK, testkit.Get(strict, "/", ada).Code)
}

// TestByRoute: as the router has it, whatever the path is.
func TestByRoute(t *testing.T) {
	t.Parallel()
	limiter := testkit.NewLocal(t)
	var keys []string
	byRoute := func(c *gin.Context) (string, error) {
		key, err := ginlimit.ByRoute(c)
		keys = append(keys, key)
		return key, err
	}
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	r.HandleMethodNotAllowed = true
	r.Use(limiter.Handler("route", ginlimit.PerHour(1), ginlimit.WithKey(ginlimit.ByAll(byRoute, ginlimit.ByClientIP))))
	r.GET("/users/:id", testkit.OK)
	r.POST("/users/:id", testkit.OK)
	r.GET("/a|b/*rest", testkit.OK)
	for i, row := range []struct {
		method, path string
		code         int
		key          string
	}{
		{"GET", "/users/1", 200, "GET|/users/:id"},
		{"GET", "/users/2?x=1", 429, "GET|/users/:id"},
		{"POST", "/users/1", 200, "POST|/users/:id"},
		{"GET", "/a%7Cb/c", 200, `GET|/a\|b/*rest`},
		{"GET", "/a%7Cb/d/e", 429, `GET|/a\|b/*rest`},
		{"GET", "/nothing", 404, "|"},
		{"GET", "/nothing/else", 429, "|"},
		{"INVENTED", "/another", 429, "|"},
		{"DELETE", "/users/1", 429, "|"},
	} {
		rec := testkit.Get(r, row.path, func(r *http.Request) { r.Method = row.method })
		require.Equal(t, row.code, rec.Code, "request %d", i)
		require.Equal(t, row.key, keys[len(keys)-1], "request %d", i)
		require.Len(t, keys, i+1)
	}
	require.Equal(t, http.StatusOK, testkit.Get(r, "/users/1", testkit.From("198.51.100.1:1")).Code, "another client")
}

// TestAddrKey: as ByClientIP has it, so that tools find the bucket of an address.
func TestAddrKey(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"203.0.113.7":           "203.0.113.7",
		"::ffff:203.0.113.7":    "203.0.113.7",
		"64:ff9b::203.0.113.7":  "203.0.113.7",
		"2001:db8:1:2:3:4:5:6":  "2001:db8:1:2::/64",
		"64:ff9b:1::1":          "64:ff9b:1::/64",
		"fe80::1%eth0":          "fe80::/64",
		"::ffff:203.0.113.7%25": "203.0.113.7",
		"::1":                   "::/64",
		"0.0.0.0":               "0.0.0.0",
	} {
		require.Equal(t, want, ginlimit.AddrKey(netip.MustParseAddr(address)), address)
	}
	const seed = 5
	random := rand.New(rand.NewPCG(seed, seed))
	for range 1000 {
		var bytes [16]byte
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		addr := netip.AddrFrom16(bytes)
		switch random.IntN(4) {
		case 0:
			addr = netip.AddrFrom4([4]byte(bytes[:4]))
		case 1: // mapped
			addr = netip.AddrFrom16(netip.AddrFrom4([4]byte(bytes[:4])).As16())
		case 2:
			addr = addr.WithZone("eth0")
		}
		want, err := clientIP(t, addr.String())
		require.NoError(t, err)
		require.Equal(t, want, ginlimit.AddrKey(addr), "seed %d, %s", seed, addr)
	}
}

// TestAddrKeyReachesTheClientOfAnAddress, and without an address nobody.
func TestAddrKeyReachesTheClientOfAnAddress(t *testing.T) {
	t.Parallel()
	limiter, log := loggedLocal(t)
	p := testkit.NewPolicy(t, limiter, "p", ginlimit.PerHour(5))
	r := testkit.Serve(p.Handler())
	testkit.Get(r, "/", testkit.From("[2001:db8::7]:1"))
	peek, err := p.Peek(t.Context(), ginlimit.AddrKey(netip.MustParseAddr("2001:db8::8")))
	require.NoError(t, err)
	require.Equal(t, 4, peek.Remaining)
	require.Empty(t, log.String(), "it is a key of a client")

	require.Empty(t, ginlimit.AddrKey(netip.Addr{}))
	_, err = p.Peek(t.Context(), ginlimit.AddrKey(netip.Addr{}))
	require.ErrorIs(t, err, ginlimit.ErrNoKey)
}

// TestKeyOfParts: different lists have different keys.
func TestKeyOfParts(t *testing.T) {
	t.Parallel()
	require.Empty(t, ginlimit.Key())
	for want, parts := range map[string][]string{
		"a": {"a"}, `a\|b`: {"a|b"}, `\\`: {`\`}, "a|b": {"a", "b"}, "|": {"", ""}, "a||": {"a", "", ""},
		`a\|b|c\\|d`: {"a|b", `c\`, "d"}, "ö{}|1": {"ö{}", "1"},
	} {
		require.Equal(t, want, ginlimit.Key(parts...))
	}
	pieces := []string{"", "a", "|", `\`, `\|`, `|\`, "a|", `a\`}
	seen := map[string][]string{}
	var add func(parts []string)
	add = func(parts []string) {
		if len(parts) > 0 {
			key := ginlimit.Key(parts...)
			require.Empty(t, seen[key], "%q has the key of another list", parts)
			seen[key] = parts
		}
		if len(parts) == 4 {
			return
		}
		for _, piece := range pieces {
			add(append(parts[:len(parts):len(parts)], piece))
		}
	}
	add(nil)
	require.Len(t, seen, 8+8*8+8*8*8+8*8*8*8)
}
