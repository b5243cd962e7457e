package docs_test

import (
	"context"
	"errors"
	"fmt"
	"go/doc"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
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
	"github.com/ginlimit/ginlimit/transport"
)

// docs/llms.txt is what an assistant reads before it writes code. Each of its blocks is the body of a function here,
// and does what the line before it says, or a comment in it.

// TestPageForAssistantsIsShort: at most 150 lines; and each name of several words in its sentences is exported.
func TestPageForAssistantsIsShort(t *testing.T) {
	t.Parallel()
	text := testkit.Read(t, "docs/llms.txt")
	require.LessOrEqual(t, strings.Count(text, "\n"), 150, "lines")
	exported := map[string]bool{}
	add := func(values []*doc.Value) {
		for _, value := range values {
			for _, name := range value.Names {
				exported[name] = true
			}
		}
	}
	for _, dir := range []string{".", "transport"} {
		of, comments := goDoc(t, dir)
		for name := range comments {
			exported[name[strings.LastIndex(name, ".")+1:]] = true
		}
		add(append(of.Consts, of.Vars...))
		for _, typ := range of.Types {
			add(append(typ.Consts, typ.Vars...))
		}
	}
	ofOthers := []string{"SetTrustedProxies", "RoundTripper", "RateLimit", "NewClient", "KiB"}
	sentences := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	names := regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w+`).FindAllString(sentences, -1)
	require.Greater(t, len(names), 15)
	for _, name := range names {
		known := exported[name] || slices.Contains(ofOthers, name)
		assert.True(t, known, "docs/llms.txt names %s, which is not exported", name)
	}
	require.Equal(t, 11, strings.Count(text, "```go\n"), "blocks: each needs a function here")
}

func routesForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	router.Use(limiter.Handler("all", ginlimit.PerMinute(300)))
	router.GET("/search", limiter.Handler("search", ginlimit.PerSecond(10).WithBurst(20), ginlimit.PerHour(300)), answer)
	codes := ginlimit.PerHour(5).WithAlgorithm(ginlimit.SlidingWindow) // 5 in any hour; PerHour(5) admits 10 in hour 1
	router.POST("/codes", limiter.Handler("codes", codes), answer)
}

func TestRoutesForAssistants(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		routesForAssistantsRecipe(router, local(t), testkit.OK)
		for range 5 {
			require.Equal(t, http.StatusOK, send(router, http.MethodPost, "/codes").Code)
		}
		require.Equal(t, "3600", send(router, http.MethodPost, "/codes").Header().Get("Retry-After"), "5 in any hour")
		require.Equal(t, "19", testkit.Get(router, "/search").Header().Get("X-RateLimit-Remaining"))
	})
}

func eitherForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	users := must(limiter.Policy("user", ginlimit.PerMinute(600), ginlimit.WithKey(ginlimit.ByValue("user"))))
	addresses := must(limiter.Policy("address", ginlimit.PerMinute(60)))
	router.GET("/things", ginlimit.FirstOf(users, addresses), answer)
}

func TestEitherForAssistants(t *testing.T) {
	t.Parallel()
	router := signedIn("user")
	eitherForAssistantsRecipe(router, local(t), testkit.OK)
	require.Equal(t, "600", testkit.Get(router, "/things", testkit.With("user", "7")).Header().Get("X-RateLimit-Limit"))
	require.Equal(t, "60", testkit.Get(router, "/things").Header().Get("X-RateLimit-Limit"))
}

func usageForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	key := ginlimit.WithKey(ginlimit.ByValue("api key"))
	requests := must(limiter.Policy("requests", ginlimit.PerMinute(60), key))
	tokens := must(limiter.Policy("tokens", ginlimit.PerMinute(90_000), key,
		ginlimit.WithCost(func(c *gin.Context) int { return 1000 + int(min(uint64(c.Request.ContentLength), 1<<30)/4) }),
		ginlimit.WithSettle(func(c *gin.Context) int {
			if used, known := c.Get("used"); known {
				return used.(int)
			}
			return -1 // unknown: the estimate stands. Not GetInt, whose 0 gives all back
		})))
	router.POST("/chat", ginlimit.AllOf(requests, tokens), answer)
}

func TestUsageForAssistants(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn("api key")
		used := 412
		var before []ginlimit.Result
		usageForAssistantsRecipe(router, local(t), func(c *gin.Context) {
			before = ginlimit.Results(c)
			c.Set("used", used)
		})
		chat := func() int { return send(router, http.MethodPost, "/chat", testkit.With("api key", "k")).Code }
		require.Equal(t, http.StatusOK, chat())
		require.Equal(t, 90_000-1000, before[1].Remaining, "the estimate")
		used = -1
		require.Equal(t, http.StatusOK, chat())
		require.Equal(t, 90_000-412-1000, before[1].Remaining, "the usage, and an estimate")
		require.Equal(t, http.StatusOK, chat())
		require.Equal(t, 90_000-412-2000, before[1].Remaining, "an estimate stands")
		require.Equal(t, 57, before[0].Remaining)
	})
}

func queueForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	router.GET("/report", limiter.Handler("reports", ginlimit.InFlight(2), ginlimit.WithQueue(3, 10*time.Second)), answer)
}

func TestQueueForAssistants(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		queueForAssistantsRecipe(router, local(t), func(*gin.Context) { time.Sleep(time.Second) })
		began := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.Equal(t, http.StatusOK, testkit.Get(router, "/report").Code) })
			synctest.Wait()
		}
		require.Equal(t, http.StatusTooManyRequests, testkit.Get(router, "/report").Code)
		all.Wait()
		require.Equal(t, 3*time.Second, time.Since(began), "two at once")
	})
}

func loginsForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	window := ginlimit.Per(20, 15*time.Minute).WithAlgorithm(ginlimit.FixedWindow)
	succeeded := func(c *gin.Context) bool { return c.Writer.Status() < 400 }
	router.POST("/login", limiter.Handler("login", window, ginlimit.WithRefund(succeeded),
		ginlimit.WithBan(time.Hour, 24*time.Hour), ginlimit.WithFailureMode(ginlimit.FailClosed)), answer)
}

func TestLoginsForAssistants(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		status := http.StatusOK
		loginsForAssistantsRecipe(router, local(t), func(c *gin.Context) { c.Status(status) })
		login := func() *httptest.ResponseRecorder { return send(router, http.MethodPost, "/login") }
		for range 20 {
			require.Equal(t, http.StatusOK, login().Code)
		}
		status = http.StatusUnauthorized
		for range 20 {
			require.Equal(t, status, login().Code)
		}
		require.Equal(t, "3600", login().Header().Get("Retry-After"))
	})
}

func planForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, answer gin.HandlerFunc) {
	source := func(ctx context.Context, client string) ([]ginlimit.Limit, error) { // or ErrUnknownClient: 403
		return []ginlimit.Limit{ginlimit.PerMinute(100), ginlimit.PerCalendar(10_000, ginlimit.CalendarMonth(nil, 1))}, nil
	}
	plans, err := limiter.NewPlans("plans", time.Minute, source)
	if err != nil {
		log.Fatal(err)
	}
	router.GET("/v1", limiter.Handler("plan", ginlimit.WithKey(ginlimit.ByValue("user")),
		ginlimit.WithLimitFunc(plans.Limits)), answer)
}

func TestPlanForAssistants(t *testing.T) {
	t.Parallel()
	router := signedIn("user")
	planForAssistantsRecipe(router, local(t), testkit.OK)
	require.Equal(t, "99", testkit.Get(router, "/v1", testkit.With("user", "7")).Header().Get("X-RateLimit-Remaining"))
}

func jobsForAssistantsRecipe(ctx context.Context, limiter *ginlimit.Limiter) {
	jobs := must(limiter.Policy("jobs", ginlimit.PerMinute(60), ginlimit.InFlight(4)))
	work, err := jobs.Reserve(ctx, "customer 7", 10)
	if err != nil || !work.OK() { // not OK: work.Result() says how long to wait
		return
	}
	defer work.Release()
	if err := work.Settle(ctx, 7); err != nil { // what it took; Cancel gives all back
		log.Print(err)
	}
}

func TestJobsForAssistants(t *testing.T) {
	t.Parallel()
	inTwoProcesses(t, "jobs", func(t *testing.T, limiter, other *ginlimit.Limiter) {
		jobsForAssistantsRecipe(t.Context(), limiter)
		synctest.Wait() // Release does not wait for Redis
		jobs := must(other.Policy("jobs", ginlimit.PerMinute(60), ginlimit.InFlight(4)))
		all := testkit.Must(jobs.Status(t.Context(), "customer 7"))
		require.Equal(t, []int{53, 4}, []int{all[0].Remaining, all[1].Remaining}, "settled and released")
	})
}

func partnerForAssistantsRecipe(limiter *ginlimit.Limiter) {
	partner := must(limiter.Policy("api.example", ginlimit.PerSecond(20).WithBurst(10), ginlimit.InFlight(20)))
	calls, err := transport.New(partner, nil) // package transport: an http.RoundTripper
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: calls} // waits; a request whose context ends too early gets a *TooLateError
	response, err := client.Get("https://api.example/")
	if err == nil {
		defer response.Body.Close() // frees the slot
	}
}

// partnerForAssistantsRecipe is built, and not run, as it calls somebody: see tests of package transport.
var _ = partnerForAssistantsRecipe

func trialForAssistantsRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	router.Use(limiter.Handler("trial", ginlimit.PerMinute(60), ginlimit.WithDryRun()), func(c *gin.Context) {
		if r, decided := ginlimit.FromContext(c); decided && !r.Allowed {
			slog.Info("would be denied", "policy", r.Name, "retry_after", r.RetryAfter)
		}
	})
}

// TestTrialForAssistants runs alone, as it has a default logger.
func TestTrialForAssistants(t *testing.T) {
	var lines testkit.Buffer
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	defer func() { slog.SetDefault(logger); log.SetOutput(writer); log.SetFlags(flags) }()
	testkit.InSynctest(t, func(t *testing.T) {
		router := signedIn()
		trialForAssistantsRecipe(router, local(t))
		router.GET("/", testkit.OK)
		for range 61 {
			require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
		}
		require.Equal(t, 1, strings.Count(lines.String(), `msg="would be denied" policy=trial`))
	})
}

func officeForAssistantsRecipe(ctx context.Context, limiter *ginlimit.Limiter) {
	office := ginlimit.Override{Policy: "all", Client: "203.0.113.7", Until: time.Now().Add(24 * time.Hour)}
	office.Limits = []ginlimit.Limit{ginlimit.PerMinute(3000)}
	if err := limiter.Override(ctx, office); err != nil {
		log.Print(err)
	}
}

func TestOfficeForAssistants(t *testing.T) {
	t.Parallel()
	router, limiter := signedIn(), local(t)
	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(300)), testkit.OK)
	officeForAssistantsRecipe(t.Context(), limiter)
	limit := func(address string) string {
		return testkit.Get(router, "/", testkit.From(address)).Header().Get("X-RateLimit-Limit")
	}
	require.Equal(t, "3000", limit("203.0.113.7:1"))
	require.Equal(t, "300", limit("203.0.113.8:1"))
}

func trapsForAssistantsRecipe(ctx context.Context, router *gin.Engine, limiter *ginlimit.Limiter) {
	api := must(limiter.Policy("api", ginlimit.PerHour(2), ginlimit.InFlight(1)))
	// Errors: a policy made twice, as in each request (use With); two limits of one period; 10/day, which may mean any
	// 24 hours, 10/d, or 10/calendar-day.
	_, again := limiter.Policy("api", ginlimit.PerHour(2))
	_, period := limiter.Policy("two", ginlimit.PerHour(2), ginlimit.PerHour(9))
	_, day := ginlimit.ParseLimit("10/day")
	fmt.Println(again != nil, period != nil, day != nil) // true true true
	// Nobody would release the slot that Allow takes: Reserve, and defer Release.
	_, err := api.Allow(ctx, "ann")
	fmt.Println(errors.Is(err, ginlimit.ErrInvalidArgument)) // true
	// More tokens than the burst are a denial, and no waiting helps.
	work, err := api.Reserve(ctx, "ann", 3)
	fmt.Println(err, work.OK(), work.Result().RetryAfter == ginlimit.Never) // <nil> false true
	// Of two handlers, the first keeps its charge if the second denies. AllOf charges nothing then.
	first := must(limiter.Policy("first", ginlimit.PerHour(9)))
	second := must(limiter.Policy("second", ginlimit.Prohibited()))
	router.GET("/stacked", first.Handler(), second.Handler())
	router.GET("/both", ginlimit.AllOf(first, second))
	for _, path := range []string{"/stacked", "/both"} {
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	left, _ := first.Peek(ctx, "192.0.2.1")
	fmt.Println(left.Remaining) // 8
	// Methods take a client's key as the key function returns it.
	fmt.Println(ginlimit.AddrKey(netip.MustParseAddr("2001:db8::1"))) // 2001:db8::/64
}

// TestTrapsPrintWhatTheirCommentsSay: each call of Println, in order. It runs alone, as it takes the standard output.
func TestTrapsPrintWhatTheirCommentsSay(t *testing.T) {
	page := testkit.Read(t, "docs/llms.txt")
	var want strings.Builder
	for _, comment := range regexp.MustCompile(`(?m)^\s*fmt\.Println\(.* // (.*)$`).FindAllStringSubmatch(page, -1) {
		want.WriteString(comment[1] + "\n")
	}
	require.Equal(t, strings.Count(page, "fmt.Println("), strings.Count(want.String(), "\n"))
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	output := os.Stdout
	os.Stdout = writer
	trapsForAssistantsRecipe(t.Context(), signedIn(), local(t))
	os.Stdout = output
	require.NoError(t, writer.Close())
	require.Equal(t, want.String(), string(testkit.Must(io.ReadAll(reader))))
}
