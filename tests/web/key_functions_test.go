package web_test

import (
	"errors"
	"fmt"
	"math"
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

// TestAddrKeyReachesTheClientOfAnAddress, and without an address nobody.
func TestAddrKeyReachesTheClientOfAnAddress(t *testing.T) {
	t.Parallel()
	limiter, log := loggedLocal(t)
	p := testkit.NewPolicy(t, limiter, "p", ginlimit.PerHour(5))
	r := testkit.Serve(p.Handler())
	testkit.Get(r, "/", testkit.From("[2001:db8::7]:1"))
	peek := testkit.Must(p.Peek(t.Context(), ginlimit.AddrKey(netip.MustParseAddr("2001:db8::8"))))
	require.Equal(t, 4, peek.Remaining)
	require.Empty(t, log.String(), "it is a key of a client")

	require.Empty(t, ginlimit.AddrKey(netip.Addr{}))
	require.ErrorIs(t, testkit.Err(p.Peek(t.Context(), ginlimit.AddrKey(netip.Addr{}))), ginlimit.ErrNoKey)
}
