package web_test

import (
	"bytes"
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

// TestEveryClientHasTheKeyOfItsPolicy: the client k of the policy n is Key(n, k) in Redis.
func TestEveryClientHasTheKeyOfItsPolicy(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb)
	testkit.Get(testkit.Serve(l.Handler(`a|\name`, ginlimit.PerHour(3), testkit.ByUser())), "/", testkit.User(`a|b\`))
	require.Contains(t, rdb.Keys(t.Context(), "*").Val(), `ginlimit:{a\|\\name|a\|b\\}:h`)
}

func TestMissingHeaderIsNamed(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByHeader("X-Tenant", "x-client-id"))))
	rec := testkit.Get(r, "/", testkit.With("X-Tenant", "a"))
	assert.Equal(t, http.StatusBadRequest, rec.Code)
	assert.JSONEq(t,
		`{"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "The header X-Client-Id is missing."}`,
		rec.Body.String())
	assert.Zero(t, rdb.DBSize(t.Context()).Val())
	assert.Equal(t, "1",
		testkit.Remaining(testkit.Get(r, "/", testkit.With("X-Tenant", "a-b"), testkit.With("X-Client-Id", "c"))))
	assert.Equal(t, "1",
		testkit.Remaining(testkit.Get(r, "/", testkit.With("X-Tenant", "a"), testkit.With("X-Client-Id", "b-c"))),
		"the parts of a key are not just joined")
	assert.Equal(t, "0",
		testkit.Remaining(testkit.Get(r, "/", testkit.With("X-Tenant", "a"), testkit.With("X-Client-Id", "b-c"))))
}

// TestKeySecret has nothing of a client stand in Redis.
func TestKeySecret(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	secret := bytes.Repeat([]byte("s"), 16)
	limiter := testkit.NewLimiter(t, rdb, ginlimit.WithKeySecret(secret))
	clear(secret) // the limiter has its own
	same := testkit.NewLimiter(t, rdb, ginlimit.WithKeySecret(bytes.Repeat([]byte("s"), 16)))
	other := testkit.NewLimiter(t, rdb, ginlimit.WithKeySecret(bytes.Repeat([]byte("t"), 16)))
	r := testkit.Serve(limiter.Handler("login", ginlimit.PerMinute(5)))
	testkit.Get(r, "/", testkit.From("203.0.113.7:1"))
	for l, want := range map[*testkit.Limiter]int{limiter: 4, same: 4, other: 5} {
		p := testkit.Must(l.Peek(t.Context(), ginlimit.Key("login", "203.0.113.7"), ginlimit.PerMinute(5)))
		assert.Equal(t, want, p.Remaining)
	}
	keys := rdb.Keys(t.Context(), "*").Val()
	require.Len(t, keys, 1)
	assert.Regexp(t, `^ginlimit:\{#[A-Za-z0-9_-]{43}\}:m$`, keys[0])
}

func TestFaultyKeyFunctionsPanicAtOnce(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"ByClientIPPrefix(0, 64)": func() {
			ginlimit.ByClientIPPrefix(0, 64)
		}, "ByClientIPPrefix(33, 64)": func() { ginlimit.ByClientIPPrefix(33, 64) },
		"ByClientIPPrefix(32, 129)": func() {
			ginlimit.ByClientIPPrefix(32, 129)
		}, "ByClientIPPrefix(32, -1)": func() { ginlimit.ByClientIPPrefix(32, -1) },
		"ByHeader": func() { ginlimit.ByHeader() }, `ByHeader: ""`: func() {
			ginlimit.ByHeader("X-A", "")
		}, `ByHeader: "X A"`: func() { ginlimit.ByHeader("X A") },
		"ByParam": func() { ginlimit.ByParam("") }, "ByAny": func() { ginlimit.ByAny() },
		"ByAll: function 2": func() { ginlimit.ByAll(ginlimit.ByClientIP, nil) },
	} {
		assert.Contains(t, testkit.PanicText(t, f), "ginlimit: "+name)
	}
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	key := func(f ginlimit.KeyFunc, path string, edit ...func(*http.Request)) (key string, err error) {
		r := gin.New()
		_ = r.SetTrustedProxies(nil)
		r.GET("/users/:id", func(c *gin.Context) { key, err = f(c) })
		testkit.Get(r, path, append([]func(*http.Request){testkit.From("203.0.113.7:1")}, edit...)...)
		return key, err
	}
	for _, c := range []struct {
		name string
		f    ginlimit.KeyFunc
		edit func(*http.Request)
		want string
	}{
		{"a /24", ginlimit.ByClientIPPrefix(24, 56), testkit.From("203.0.113.7:1"), "203.0.113.0/24"},
		{"a /56", ginlimit.ByClientIPPrefix(24, 56), testkit.From("[2001:db8:1:2ff:1::]:1"), "2001:db8:1:200::/56"},
		{"a whole address", ginlimit.ByClientIPPrefix(32, 128), testkit.From("[2001:db8::7%eth0]:1"), "2001:db8::7"},
		{"IPv6 is its /64", ginlimit.ByClientIP, testkit.From("[2001:db8:1:2:3::%eth0]:1"), "2001:db8:1:2::/64"},
		{"IPv4-mapped", ginlimit.ByClientIP, testkit.From("[::ffff:203.0.113.7]:1"), "203.0.113.7"},
		{"IPv4 behind NAT64", ginlimit.ByClientIP, testkit.From("[64:ff9b::203.0.113.7]:1"), "203.0.113.7"},
		{"a neighbour of NAT64", ginlimit.ByClientIP, testkit.From("[64:ff9b:1::203.0.113.7]:1"), "64:ff9b:1::/64"},
		{"a header", ginlimit.ByHeader("x-user"), testkit.With("X-User", "ada"), "ada"},
		{"a header with a separator", ginlimit.ByHeader("X-User"), testkit.With("X-User", "auth0|b"), "auth0|b"},
		{"headers with a separator", ginlimit.ByHeader("X-User", "host"), testkit.With("X-User", "a|b"), `a\|b|example.com`},
		{"a parameter", ginlimit.ByParam("id"), testkit.From("203.0.113.7:1"), "42"},
		{"the first there is", ginlimit.ByAny(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP),
			testkit.With("X-User", "ada"), "0|ada"},
		{"the second", ginlimit.ByAny(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP),
			testkit.With("X-Other", "ada"), "1|203.0.113.7"},
		{"all", ginlimit.ByAll(ginlimit.ByParam("id"), ginlimit.ByClientIP),
			testkit.With("X-Other", "ada"), "42|203.0.113.7"},
	} {
		got, err := key(c.f, "/users/42", c.edit)
		require.NoError(t, err, c.name)
		assert.Equal(t, c.want, got, c.name)
	}
	forged := testkit.Must(key(ginlimit.ByAny(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP),
		"/users/42", testkit.With("X-User", "203.0.113.7")))
	assert.Equal(t, "0|203.0.113.7", forged, "nobody reaches an address' bucket by a user's name")

	broken := errors.New("broken")
	fails := func(*gin.Context) (string, error) { return "", broken }
	none := func(*gin.Context) (string, error) { return "", nil }
	for i, f := range []ginlimit.KeyFunc{ginlimit.ByHeader("X-User"), ginlimit.ByParam("name"),
		ginlimit.ByAny(none, none),
		ginlimit.ByAny(ginlimit.ByHeader("X-User"), none),
		ginlimit.ByAll(ginlimit.ByParam("id"), ginlimit.ByHeader("X-User"))} {
		got, err := key(f, "/users/42")
		assert.ErrorIs(t, err, ginlimit.ErrNoKey, i)
		assert.Empty(t, got)
	}
	for _, f := range []ginlimit.KeyFunc{ginlimit.ByAny(none, fails, ginlimit.ByClientIP),
		ginlimit.ByAll(ginlimit.ByClientIP, fails)} {
		assert.ErrorIs(t, testkit.Err(key(f, "/users/42")), broken)
	}
	malformed := func(*gin.Context) (string, error) { return "", ginlimit.ErrBadRequest }
	for _, f := range []ginlimit.KeyFunc{ginlimit.ByAny(malformed, ginlimit.ByClientIP), ginlimit.ByAny(none, malformed),
		ginlimit.ByAll(ginlimit.ByClientIP, malformed)} {
		assert.ErrorIs(t, testkit.Err(key(f, "/users/42")), ginlimit.ErrBadRequest)
	}
	missing := func(*gin.Context) (string, error) {
		return "", fmt.Errorf("%w: %w", ginlimit.ErrNoKey, ginlimit.ErrBadRequest)
	}
	assert.ErrorIs(t, testkit.Err(key(ginlimit.ByAny(missing, none), "/users/42")), ginlimit.ErrBadRequest)
	got, err := key(ginlimit.ByAll(none), "/users/42")
	assert.Empty(t, got, fmt.Sprint(err))
}

// email and its kin have a text that is not the value.
type (
	email string
	level int
	flag  bool
	uuid  [2]byte
	plain int64 // has none
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
		"a string":           {"ada", "ada"},
		"with a separator":   {"auth0|5", "auth0|5"},
		"an int":             {42, "42"},
		"a negative int":     {-1, "-1"},
		"zero":               {0, "0"},
		"an int64":           {int64(math.MinInt64), "-9223372036854775808"},
		"a uint64":           {uint64(math.MaxUint64), "18446744073709551615"},
		"a uint8":            {uint8(7), "7"},
		"a named string":     {email("ada@example.org"), "ada@example.org"},
		"a named integer":    {level(7), "7"},
		"one without a text": {plain(8), "8"},
		"a pointer to one":   {new(level), "0"},
		"a struct":           {netip.MustParseAddr("192.0.2.1"), "192.0.2.1"},
		"an array":           {uuid{1, 2}, "0102"},
		"a pointer":          {&url.URL{Scheme: "spiffe", Host: "example.org", Path: "/ada"}, "spiffe://example.org/ada"},
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

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"100/m", "5/15m", "10/s burst 20", "-1/0s", "0/d", "1/1h30m",
		"9/ms burst 9007199254740991", "/", "",
		"10/sec", "5/15minutes", "100/hours", "1/0days", "1/70000days", "1/minmin", "1/1.5hour",
		"1/99999999999999999999sec", "+5/day", "1/007min", "5/15m fixed-window", "5/s sliding-window burst 5",
		"4 in flight", "0 in flight",
		"unlimited", "prohibited"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		limit, err := ginlimit.ParseLimit(s)
		if err != nil {
			if !errors.Is(err, ginlimit.ErrInvalidArgument) || limit != (ginlimit.Limit{}) {
				t.Fatalf("%q: %v, %v", s, limit, err)
			}
			return
		}
		back, err := ginlimit.ParseLimit(limit.String())
		if err != nil || back != limit {
			t.Fatalf("%q is %+v, whose text %q is %+v, %v", s, limit, limit.String(), back, err)
		}
		r, err := testkit.NewLocal(t).Reserve(t.Context(), "k", 1, limit)
		if errors.Is(err, ginlimit.ErrInvalidArgument) { // a window may count what a token bucket does not
			r, err = testkit.NewLocal(t, testkit.WithAlgorithm(ginlimit.FixedWindow)).Reserve(t.Context(), "k", 1, limit)
		}
		if err != nil || r.Result().Allowed != (limit.Rate != 0 || limit.InFlight > 0) {
			t.Fatalf("%q: a limit that parses does not limit: %+v, %v", s, r.Result(), err)
		}
	})
}
