package docs_test

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Recipes of the documents do what the text around them says. The body of each function whose name
// ends in Recipe is a block of a document.

func TestRecipesAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	blocks := map[string]bool{}
	for _, document := range []string{"README.md", "docs/guide.md", "docs/operations.md", "docs/llms.txt"} {
		for _, block := range goBlocks(t, document) {
			blocks[unindented(block)] = true
		}
	}
	code := testkit.Read(t, "tests/docs/recipes_test.go") + testkit.Read(t, "tests/docs/recipes_gateway_test.go") +
		testkit.Read(t, "tests/docs/recipes_allof_test.go") + testkit.Read(t, "tests/docs/recipes_clients_test.go") +
		testkit.Read(t, "tests/docs/llms_test.go") + testkit.Read(t, "tests/docs/recipes_money_test.go")
	code += testkit.Read(t, "tests/docs/recipes_late_test.go") + testkit.Read(t, "tests/docs/recipes_file_test.go")
	recipes := regexp.MustCompile(
		`(?ms)^func (\w+Recipe)\([^\n]*\) \{\n(.*?)^\}$`).FindAllStringSubmatch(code, -1)
	require.NotEmpty(t, recipes)
	for _, recipe := range recipes {
		assert.True(t, blocks[unindented(recipe[2])], "no block of a document is the body of %s", recipe[1])
	}
}

// unindented returns code without indentation and blank lines, as a block is not indented as a
// function is.
func unindented(code string) string {
	var lines strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			lines.WriteString(line + "\n")
		}
	}
	return lines.String()
}

func staffRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	signups := must(limiter.Policy("signup", ginlimit.PerHour(5)))
	router.POST("/signup", signups.Handler(), func(c *gin.Context) { c.Status(http.StatusCreated) })
	on := func(do func(ctx context.Context, client string) error) gin.HandlerFunc {
		return func(c *gin.Context) {
			address, err := netip.ParseAddr(c.Param("address"))
			if err != nil {
				_ = c.AbortWithError(http.StatusBadRequest, err)
			} else if err := do(c.Request.Context(), ginlimit.AddrKey(address)); err != nil {
				_ = c.AbortWithError(http.StatusServiceUnavailable, err)
			}
		}
	}
	staff := router.Group("/staff", gin.BasicAuth(gin.Accounts{"admin": "secret"}))
	staff.POST("/block/:address", on(func(ctx context.Context, client string) error {
		return signups.Block(ctx, client, time.Hour) // in every process
	}))
	staff.POST("/unblock/:address", on(signups.Reset)) // ends block and ban, fills the bucket; elsewhere within a second
}

// TestStaffBlockAnAddressInAnySpelling: the client behind it is denied until it is unblocked in
// another one.
func TestStaffBlockAnAddressInAnySpelling(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, client, block, unblock string }{
		{"IPv4", "203.0.113.7", "203.0.113.7", "::ffff:203.0.113.7"},
		{"IPv4-mapped", "203.0.113.7", "::ffff:cb00:7107", "203.0.113.7"},
		{"NAT64", "203.0.113.7", "64:ff9b::203.0.113.7", "203.0.113.7"},
		{"IPv6", "2001:db8::1", "2001:db8::1", "2001:db8:0:0:0:0:0:1"},
		{"another address of its network", "2001:db8::1", "2001:DB8::", "2001:db8::ffff"},
		{"a zone", "fe80::1", "fe80::1%eth0", "fe80::2"},
	} {
		testkit.Run(t, c.name, func(t *testing.T) {
			router := signedIn()
			staffRecipe(router, local(t))
			signup := func() int {
				return send(router, http.MethodPost, "/signup", testkit.From("["+c.client+"]:1234")).Code
			}
			staff := func(path string) int {
				return send(router, http.MethodPost, path, func(r *http.Request) { r.SetBasicAuth("admin", "secret") }).Code
			}
			require.Equal(t, http.StatusCreated, signup())
			require.Equal(t, http.StatusOK, staff("/staff/block/"+strings.ReplaceAll(c.block, "%", "%25")))
			require.Equal(t, http.StatusTooManyRequests, signup())
			require.Equal(t, http.StatusOK, staff("/staff/unblock/"+c.unblock))
			require.Equal(t, http.StatusCreated, signup())
			require.Equal(t, http.StatusBadRequest, staff("/staff/block/somebody"))
		})
	}
}

// withoutPorts removes the ports from forwarded addresses, before the limiter. docs/guide.md links it.
func withoutPorts(router *gin.Engine) {
	router.Use(func(c *gin.Context) {
		lines := c.Request.Header["X-Forwarded-For"] // or the header of TrustedPlatform
		for i, line := range lines {
			addresses := strings.Split(line, ",")
			for j, address := range addresses {
				address = strings.TrimSpace(address)
				if host, _, err := net.SplitHostPort(address); err == nil {
					address = host
				}
				addresses[j] = strings.Trim(address, "[]")
			}
			lines[i] = strings.Join(addresses, ",")
		}
	})
}

// TestClientsWhoseAddressesHavePortsHaveBuckets of their own, of which none is chosen by a forged line.
func TestClientsWhoseAddressesHavePortsHaveBuckets(t *testing.T) {
	t.Parallel()
	for _, platform := range []string{"", "X-Forwarded-For"} {
		router := gin.New()
		router.TrustedPlatform = platform
		require.NoError(t, router.SetTrustedProxies([]string{"10.0.0.0/8"}))
		withoutPorts(router)
		router.Use(local(t).Handler("all", ginlimit.PerMinute(100)))
		router.GET("/", func(c *gin.Context) { c.Status(http.StatusOK) })
		clients := map[string]int{}
		for _, line := range []string{"203.0.113.7:5678", "203.0.113.7:5679", "203.0.113.8:5678", "[2001:db8::7]:5678",
			"[2001:db8::7]", "2001:db8::8", "2001:db8:1::8", "203.0.113.7"} {
			if platform == "" {
				line = "198.51.100.1:1, " + line + ", 10.0.0.2:443"
			}
			response := send(router, http.MethodGet, "/", testkit.From("10.0.0.1:1"), testkit.With("X-Forwarded-For", line))
			require.Equal(t, http.StatusOK, response.Code, line)
			clients[response.Header().Get("X-RateLimit-Remaining")]++
		}
		require.Equal(t, map[string]int{"99": 4, "98": 2, "97": 2}, clients)
	}
}

func loginRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	succeeded := func(c *gin.Context) bool { return !c.GetBool("login failed") }
	// A token bucket would allow one more attempt every 45 seconds; a fixed window does not.
	attempts := ginlimit.Per(20, 15*time.Minute).WithAlgorithm(ginlimit.FixedWindow)
	router.POST("/login", limiter.Handler("login", attempts,
		ginlimit.WithRefund(succeeded), ginlimit.WithBan(time.Hour, 24*time.Hour)),
		func(c *gin.Context) {
			if c.PostForm("password") != "secret" { // your check
				c.Set("login failed", true)
			}
			c.Redirect(http.StatusSeeOther, "/")
		})
}

// TestLoginsThatFailAreBanned is a brute force attack: 20 failures, then a ban of an hour, of two, and so on.
func TestLoginsThatFailAreBanned(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		loginRecipe(router, local(t))
		attempt := func(password string) (retryAfter time.Duration) { // 0 if it is not denied
			rec := send(router, http.MethodPost, "/login", testkit.With("Content-Type", "application/x-www-form-urlencoded"),
				func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("password=" + password)) })
			seconds, _ := strconv.Atoi(rec.Header().Get("Retry-After"))
			require.Equal(t, rec.Code == http.StatusTooManyRequests, seconds > 0)
			return time.Duration(seconds) * time.Second
		}
		for range 100 {
			require.Zero(t, attempt("secret"))
		}
		fail := func() {
			for range 20 {
				require.Zero(t, attempt("wrong"))
			}
		}
		for _, hours := range []time.Duration{1, 2, 4, 8, 16, 24, 24} {
			fail()
			require.Equal(t, hours*time.Hour, attempt("secret"))
			time.Sleep(time.Hour / 2)
			require.Equal(t, hours*time.Hour-time.Hour/2, attempt("secret"))
			time.Sleep(hours*time.Hour - time.Hour/2)
		}
		time.Sleep(24 * time.Hour) // without a denial
		fail()
		require.Equal(t, time.Hour, attempt("secret"))
		time.Sleep(time.Hour)
		require.Zero(t, attempt("secret"))
	})
}

// TestLoginsThatFailSlowlyAreBanned: 20 failures count for the whole window, however they are spread over it.
func TestLoginsThatFailSlowlyAreBanned(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		loginRecipe(router, local(t))
		for range 20 {
			require.Empty(t, send(router, http.MethodPost, "/login").Header().Get("Retry-After"))
			time.Sleep(45*time.Second - time.Second)
		}
		require.Equal(t, "3600", send(router, http.MethodPost, "/login").Header().Get("Retry-After"))
	})
}

// TestMoreLoginsAtOnceThanTheLimitAreBanned: each begins while the ones before it are in flight, and has the right
// password.
func TestMoreLoginsAtOnceThanTheLimitAreBanned(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		loginRecipe(router, local(t))
		login := func() int {
			return send(router, http.MethodPost, "/login", testkit.With("Content-Type", "application/x-www-form-urlencoded"),
				func(r *http.Request) { r.Body = &slowBody{Reader: strings.NewReader("password=secret")} }).Code
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { assert.Equal(t, http.StatusSeeOther, login()) })
			synctest.Wait() // until the handler reads the password
		}
		require.Equal(t, http.StatusTooManyRequests, login())
		all.Wait()
		require.Equal(t, http.StatusTooManyRequests, login(), "banned")
	})
}

// slowBody is a request's body that takes a second to read.
type slowBody struct{ io.Reader }

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return b.Reader.Read(p)
}

func (b *slowBody) Close() error { return nil }

func dryRunRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	router.Use(limiter.Handler("api", ginlimit.PerMinute(60), ginlimit.WithDryRun()), func(c *gin.Context) {
		for _, r := range ginlimit.Results(c) {
			if r.Name == "api" && !r.Allowed {
				slog.Info("would be denied", "policy", r.Name, "path", c.FullPath(), "retry_after", r.RetryAfter)
			}
		}
	})
}

// TestDryRunsAreLoggedAlone: what another policy denies is not in the log of the dry run. It runs
// alone, as it has a default logger.
func TestDryRunsAreLoggedAlone(t *testing.T) {
	var lines testkit.Buffer
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	defer func() { slog.SetDefault(logger); log.SetOutput(writer); log.SetFlags(flags) }()

	limiter := local(t)
	router := signedIn()
	router.Use(limiter.Handler("stricter", ginlimit.PerMinute(1), ginlimit.WithDryRun()))
	dryRunRecipe(router, limiter)
	router.GET("/", testkit.OK)
	router.GET("/once", limiter.Handler("once", ginlimit.PerHour(1)), testkit.OK)

	for range 10 {
		testkit.Get(router, "/once")
	}
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(router, "/once").Code)
	for range 60 - 11 {
		require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
	}
	require.Empty(t, lines.String(), "denied by others alone")
	require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(router, "/once").Code)
	denied := `[^\n]*msg="would be denied" policy=api path=`
	require.Regexp(t, "^"+denied+`/ [^\n]*\n`+denied+`/once [^\n]*\n$`, lines.String())
}

// local returns a limiter in this process.
func local(t *testing.T, opts ...ginlimit.LimiterOption) *ginlimit.Limiter {
	t.Helper()
	return testkit.NewLocal(t, opts...).Limiter
}

// send is get with another method.
func send(h http.Handler, method, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	return testkit.Get(h, path, append([]func(*http.Request){func(r *http.Request) { r.Method = method }}, edit...)...)
}
