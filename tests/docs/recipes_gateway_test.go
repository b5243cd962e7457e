package docs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// tokenPlan limits users by the plan in their token. docs/guide.md links it.
func tokenPlan(router *gin.Engine, limiter *ginlimit.Limiter) {
	type planKey struct{}
	router.Use(func(c *gin.Context) { // after your middleware, which has checked the token and set "user" and "plan"
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), planKey{}, c.GetString("plan")))
	})
	plans := map[string][]ginlimit.Limit{"gold": {ginlimit.PerMinute(600)}, "basic": {ginlimit.PerMinute(60)}}
	router.Use(limiter.Handler("plan", ginlimit.WithKey(ginlimit.ByValue("user")),
		ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
			plan, _ := ctx.Value(planKey{}).(string)
			if limits, ok := plans[plan]; ok {
				return limits, nil
			}
			return nil, ginlimit.ErrUnknownClient // answered 403
		})))
}

// TestPlansOfTokensTakeEffect: a user is limited by the plan in the token, at once after a change.
func TestPlansOfTokensTakeEffect(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := gin.New()
		router.Use(func(c *gin.Context) {
			user, plan, ok := strings.Cut(strings.TrimPrefix(c.GetHeader("Authorization"), "Bearer "), ".")
			if !ok {
				c.AbortWithStatus(http.StatusUnauthorized)
			}
			c.Set("user", user)
			c.Set("plan", plan)
		})
		tokenPlan(router, local(t))
		router.GET("/v1/things", testkit.OK)
		ask := func(token string) *httptest.ResponseRecorder {
			return testkit.Get(router, "/v1/things", testkit.With("Authorization", "Bearer "+token))
		}
		for left := 59; left >= 0; left-- {
			require.Equal(t, strconv.Itoa(left), ask("Ann.basic").Header().Get("X-RateLimit-Remaining"))
		}
		require.Equal(t, http.StatusTooManyRequests, ask("Ann.basic").Code)
		require.Equal(t, http.StatusOK, ask("Bob.basic").Code)
		time.Sleep(30 * time.Second)
		require.Equal(t, "29", ask("Ann.basic").Header().Get("X-RateLimit-Remaining"))
		require.Equal(t, "289", ask("Ann.gold").Header().Get("X-RateLimit-Remaining"), "in proportion")
		require.Equal(t, http.StatusForbidden, ask("Ann.platinum").Code)
		require.Equal(t, http.StatusUnauthorized, ask("Ann").Code)
	})
}

func messagesRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	messages := must(limiter.Policy("messages", ginlimit.PerSecond(5).WithBurst(20)))
	sockets := limiter.Handler("sockets", ginlimit.PerMinute(30), ginlimit.InFlight(5)) // open at once
	router.POST("/chat", sockets, func(c *gin.Context) {
		client, err := ginlimit.ByClientIP(c)
		if err != nil {
			_ = c.AbortWithError(http.StatusBadRequest, err)
			return
		}
		socket := bufio.NewScanner(c.Request.Body) // your WebSocket library's connection
		for socket.Scan() {
			if r, err := messages.Allow(c.Request.Context(), client); err != nil || !r.Allowed {
				fmt.Fprintln(c.Writer, "slow down:", r.RetryAfter) // or close with status 1008
				continue
			}
			fmt.Fprintln(c.Writer, "received:", socket.Text())
		}
	})
}

// TestMessagesOfASocketAreCounted: after a burst, as many as the rate allows pass, whatever the
// number of sockets.
func TestMessagesOfASocketAreCounted(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		messagesRecipe(router, local(t))
		received := func(address string, messages int) int {
			rec := send(router, http.MethodPost, "/chat", testkit.From(address), func(r *http.Request) {
				r.Body = io.NopCloser(strings.NewReader(strings.Repeat("hello\n", messages)))
			})
			require.Equal(t, http.StatusOK, rec.Code)
			n := strings.Count(rec.Body.String(), "received: hello\n")
			require.Equal(t, messages-n, strings.Count(rec.Body.String(), "slow down: 200ms\n"))
			return n
		}
		require.Equal(t, 20, received("192.0.2.1:1", 30))
		require.Equal(t, 0, received("192.0.2.1:2", 1))
		require.Equal(t, 3, received("192.0.2.2:1", 3))
		time.Sleep(time.Second)
		require.Equal(t, 5, received("192.0.2.1:3", 30))
	})
}

func proxyRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	upstream, err := url.Parse(os.Getenv("UPSTREAM")) // such as http://10.0.0.5:9000
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.ModifyResponse = func(response *http.Response) error {
		for name := range response.Header { // in the spelling of Go: "X-Ratelimit-Limit"
			if strings.HasPrefix(name, "X-Ratelimit-") || strings.HasPrefix(name, "Ratelimit") {
				response.Header.Del(name)
			}
		}
		return nil
	}
	router.Any("/proxy/*path", limiter.Handler("proxy", ginlimit.PerMinute(60)), gin.WrapH(proxy))
}

// TestAGatewayAnswersWithOneSetOfFields: its own, or with NoHeaders those of its upstream. A proxy
// that changes nothing answers with both.
func TestAGatewayAnswersWithOneSetOfFields(t *testing.T) {
	fields := http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"4999"},
		"X-Ratelimit-Remaining-Tokens": {"7"}, "Ratelimit": {`"upstream";r=4999`}, "Retry-After": {"3"}}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), fields)
	}))
	defer upstream.Close()
	t.Setenv("UPSTREAM", upstream.URL)
	router, limiter := gin.New(), local(t)
	require.NoError(t, router.SetTrustedProxies(nil))
	proxyRecipe(router, limiter)
	target := testkit.Must(url.Parse(upstream.URL))
	unchanged := gin.WrapH(httputil.NewSingleHostReverseProxy(target))
	router.GET("/both", limiter.Handler("both", ginlimit.PerMinute(60)), unchanged)
	router.GET("/upstream", limiter.Handler("upstream", ginlimit.PerMinute(1),
		ginlimit.WithHeaders(ginlimit.NoHeaders)), unchanged)
	gateway := httptest.NewServer(router)
	defer gateway.Close()
	get := func(path string) http.Header {
		response := testkit.Must(http.Get(gateway.URL + path))
		require.NoError(t, response.Body.Close())
		return response.Header
	}
	own := get("/proxy/things")
	require.Equal(t, []string{"59"}, own.Values("X-RateLimit-Remaining"))
	require.Equal(t, []string{"60"}, own.Values("X-RateLimit-Limit"))
	require.Empty(t, own.Values("X-RateLimit-Remaining-Tokens"))
	require.Empty(t, own.Values("RateLimit"))
	require.Equal(t, "3", own.Get("Retry-After"), "the upstream's")
	require.Equal(t, []string{"59", "4999"}, get("/both").Values("X-RateLimit-Remaining"))
	require.Equal(t, []string{"4999"}, get("/upstream").Values("X-RateLimit-Remaining"))
	denied := get("/upstream").Values("Retry-After")
	require.Len(t, denied, 1)
	require.NotEqual(t, "3", denied[0], "a denial of the gateway")
}

func toolsRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	budget := must(limiter.Policy("tools", ginlimit.PerHour(100))) // of all tools together
	render := must(limiter.Policy("tool render", ginlimit.PerMinute(5), ginlimit.InFlight(1)))
	router.POST("/tools/render", func(c *gin.Context) { // your MCP library's handler
		user := "user 7"
		work, err := ginlimit.ReserveAll(c.Request.Context(), ginlimit.Charge{Policy: budget, Client: user, N: 10},
			ginlimit.Charge{Policy: render, Client: user, N: 1})
		text := "done"
		switch denied := work.Result(); { // with isError, so that the model can wait
		case err != nil:
			text = "not now"
		case !work.OK() && denied.RetryAfter != ginlimit.Never:
			text = "try again in " + denied.RetryAfter.Round(time.Second).String()
		case !work.OK():
			text = "never"
		}
		defer work.Release()
		c.JSON(http.StatusOK, gin.H{"text": text, "isError": text != "done"})
	})
}

// TestToolsHaveABudgetAndLimitsOfTheirOwn: what a tool's own limit denies costs nothing of the
// budget.
func TestToolsHaveABudgetAndLimitsOfTheirOwn(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := gin.New()
		toolsRecipe(router, local(t))
		call := func() string { return send(router, http.MethodPost, "/tools/render").Body.String() }
		const done = `{"isError":false,"text":"done"}`
		for range 5 {
			require.Equal(t, done, call()) // 50 of the budget
		}
		for range 10 {
			require.Contains(t, call(), `"isError":true`)
		}
		time.Sleep(time.Minute)
		for range 5 {
			require.Equal(t, done, call()) // 100, of which one has come back
		}
		time.Sleep(time.Minute)
		require.Contains(t, call(), `"isError":true`, "too little is left of the budget")
	})
}
