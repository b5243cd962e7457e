package ginlimit_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// The options of a handler.

// with sets a header of a request.
func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func remaining(rec *httptest.ResponseRecorder) string {
	return rec.Header().Get("X-RateLimit-Remaining")
}

func TestMissingHeaderIsNamed(t *testing.T) { // systems.md B: a missing header is 400 with its name
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithKey(ginlimit.ByHeader("X-Tenant", "x-client-id"))))
	rec := get(r, "/", with("X-Tenant", "a"))
	assert.Equal(t, http.StatusBadRequest, rec.Code)
	assert.JSONEq(t, `{"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "The header X-Client-Id is missing."}`,
		rec.Body.String())
	assert.Zero(t, rdb.DBSize(t.Context()).Val())
	assert.Equal(t, "1", remaining(get(r, "/", with("X-Tenant", "a-b"), with("X-Client-Id", "c"))))
	assert.Equal(t, "1", remaining(get(r, "/", with("X-Tenant", "a"), with("X-Client-Id", "b-c"))), "systems.md B: they collided")
	assert.Equal(t, "0", remaining(get(r, "/", with("X-Tenant", "a"), with("X-Client-Id", "b-c"))))
}

func TestCost(t *testing.T) { // systems.md A: batchSize tokens per request
	t.Parallel()
	rdb, _ := newMiniredis(t)
	cost := func(c *gin.Context) int { n, _ := strconv.Atoi(c.Query("n")); return n }
	r := serve(middleware(rdb, ginlimit.PerMinute(10), ginlimit.WithCost(cost)))
	for _, c := range []struct {
		n         int
		code      int
		remaining string
	}{
		{4, 200, "6"}, {0, 200, "6"}, {7, 429, "6"}, {6, 200, "0"}, {0, 200, "0"}, {1, 429, "0"}, {-1, 500, ""}, {11, 429, "0"},
	} {
		rec := get(r, "/?n="+strconv.Itoa(c.n))
		assert.Equal(t, c.code, rec.Code, c.n)
		assert.Equal(t, c.remaining, remaining(rec), c.n)
		assert.Equal(t, c.code == 429 && c.n <= 10, rec.Header().Get("Retry-After") != "", c.n)
	}
	free := func(*gin.Context) int { return 0 }
	prohibited := serve(middleware(rdb, ginlimit.PerMinute(0), ginlimit.WithCost(free)))
	assert.Equal(t, 429, get(prohibited, "/").Code)
	without := serve(middleware(nowhere(t), ginlimit.PerMinute(1), ginlimit.WithCost(free)))
	assert.Equal(t, 200, get(without, "/").Code, "free, even where Redis is lost and nothing else passes")
}

func TestRefund(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	failed := func(c *gin.Context) bool { return c.Writer.Status() >= 400 }
	r := gin.New()
	_ = r.SetTrustedProxies(nil)
	r.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }),
		middleware(rdb, ginlimit.PerHour(5), ginlimit.WithRefund(failed), ginlimit.WithLimits(ginlimit.PerDay(10)),
			ginlimit.WithCost(func(c *gin.Context) int { return 2 })))
	r.GET("/ok", func(c *gin.Context) { c.Status(200) })
	r.GET("/failed", func(c *gin.Context) { c.Status(400) })
	r.GET("/panics", func(c *gin.Context) { panic("fault") })
	r.GET("/panics-late", func(c *gin.Context) { c.String(200, "begun"); panic("fault") })
	for range 3 {
		assert.Equal(t, "3", remaining(get(r, "/failed")), "given back each time, and never above full")
		assert.Equal(t, "3", remaining(get(r, "/panics")))
	}
	assert.Zero(t, rdb.DBSize(t.Context()).Val(), "full buckets")
	assert.Equal(t, "3", remaining(get(r, "/panics-late")), "its answer had begun with 200: it counts")
	assert.Equal(t, "1", remaining(get(r, "/ok")))
	assert.Equal(t, 429, get(r, "/failed").Code)
	assert.Equal(t, 429, get(r, "/failed").Code, "what took nothing gives nothing back")
}

// TestRefundGoesWhereItWasTaken loses Redis between a decision and its refund, and the other way round.
func TestRefundGoesWhereItWasTaken(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	var log lockedBuffer
	limiter := newLimiter(t, connect(t, addr), ginlimit.WithFailure(ginlimit.FailLocal), ginlimit.WithTimeout(200*time.Millisecond),
		ginlimit.WithReplicas(2), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	limit := ginlimit.PerDay(8)
	told := func(what string) bool {
		_, err := limiter.Peek(t.Context(), "another", limit)
		require.NoError(t, err)
		last := strings.TrimSpace(log.String())
		return strings.Contains(last[strings.LastIndexByte(last, '\n')+1:], what)
	}
	freeze := func() { // and wait until nothing more is sent there
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		require.True(t, becomesTrue(t.Context().Done(), func() bool { return told("Redis is lost") }))
	}
	resume := func() { // and wait until it is there to stay
		require.NoError(t, process.Signal(syscall.SIGCONT))
		require.True(t, becomesTrue(t.Context().Done(), func() bool { return told("Redis is back") }))
	}
	everything := func(*gin.Context) bool { return true }
	during := func() {}
	r := serve(limiter.Handler(limit, ginlimit.WithName("n"), ginlimit.WithRefund(everything),
		ginlimit.WithCost(func(*gin.Context) int { return 3 })), func(*gin.Context) { during() })
	peek := func(source ginlimit.Source) (left int) {
		require.True(t, becomesTrue(t.Context().Done(), func() bool {
			r, err := limiter.Peek(t.Context(), ginlimit.Key("n", "192.0.2.1"), limit)
			left = r.Remaining
			return err == nil && r.Source == source
		}))
		return left
	}
	peek(ginlimit.FromRedis)
	get(r, "/")
	assert.Equal(t, 8, peek(ginlimit.FromRedis))

	freeze()
	peek(ginlimit.FromLocal)
	during = func() { assert.Equal(t, 1, peek(ginlimit.FromLocal)); resume(); peek(ginlimit.FromRedis) }
	get(r, "/") // taken locally, given back when Redis is there again
	assert.Equal(t, 8, peek(ginlimit.FromRedis))
	freeze()
	assert.Equal(t, 4, peek(ginlimit.FromLocal))
	resume()

	peek(ginlimit.FromRedis)
	during = func() {
		freeze()
		_, err := limiter.AllowN(t.Context(), ginlimit.Key("n", "192.0.2.1"), 4, limit)
		require.NoError(t, err)
	}
	get(r, "/") // taken in Redis, which is lost when it is given back
	assert.Equal(t, 0, peek(ginlimit.FromLocal), "not what Redis has taken")
	resume()
	assert.Equal(t, 5, peek(ginlimit.FromRedis), "nor is it asked for again")
}

func TestListsAndSkip(t *testing.T) { // systems.md B: a deny list
	t.Parallel()
	rdb, _ := newMiniredis(t)
	prefix := netip.MustParsePrefix
	r := serve(func(c *gin.Context) {
		c.Next()
		if result, ok := ginlimit.FromContext(c); ok {
			c.Writer.Header().Set("Source", result.Source.String())
		}
	}, middleware(rdb, ginlimit.PerMinute(1),
		ginlimit.WithAllowList(prefix("192.0.2.128/25"), prefix("2001:db8::/48"), prefix("::ffff:198.51.100.0/120")),
		ginlimit.WithDenyList(prefix("192.0.2.0/24"), prefix("2001:db8::/32"), prefix("64:ff9b::203.0.113.0/120")),
		ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("health") != "" })))
	for _, c := range []struct {
		address, path string
		codes         []int
	}{
		{"192.0.2.1:1", "/", []int{403, 403}},
		{"[::ffff:192.0.2.1]:1", "/", []int{403}},
		{"192.0.2.129:1", "/", []int{200, 200}}, // in both: allowed
		{"[2001:db8::1]:1", "/", []int{200, 200}},
		{"[2001:db8:1::1]:1", "/", []int{403}},
		{"198.51.100.7:1", "/", []int{200, 200}},
		{"[64:ff9b::198.51.100.7]:1", "/", []int{200, 200}},
		{"203.0.113.9:1", "/", []int{403}},
		{"203.0.112.9:1", "/", []int{200, 429}},
		{"203.0.112.9:1", "/?health=1", []int{200, 200}},
		{"192.0.2.1:1", "/?health=1", []int{403}},
		{"@", "/?health=1", []int{500}}, // who cannot be looked up is not let in
	} {
		for _, code := range c.codes {
			rec := get(r, c.path, from(c.address))
			assert.Equal(t, code, rec.Code, "%s %s", c.address, c.path)
			assert.Equal(t, code == 429 || c.address == "203.0.112.9:1" && c.path == "/", remaining(rec) != "")
			if code == 403 {
				assert.JSONEq(t, `{"type": "about:blank", "title": "Forbidden", "status": 403}`, rec.Body.String())
			}
		}
	}
	rec := get(r, "/", from("192.0.2.1:1"))
	assert.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
	require.ElementsMatch(t, []string{"ginlimit:{1/m|203.0.112.9}:m"}, rdb.Keys(t.Context(), "*").Val())
}

// TestManyNetworks looks an address up among 100,000.
func TestManyNetworks(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	var networks []netip.Prefix
	for i := range 100_000 {
		networks = append(networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	}
	r := serve(middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithDenyList(networks...)))
	assert.Equal(t, 403, get(r, "/", from("10.1.134.159:1")).Code)
	assert.Equal(t, 200, get(r, "/", from("10.1.134.160:1")).Code)
}

// TestDryRunBesideARealLimit refuses nobody by the one, and tells of it.
func TestDryRunBesideARealLimit(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l := newLimiter(t, rdb)
	for name, handlers := range map[string][]gin.HandlerFunc{
		"after":  {l.Handler(ginlimit.PerMinute(3)), l.Handler(ginlimit.PerMinute(1), ginlimit.WithDryRun(), ginlimit.WithName("tried"))},
		"before": {l.Handler(ginlimit.PerMinute(1), ginlimit.WithDryRun(), ginlimit.WithName("tried before")), l.Handler(ginlimit.PerMinute(3), ginlimit.WithName("real"))},
	} {
		var told ginlimit.Result
		r := serve(append([]gin.HandlerFunc{func(c *gin.Context) { c.Next(); told, _ = ginlimit.FromContext(c) }}, handlers...)...)
		for i, want := range []string{"2", "1", "0"} {
			rec := get(r, "/")
			assert.Equal(t, 200, rec.Code, name)
			assert.Equal(t, want, remaining(rec), name)
			assert.Equal(t, "3", rec.Header().Get("X-RateLimit-Limit"), name)
			assert.Equal(t, i == 0, told.Allowed, name)
			assert.Equal(t, 1, told.Limit.Rate, name)
		}
		assert.Equal(t, 429, get(r, "/").Code, name)
	}
	broken := errors.New("broken")
	r := serve(l.Handler(ginlimit.PerMinute(1), ginlimit.WithDryRun(), ginlimit.WithDenyList(netip.MustParsePrefix("203.0.113.0/24")),
		ginlimit.WithKey(func(*gin.Context) (string, error) { return "", broken })))
	assert.Equal(t, 200, get(r, "/").Code, "its errors are nobody's")
	assert.Equal(t, 200, get(r, "/", from("203.0.113.1:1")).Code, "and its lists")
}

// TestLimitFunc gives each client the limit of its plan, now.
func TestLimitFunc(t *testing.T) { // systems.md C: quota -1 unlimited, 0 prohibited, n per minute
	t.Parallel()
	rdb, advance := newMiniredis(t)
	var mu sync.Mutex
	quotas := map[string]int{"unlimited": -1, "prohibited": 0, "three": 3}
	quota := func(_ *gin.Context, key string) (ginlimit.Limit, error) {
		mu.Lock()
		defer mu.Unlock()
		n, ok := quotas[key]
		switch {
		case key == "zero":
			return ginlimit.Limit{}, nil
		case !ok:
			return ginlimit.Limit{}, ginlimit.ErrUnknownClient
		}
		return ginlimit.PerMinute(n), nil
	}
	r := serve(middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithName("plan"), ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(quota), ginlimit.WithLimits(ginlimit.PerDay(100))))
	ask := func(client string) *httptest.ResponseRecorder { return get(r, "/", with("X-Client-Id", client)) }
	for range 5 {
		assert.Equal(t, 200, ask("unlimited").Code)
		assert.Equal(t, 429, ask("prohibited").Code)
		assert.Equal(t, 403, ask("nobody").Code)
		assert.Equal(t, 500, ask("zero").Code)
	}
	for _, want := range []string{"2", "1", "0"} {
		assert.Equal(t, want, remaining(ask("three")))
	}
	assert.Equal(t, 429, ask("three").Code)
	advance(20 * time.Second) // 40 s are missing
	mu.Lock()
	quotas["three"] = 30 // in proportion: 20 of 30 are missing
	mu.Unlock()
	rec := ask("three")
	assert.Equal(t, 200, rec.Code)
	assert.Equal(t, "9", remaining(rec))
	for i := range 3000 { // more limits than are kept
		mu.Lock()
		quotas["three"] = 31 + i
		mu.Unlock()
		if rec := ask("three"); rec.Code != 200 && rec.Code != 429 {
			require.Fail(t, "status", rec.Code)
		}
	}
}

func TestHeaderFunc(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	set := func(h http.Header, r ginlimit.Result) { h.Set("X-Left", strconv.Itoa(r.Remaining)) }
	r := serve(middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithHeaderFunc(set)),
		middleware(rdb, ginlimit.PerMinute(9), ginlimit.WithHeaderFunc(set)), // further from exhaustion: not told
		middleware(rdb, ginlimit.PerHour(1), ginlimit.WithHeaderFunc(set), ginlimit.WithDryRun()))
	for _, want := range []string{"1", "0", "0"} {
		assert.Equal(t, want, get(r, "/").Header().Get("X-Left"))
	}
}

// TestForgeableAddressesAreWarnedOf wants one line if Gin would believe a stranger, and none if not.
func TestForgeableAddressesAreWarnedOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		key     ginlimit.KeyFunc
		trusted []string
		warned  bool
		opts    []ginlimit.Option
	}{
		{"everyone is trusted", ginlimit.ByClientIP, []string{"0.0.0.0/0", "::/0"}, true, nil},
		{"networks of others", ginlimit.ByClientIPPrefix(24, 48), []string{"0.0.0.0/0"}, true, nil},
		{"behind another key", ginlimit.ByFirst(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP), []string{"0.0.0.0/0"}, true, nil},
		{"by a list", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, true,
			[]ginlimit.Option{ginlimit.WithAllowList(netip.MustParsePrefix("0.0.0.0/0"))}},
		{"by another identity", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, true,
			[]ginlimit.Option{ginlimit.WithIdentity("address", ginlimit.ByClientIP, ginlimit.PerHour(1000))}},
		{"nobody is trusted", ginlimit.ByClientIP, nil, false, nil},
		{"the proxies are", ginlimit.ByClientIP, []string{"10.0.0.0/8"}, false, nil},
		{"no address counts", ginlimit.ByHeader("X-User"), []string{"0.0.0.0/0"}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := newMiniredis(t)
			var log lockedBuffer
			limiter := newLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			r := gin.New()
			require.NoError(t, r.SetTrustedProxies(c.trusted))
			r.GET("/", limiter.Handler(ginlimit.PerMinute(100), append(c.opts, ginlimit.WithKey(c.key))...),
				limiter.Handler(ginlimit.PerHour(100), ginlimit.WithKey(c.key)))
			get(r, "/", with("X-User", "ada")) // by this key first
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { get(r, "/", with("X-Forwarded-For", "203.0.113.99")) })
			}
			all.Wait()
			lines := strings.Count(log.String(), "\n")
			assert.Equal(t, c.warned, lines == 1, log.String())
			assert.Equal(t, c.warned, strings.Contains(log.String(), "SetTrustedProxies"))
			assert.NotContains(t, log.String(), "203.0.113.99")
		})
	}
}

// TestKeySecret has nothing of a client stand in Redis.
func TestKeySecret(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	secret := bytes.Repeat([]byte("s"), 16)
	limiter := newLimiter(t, rdb, ginlimit.WithKeySecret(secret))
	clear(secret) // the limiter has its own
	same := newLimiter(t, rdb, ginlimit.WithKeySecret(bytes.Repeat([]byte("s"), 16)))
	other := newLimiter(t, rdb, ginlimit.WithKeySecret(bytes.Repeat([]byte("t"), 16)))
	r := serve(limiter.Handler(ginlimit.PerMinute(5), ginlimit.WithName("login")))
	get(r, "/", from("203.0.113.7:1"))
	for l, want := range map[*ginlimit.Limiter]int{limiter: 4, same: 4, other: 5} {
		p, err := l.Peek(t.Context(), ginlimit.Key("login", "203.0.113.7"), ginlimit.PerMinute(5))
		require.NoError(t, err)
		assert.Equal(t, want, p.Remaining)
	}
	keys := rdb.Keys(t.Context(), "*").Val()
	require.Len(t, keys, 1)
	assert.Regexp(t, `^ginlimit:\{#[A-Za-z0-9_-]{43}\}:m$`, keys[0])
}

func TestFaultyKeyFunctionsPanicAtOnce(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"ByClientIPPrefix(0, 64)": func() { ginlimit.ByClientIPPrefix(0, 64) }, "ByClientIPPrefix(33, 64)": func() { ginlimit.ByClientIPPrefix(33, 64) },
		"ByClientIPPrefix(32, 129)": func() { ginlimit.ByClientIPPrefix(32, 129) }, "ByClientIPPrefix(32, -1)": func() { ginlimit.ByClientIPPrefix(32, -1) },
		"ByHeader": func() { ginlimit.ByHeader() }, `ByHeader: ""`: func() { ginlimit.ByHeader("X-A", "") }, `ByHeader: "X A"`: func() { ginlimit.ByHeader("X A") },
		"ByParam": func() { ginlimit.ByParam("") }, "ByFirst": func() { ginlimit.ByFirst() }, "ByAll: function 2": func() { ginlimit.ByAll(ginlimit.ByClientIP, nil) },
	} {
		assert.Contains(t, panicText(t, f), "ginlimit: "+name)
	}
}

func TestAllFaultsOfAHandlerAtOnce(t *testing.T) {
	t.Parallel()
	text := panicText(t, func() {
		newLimiter(t, nowhere(t)).Handler(ginlimit.PerMinute(1), ginlimit.WithCost(nil), ginlimit.WithRefund(nil), ginlimit.WithSkip(nil),
			ginlimit.WithLimitFunc(nil), ginlimit.WithHeaderFunc(nil), ginlimit.WithKeySecret([]byte("short")), ginlimit.WithReplicas(0),
			ginlimit.WithFailure(9), ginlimit.WithIdentity("", nil), ginlimit.WithIdentity("a", ginlimit.ByClientIP, ginlimit.Limit{}),
			ginlimit.WithIdentity("a", ginlimit.ByClientIP, ginlimit.PerHour(1)),
			ginlimit.WithAllowList(netip.Prefix{}), ginlimit.WithDenyList(netip.MustParsePrefix("::/0"), netip.MustParsePrefix("::ffff:0:0/95")))
	})
	for _, fault := range []string{"WithCost", "WithRefund", "WithSkip", "WithLimitFunc", "WithHeaderFunc", "WithKeySecret: 5 bytes",
		"WithKeySecret is an option of the limiter", "WithReplicas(0)", "WithReplicas is an option of the limiter", "WithFailure(9)",
		`WithIdentity: the name`, `WithIdentity(""): the function`, `WithIdentity("a"): ginlimit: invalid limit`, `WithIdentity("a"): there is another`,
		"WithAllowList: the prefix", "WithDenyList: the prefix ::ffff:0.0.0.0/95"} {
		assert.Contains(t, text, fault)
	}
	assert.NotContains(t, text, "::/0 ")
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	key := func(f ginlimit.KeyFunc, path string, edit ...func(*http.Request)) (key string, err error) {
		r := gin.New()
		_ = r.SetTrustedProxies(nil)
		r.GET("/users/:id", func(c *gin.Context) { key, err = f(c) })
		get(r, path, append([]func(*http.Request){from("203.0.113.7:1")}, edit...)...)
		return key, err
	}
	for _, c := range []struct {
		name string
		f    ginlimit.KeyFunc
		edit func(*http.Request)
		want string
	}{
		{"a /24", ginlimit.ByClientIPPrefix(24, 56), from("203.0.113.7:1"), "203.0.113.0/24"},
		{"a /56", ginlimit.ByClientIPPrefix(24, 56), from("[2001:db8:1:2ff:1::]:1"), "2001:db8:1:200::/56"},
		{"a whole address", ginlimit.ByClientIPPrefix(32, 128), from("[2001:db8::7%eth0]:1"), "2001:db8::7"},
		{"IPv4 behind NAT64", ginlimit.ByClientIP, from("[64:ff9b::203.0.113.7]:1"), "203.0.113.7"},
		{"a neighbour of NAT64", ginlimit.ByClientIP, from("[64:ff9b:1::203.0.113.7]:1"), "64:ff9b:1::/64"},
		{"a header", ginlimit.ByHeader("x-user"), with("X-User", "ada"), "ada"},
		{"a header with a separator", ginlimit.ByHeader("X-User"), with("X-User", "auth0|b"), "auth0|b"},
		{"headers with a separator", ginlimit.ByHeader("X-User", "host"), with("X-User", "a|b"), `a\|b|example.com`},
		{"a parameter", ginlimit.ByParam("id"), from("203.0.113.7:1"), "42"},
		{"the first there is", ginlimit.ByFirst(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP), with("X-User", "ada"), "0|ada"},
		{"the second", ginlimit.ByFirst(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP), with("X-Other", "ada"), "1|203.0.113.7"},
		{"all", ginlimit.ByAll(ginlimit.ByParam("id"), ginlimit.ByClientIP), with("X-Other", "ada"), "42|203.0.113.7"},
	} {
		got, err := key(c.f, "/users/42", c.edit)
		require.NoError(t, err, c.name)
		assert.Equal(t, c.want, got, c.name)
	}
	forged, err := key(ginlimit.ByFirst(ginlimit.ByHeader("X-User"), ginlimit.ByClientIP), "/users/42", with("X-User", "203.0.113.7"))
	require.NoError(t, err)
	assert.Equal(t, "0|203.0.113.7", forged, "nobody reaches an address' bucket by a user's name")

	broken := errors.New("broken")
	fails := func(*gin.Context) (string, error) { return "", broken }
	none := func(*gin.Context) (string, error) { return "", nil }
	for i, f := range []ginlimit.KeyFunc{ginlimit.ByHeader("X-User"), ginlimit.ByParam("name"), ginlimit.ByFirst(none, none),
		ginlimit.ByFirst(ginlimit.ByHeader("X-User"), none), ginlimit.ByAll(ginlimit.ByParam("id"), ginlimit.ByHeader("X-User"))} {
		got, err := key(f, "/users/42")
		assert.ErrorIs(t, err, ginlimit.ErrNoKey, i)
		assert.Empty(t, got)
	}
	for _, f := range []ginlimit.KeyFunc{ginlimit.ByFirst(none, fails, ginlimit.ByClientIP), ginlimit.ByAll(ginlimit.ByClientIP, fails)} {
		_, err := key(f, "/users/42")
		assert.ErrorIs(t, err, broken)
	}
	got, err := key(ginlimit.ByAll(none), "/users/42")
	assert.Empty(t, got, fmt.Sprint(err))
}
