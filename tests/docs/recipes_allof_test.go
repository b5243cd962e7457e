package docs_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// must is the function of the guide.
func must(p *ginlimit.Policy, err error) *ginlimit.Policy {
	if err != nil {
		log.Fatal(err) // lists every invalid option
	}
	return p
}

// signedIn returns a router whose requests have the named values from header fields of these names.
func signedIn(names ...string) *gin.Engine {
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(func(c *gin.Context) {
		for _, name := range names {
			c.Set(name, c.GetHeader(name))
		}
	})
	return router
}

// remaining wants so many tokens of a client left.
func remaining(t *testing.T, p *ginlimit.Policy, client string, want int) {
	t.Helper()
	r := testkit.Must(p.Peek(t.Context(), client))
	require.Equal(t, want, r.Remaining, r.Name)
}

// inTwoProcesses runs a test with a limiter of each, which share their buckets.
func inTwoProcesses(t *testing.T, name string, test func(t *testing.T, limiter, other *ginlimit.Limiter)) {
	t.Helper()
	testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
		test(t, testkit.NewLimiter(t, b.Redis).Limiter, testkit.NewLimiter(t, b.Connect(t)).Limiter)
	})
}

func stackedHandlers(router *gin.Engine, limiter *ginlimit.Limiter) {
	address := must(limiter.Policy("address", ginlimit.PerMinute(10)))
	logins := must(limiter.Policy("login", ginlimit.PerMinute(1)))
	router.POST("/stacked", address.Handler(), logins.Handler())
	router.POST("/together", ginlimit.AllOf(address, logins))
}

// TestHandlersThatFollowEachOtherCharge when their turn comes: ten attempts, of which the second handler denies nine,
// take ten tokens of the first. AllOf takes one.
func TestHandlersThatFollowEachOtherCharge(t *testing.T) {
	for path, left := range map[string]int{"/stacked": 0, "/together": 9} {
		inTwoProcesses(t, path, func(t *testing.T, limiter, other *ginlimit.Limiter) {
			router := signedIn()
			stackedHandlers(router, limiter)
			for i := range 10 {
				require.Equal(t, map[bool]int{true: 200, false: 429}[i == 0], send(router, http.MethodPost, path).Code)
			}
			remaining(t, must(other.Policy("address", ginlimit.PerMinute(10))), "192.0.2.1", left)
		})
	}
}

func requestsAndTokensRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	key := ginlimit.WithKey(ginlimit.ByValue("api key"))
	prompt := func(c *gin.Context) int { // about four bytes a token; a body without a length is too long
		return int(min(uint64(c.Request.ContentLength), 1<<30) / 4)
	}
	estimate := func(c *gin.Context) int { return prompt(c) + 1000 } // and max_tokens
	used := func(c *gin.Context) int {
		if n, known := c.Get("used"); known {
			return n.(int)
		}
		return -1 // the estimate stands
	}
	requests := must(limiter.Policy("requests", ginlimit.PerMinute(60), key))
	tokens := must(limiter.Policy("tokens", ginlimit.PerMinute(90_000), key,
		ginlimit.WithCost(estimate), ginlimit.WithSettle(used)))
	router.POST("/v1/chat", ginlimit.AllOf(requests, tokens), func(c *gin.Context) {
		answer := func(yield func(string, error) bool) { _ = yield("Hello", nil) && yield("!", nil) } // your model's
		n := prompt(c)
		c.Set("used", n)
		for token, err := range answer {
			if err == nil {
				_, err = c.Writer.WriteString(token)
			}
			if err != nil { // the stream is cut
				return
			}
			n++
			c.Set("used", n)
		}
		c.Set("used", 412) // the model's usage, reported at its end
	})
}

// TestRequestsAndTokensOfAKey: whichever is used up denies, and takes nothing of the other.
func TestRequestsAndTokensOfAKey(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, other *ginlimit.Limiter) {
		router := signedIn("api key")
		requestsAndTokensRecipe(router, limiter)
		key := ginlimit.WithKey(ginlimit.ByValue("api key"))
		requests := must(other.Policy("requests", ginlimit.PerMinute(60), key))
		tokens := must(other.Policy("tokens", ginlimit.PerMinute(90_000), key))
		ask := func(key string) int {
			return send(router, http.MethodPost, "/v1/chat", testkit.With("api key", key)).Code
		}
		for range 60 {
			require.Equal(t, http.StatusOK, ask("a"))
		}
		require.Equal(t, http.StatusTooManyRequests, ask("a"))
		remaining(t, tokens, "a", 90_000-60*412)
		testkit.Must(tokens.AllowN(t.Context(), "b", 89_001))
		require.Equal(t, http.StatusTooManyRequests, ask("b"))
		remaining(t, requests, "b", 60)
	})
}

// cutWriter is a client that leaves after the first token.
type cutWriter struct {
	*httptest.ResponseRecorder
}

func (w cutWriter) WriteString(s string) (int, error) {
	if w.Body.Len() > 0 {
		return 0, net.ErrClosed
	}
	return w.ResponseRecorder.WriteString(s)
}

// TestAStreamThatIsCutIsCharged for its prompt and for what was written: a client that always leaves early has the
// limit of others.
func TestAStreamThatIsCutIsCharged(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, other *ginlimit.Limiter) {
		router := signedIn("api key")
		requestsAndTokensRecipe(router, limiter)
		served := 0
		for range 50 {
			r := httptest.NewRequest(http.MethodPost, "/v1/chat", strings.NewReader(strings.Repeat("long", 8899)))
			r.Header.Set("api key", "a")
			w := cutWriter{httptest.NewRecorder()}
			router.ServeHTTP(w, r)
			if w.Code == http.StatusOK {
				served++
			}
		}
		require.Equal(t, 10, served)
		key := ginlimit.WithKey(ginlimit.ByValue("api key"))
		tokens := must(other.Policy("tokens", ginlimit.PerMinute(90_000), key))
		remaining(t, tokens, "a", 90_000-10*8900)

		chunked := httptest.NewRequest(http.MethodPost, "/v1/chat", nil)
		chunked.Header.Set("api key", "b")
		chunked.ContentLength = -1
		denied := httptest.NewRecorder()
		router.ServeHTTP(denied, chunked)
		require.Equal(t, http.StatusTooManyRequests, denied.Code, "a prompt without a length is not free")
		remaining(t, tokens, "b", 90_000)
	})
}

func signInRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	noAddress := func(c *gin.Context) bool { return c.ClientIP() == "" } // through a unix socket, say
	noEmail := func(c *gin.Context) bool { return c.PostForm("email") == "" }
	email := func(c *gin.Context) (string, error) { return strings.ToLower(c.PostForm("email")), nil }
	failed := ginlimit.WithRefund(func(c *gin.Context) bool { return !c.GetBool("login failed") }) // only these count
	router.POST("/sign-in", ginlimit.AllOf(
		must(limiter.Policy("sign-in by address", ginlimit.PerHour(10), failed, ginlimit.WithSkip(noAddress))),
		must(limiter.Policy("sign-in by e-mail", ginlimit.PerHour(20), failed, ginlimit.WithSkip(noEmail),
			ginlimit.WithKey(email)))),
		func(c *gin.Context) { c.Set("login failed", c.PostForm("password") != "secret") }) // your check
}

// TestSignInsCountUnderWhatTheyHave: an address, an e-mail address, both, or none.
func TestSignInsCountUnderWhatTheyHave(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		signInRecipe(router, local(t))
		signIn := func(address, email, password string) int {
			form := url.Values{"email": {email}, "password": {password}}.Encode()
			return send(router, http.MethodPost, "/sign-in", testkit.From(address),
				testkit.With("Content-Type", "application/x-www-form-urlencoded"),
				func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(form)) }).Code
		}
		wrong := func(n int, address, email string) (served int) {
			for range n {
				if signIn(address, email, "wrong") == http.StatusOK {
					served++
				}
			}
			return served
		}
		for range 50 {
			require.Equal(t, http.StatusOK, signIn("192.0.2.1:1", "ann@example.com", "secret"), "what succeeds does not count")
		}
		require.Equal(t, 10, wrong(30, "192.0.2.1:1", "ann@example.com"), "of an address")
		require.Equal(t, 10, wrong(30, "192.0.2.2:1", "Ann@example.com"), "left of the account, of another address")
		require.Equal(t, 0, wrong(30, "@", "ann@example.com"), "of no address")
		require.Equal(t, 20, wrong(30, "@", "bob@example.com"))
		require.Equal(t, 10, wrong(30, "192.0.2.3:1", ""), "of no account")
		require.Equal(t, 0, wrong(30, "192.0.2.3:1", "cid@example.com"))
		require.Equal(t, 30, wrong(30, "@", ""), "of neither")
	})
}

func organisationRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	organisation := ginlimit.ByValue("organisation") // the three are set by your authentication
	team := ginlimit.ByAll(organisation, ginlimit.ByValue("team"))
	user := ginlimit.ByAll(organisation, ginlimit.ByValue("user"))
	app := router.Group("/app", ginlimit.AllOf(
		must(limiter.Policy("user", ginlimit.PerMinute(60), ginlimit.WithKey(user))),
		must(limiter.Policy("team", ginlimit.PerMinute(150), ginlimit.WithKey(team))),
		must(limiter.Policy("organisation", ginlimit.PerMinute(500), ginlimit.WithKey(organisation)))))
	app.GET("/things", func(c *gin.Context) { c.String(http.StatusOK, "things") })
}

// TestALevelDeniesWithoutTakingFromTheOthers: of 1,500 requests of users of many teams, the
// organisation's 500 are served, though users and teams are denied on the way.
func TestALevelDeniesWithoutTakingFromTheOthers(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn("organisation", "team", "user")
		organisationRecipe(router, local(t))
		ask := func(organisation, team, user string) int {
			return testkit.Get(router, "/app/things", testkit.With("organisation", organisation), testkit.With("team", team),
				testkit.With("user", user)).Code
		}
		served := func(organisation, team, user string, n int) (allowed int) {
			for range n {
				if ask(organisation, team, user) == http.StatusOK {
					allowed++
				}
			}
			return allowed
		}
		require.Equal(t, 60, served("a", "1", "Ann", 100), "the user's")
		require.Equal(t, 60, served("a", "1", "Bob", 100))
		require.Equal(t, 30, served("a", "1", "Cid", 100), "what is left of the team's 150")
		require.Equal(t, 0, served("a", "1", "Dan", 100))
		for i, want := range []int{60, 60, 30, 60, 60, 30, 50, 0} {
			team, user := strconv.Itoa(2+i/3), "user "+strconv.Itoa(i)
			require.Equal(t, want, served("a", team, user, 100), "team %s, %s", team, user)
		}
		require.Equal(t, 60, served("b", "1", "Ann", 100), "another organisation")
		require.Equal(t, http.StatusInternalServerError, ask("a", "", "Ann"))
	})
}
