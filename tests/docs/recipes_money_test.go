package docs_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Budgets of money, a warning before one ends, and what a request is charged whose use nobody learns.

func moneyRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	const usd = 1_000_000                   // limits and costs are in micro-dollars
	price := func(prompt, answer int) int { // $1.25 and $10 for a million tokens, rounded up
		return (prompt*1_250_000 + answer*10_000_000 + 999_999) / 1_000_000
	}
	prompt := func(c *gin.Context) int { // about 4 bytes a token; a body without a length costs too much
		return int(min(uint64(c.Request.ContentLength), 1<<30) / 4)
	}
	estimate := ginlimit.WithCost(func(c *gin.Context) int { return price(prompt(c), 1000) }) // and max_tokens
	spent := ginlimit.WithSettle(func(c *gin.Context) int {
		if n, known := c.Get("spent"); known {
			return n.(int)
		}
		return -1 // the estimate stands
	})
	denied := ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
		c.JSON(http.StatusPaymentRequired, r)
	})
	budget := func(of string, n int) *ginlimit.Policy {
		return must(limiter.Policy(of+" budget", ginlimit.WithKey(ginlimit.ByValue(of)), estimate, spent, denied,
			ginlimit.Per(n*12*usd, 5*time.Hour).WithAlgorithm(ginlimit.FixedWindow), // from the first request on
			ginlimit.PerCalendar(n*50*usd, ginlimit.CalendarWeek(nil, time.Monday)),
			ginlimit.PerCalendar(n*150*usd, ginlimit.CalendarMonth(nil, 1))))
	}
	key, team := budget("api key", 1), budget("team", 4) // both values are set by your authentication
	router.POST("/v1/complete", ginlimit.AllOf(key, team), func(c *gin.Context) {
		model := func() (in, out int, err error) { return prompt(c), prompt(c) / 10, c.Request.Context().Err() } // yours
		in, out, err := model()
		if err != nil {
			c.Status(http.StatusBadGateway)
			return
		}
		c.Set("spent", price(in, out)) // as the model says, not the estimate
	})
	router.GET("/v1/budget", func(c *gin.Context) {
		left, err := key.Status(c.Request.Context(), c.GetString("api key")) // likewise of team
		if err != nil {
			_ = c.AbortWithError(ginlimit.ErrorStatus(err), err)
			return
		}
		c.JSON(http.StatusOK, left)
	})
}

const dollar = 1_000_000

// bill is the price of the money recipe, by another way.
func bill(prompt, answer int) int { return (prompt*5 + answer*40 + 3) / 4 }

// complete sends a prompt of that number of tokens to the money recipe.
func complete(router http.Handler, key, team string, prompt int) *httptest.ResponseRecorder {
	return send(router, http.MethodPost, "/v1/complete", testkit.With("api key", key), testkit.With("team", team),
		func(r *http.Request) { r.ContentLength = int64(4 * prompt) })
}

// left returns what a key's owner is told to have left in five hours, the week and the month.
func left(t *testing.T, router http.Handler, key string) (all []int) {
	t.Helper()
	rec := testkit.Get(router, "/v1/budget", testkit.With("api key", key))
	require.Equal(t, http.StatusOK, rec.Code)
	var limits []struct{ Remaining int }
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &limits))
	for _, l := range limits {
		all = append(all, l.Remaining)
	}
	return all
}

// less returns what is left of a key's budgets when so much is spent.
func less(spent int) []int { return []int{12*dollar - spent, 50*dollar - spent, 150*dollar - spent} }

// denial is what a client without money is told.
type denial struct {
	Name, Limit, Cause string
	Remaining          int
}

// requireDenied wants a denial by a budget, and returns it.
func requireDenied(t *testing.T, rec *httptest.ResponseRecorder) (d denial) {
	t.Helper()
	require.Equal(t, http.StatusPaymentRequired, rec.Code)
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &d))
	return d
}

// TestMoneyIsCountedToTheMicroDollar: what requests spent, rounded up, is missing from each budget of their key and
// their team, in any process.
func TestMoneyIsCountedToTheMicroDollar(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, other *ginlimit.Limiter) {
		router, second := signedIn("api key", "team"), signedIn("api key", "team")
		moneyRecipe(router, limiter)
		moneyRecipe(second, other)
		spent := 0
		for prompt := range 300 {
			for _, r := range []http.Handler{router, second} {
				require.Equal(t, http.StatusOK, complete(r, "a", "red", 7*prompt).Code)
				spent += bill(7*prompt, 7*prompt/10)
			}
		}
		require.NotZero(t, spent%dollar)
		require.Equal(t, less(spent), left(t, router, "a"))
		require.Equal(t, less(0), left(t, router, "b"))
		require.Equal(t, http.StatusInternalServerError, testkit.Get(router, "/v1/budget").Code)
	})
}

// TestTheBudgetThatIsUsedUpDenies, of a key or of its team, and no other is charged. It says whether waiting helps.
func TestTheBudgetThatIsUsedUpDenies(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, _ *ginlimit.Limiter) {
		router := signedIn("api key", "team")
		moneyRecipe(router, limiter)
		const prompt = 888_888 // about $2, of which five fit into five hours
		each := bill(prompt, prompt/10)
		spend := func(key string) (n int, last denial) {
			for ; ; n++ {
				if rec := complete(router, key, "red", prompt); rec.Code != http.StatusOK {
					return n, requireDenied(t, rec)
				}
			}
		}
		never := complete(router, "a", "red", 12*dollar)
		require.Equal(t, denial{"api key budget", "12000000/5h fixed-window", "never", 12 * dollar},
			requireDenied(t, never))
		require.Empty(t, never.Header().Values("Retry-After"))
		chunked := send(router, http.MethodPost, "/v1/complete", testkit.With("api key", "a"), testkit.With("team", "red"),
			func(r *http.Request) { r.ContentLength = -1 })
		require.Equal(t, "never", requireDenied(t, chunked).Cause, "a prompt without a length is not free")
		require.Equal(t, less(0), left(t, router, "a"))

		var served [3]int // by five hours, the week and the month
		for key := range 4 {
			n, last := spend(strconv.Itoa(key))
			require.Equal(t, denial{"api key budget", "12000000/5h fixed-window", "rate", 12*dollar - n*each}, last)
			served[0] += n
		}
		n, last := spend("another")
		require.Equal(t, "team budget", last.Name, "of four keys in five hours")
		require.Equal(t, last.Remaining, 4*12*dollar-(served[0]+n)*each)
		require.Equal(t, less(n*each), left(t, router, "another"))
		denied := complete(router, "0", "red", prompt)
		require.Equal(t, "18000", denied.Header().Get("Retry-After"))

		for _, row := range []struct {
			limit  string
			budget int
		}{{"50000000/week", 50 * dollar}, {"150000000/month", 150 * dollar}} {
			n, last = 0, denial{}
			for steps := 0; last.Limit != row.limit; steps++ {
				require.Less(t, steps, 24*31/5, "until the month ends")
				time.Sleep(5 * time.Hour)
				more := 0
				more, last = spend("until " + row.limit)
				n += more
			}
			require.Equal(t, row.budget-n*each, last.Remaining)
		}
	})
}

// TestAShortfallIsChargedUpToTwiceTheBudget: what a request spent above its estimate is debt, which denies until its
// window or period ends. What goes beyond is not charged.
func TestAShortfallIsChargedUpToTwiceTheBudget(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, _ *ginlimit.Limiter) {
		time.Sleep(2 * 24 * time.Hour) // the bubble's time begins on a Saturday: it is a Monday
		const budget = 12 * dollar
		cost, spent := 1, 0
		charges := []ginlimit.PolicyOption{ginlimit.WithCost(func(*gin.Context) int { return cost }),
			ginlimit.WithSettle(func(*gin.Context) int { return spent })}
		for _, row := range []struct {
			limit ginlimit.Limit
			ends  time.Duration
		}{
			{ginlimit.Per(budget, 5*time.Hour).WithAlgorithm(ginlimit.FixedWindow), 5 * time.Hour},
			{ginlimit.PerCalendar(budget, ginlimit.CalendarWeek(nil, time.Monday)), 7 * 24 * time.Hour},
			{ginlimit.Per(budget, 5*time.Hour), 10 * time.Hour}, // tokens flow back, of the debt first
		} {
			p := must(limiter.Policy(row.limit.String(), append(charges, row.limit)...))
			router := testkit.Serve(p.Handler())
			ask := func(n, used int) int {
				cost, spent = n, used
				return testkit.Get(router, "/").Code
			}
			for _, used := range []int{budget + budget/2, 2 * budget, 5 * budget} {
				require.NoError(t, p.Reset(t.Context(), "192.0.2.1"))
				require.Equal(t, http.StatusOK, ask(1, used))
				require.Equal(t, http.StatusTooManyRequests, ask(1, 0))
				require.Equal(t, http.StatusOK, ask(0, 0), "a cost of 0 is free")
				remaining(t, p, "192.0.2.1", 0)
				require.NoError(t, p.Refund(t.Context(), "192.0.2.1", min(used, 2*budget)-budget))
				remaining(t, p, "192.0.2.1", 0)
				require.NoError(t, p.Refund(t.Context(), "192.0.2.1", 7))
				remaining(t, p, "192.0.2.1", 7)
			}
			require.NoError(t, p.Reset(t.Context(), "192.0.2.1"))
			require.Equal(t, http.StatusOK, ask(1, 5*budget))
			time.Sleep(row.ends - time.Second)
			require.Less(t, testkit.Must(p.Peek(t.Context(), "192.0.2.1")).Remaining, budget)
			time.Sleep(time.Second)
			remaining(t, p, "192.0.2.1", budget)
			time.Sleep(7*24*time.Hour - row.ends)
		}
	})
}

// TestAnEstimateStandsIfNobodyLearnsMore: the model fails after the decision, so the handler does not learn what was
// used.
func TestAnEstimateStandsIfNobodyLearnsMore(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		fails, end := false, context.CancelFunc(nil)
		decided := ginlimit.WithObserver(func(context.Context, ginlimit.Event) {
			if fails {
				end()
			}
		})
		router := signedIn("api key", "team")
		router.Use(func(c *gin.Context) {
			var ctx context.Context
			ctx, end = context.WithCancel(c.Request.Context())
			c.Request = c.Request.WithContext(ctx)
		})
		moneyRecipe(router, testkit.NewLimiter(t, b.Redis, decided).Limiter)
		require.Equal(t, http.StatusOK, complete(router, "a", "red", 1000).Code)
		require.Equal(t, less(bill(1000, 100)), left(t, router, "a"))
		fails = true
		require.Equal(t, http.StatusBadGateway, complete(router, "a", "red", 1000).Code)
		fails = false
		require.Equal(t, less(bill(1000, 100)+bill(1000, 1000)), left(t, router, "a"))
	})
}

// takeWhatIsLeft serves a request whose estimate is above what is left of a budget. docs/guide.md links it.
func takeWhatIsLeft(router *gin.Engine, limiter *ginlimit.Limiter, estimate, spent func(*gin.Context) int) {
	budget := func(of string, n int) *ginlimit.Policy {
		return must(limiter.Policy(of, ginlimit.WithKey(ginlimit.ByValue(of)), ginlimit.WithSettle(spent),
			ginlimit.WithCost(func(c *gin.Context) int { return c.GetInt("cost") }),
			ginlimit.PerCalendar(n, ginlimit.CalendarMonth(nil, 1))))
	}
	key, team := budget("api key", 1_000_000), budget("team", 3_000_000)
	router.POST("/v1/complete", func(c *gin.Context) {
		cost := estimate(c)
		for of, p := range map[string]*ginlimit.Policy{"api key": key, "team": team} {
			if r, err := p.Peek(c.Request.Context(), c.GetString(of)); err == nil {
				cost = min(cost, r.Remaining)
			}
		}
		c.Set("cost", max(1, cost)) // a cost of 0 takes nothing and passes
	}, ginlimit.AllOf(key, team), func(c *gin.Context) { c.Status(http.StatusOK) })
}

// TestWhatIsLeftIsTakenOnce: one more request is served in debt, of those that peek at the same time too.
func TestWhatIsLeftIsTakenOnce(t *testing.T) {
	inTwoProcesses(t, "both", func(t *testing.T, limiter, other *ginlimit.Limiter) {
		router := signedIn("api key", "team")
		spent := 250_000
		estimated, used := func(*gin.Context) int { return 300_000 }, func(*gin.Context) int { return spent }
		takeWhatIsLeft(router, limiter, estimated, used)
		key := must(other.Policy("api key", ginlimit.PerCalendar(dollar, ginlimit.CalendarMonth(nil, 1))))
		ask := func() int {
			return complete(router, "a", "red", 0).Code
		}
		for _, want := range []int{750_000, 500_000, 250_000} {
			require.Equal(t, http.StatusOK, ask())
			remaining(t, key, "a", want)
		}
		spent = 300_000 // as much as was estimated, of which 250,000 are there
		served := map[int]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				code := ask()
				mu.Lock()
				defer mu.Unlock()
				served[code]++
			})
		}
		all.Wait()
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusTooManyRequests: 9}, served)
		require.Equal(t, http.StatusTooManyRequests, ask(), "of nothing")
		require.NoError(t, key.Refund(t.Context(), "a", 150_000))
		remaining(t, key, "a", 100_000)
		require.Equal(t, http.StatusOK, ask())
		remaining(t, key, "a", 0)
	})
}

// warnAt80 is the function of the guide.
func warnAt80(rdb redis.UniversalClient, warn func(client string, of ginlimit.Limit)) func(context.Context,
	ginlimit.Event, string) {
	underWay := make(chan struct{}, 16)
	return func(ctx context.Context, e ginlimit.Event, client string) {
		if e.Name != "month" || e.DryRun || !e.Allowed || e.Source != ginlimit.FromRedis ||
			e.Remaining > e.Limit.Rate/5 || e.ResetAfter < time.Second { // the month has just ended
			return
		}
		select {
		case underWay <- struct{}{}:
		default: // the client's next request tries again
			return
		}
		go func() { // an observer must not block
			defer func() { <-underWay }()
			end := time.Now().Add(e.ResetAfter).Round(time.Minute).UTC()
			key := ginlimit.Key("warned", e.Name, end.Format(time.RFC3339), client)
			first, err := rdb.SetNX(context.WithoutCancel(ctx), key, 1, e.ResetAfter+time.Hour).Result()
			if err == nil && first {
				warn(client, e.Limit)
			}
		}()
	}
}

// TestWarnAt80IsThatOfTheGuide to the letter.
func TestWarnAt80IsThatOfTheGuide(t *testing.T) {
	t.Parallel()
	for _, block := range goBlocks(t, "docs/guide.md") {
		if unindented(block) == unindented(functionOf(t, "warnAt80")) {
			return
		}
	}
	require.Fail(t, "no block of the guide is warnAt80")
}

// functionOf returns the text of a function of this file.
func functionOf(t *testing.T, name string) string {
	t.Helper()
	text := testkit.Read(t, "tests/docs/recipes_money_test.go")
	function := regexp.MustCompile(`(?ms)^func ` + name + `\(.*?^\}\n`).FindString(text)
	require.NotEmpty(t, function)
	return function
}

// month is a quota of 1,000 a month, for each value of X-User.
var month = []ginlimit.PolicyOption{ginlimit.PerCalendar(1000, ginlimit.CalendarMonth(nil, 1)), testkit.ByUser()}

// warnings are those that the processes of a test have sent.
type warnings struct {
	mu   sync.Mutex
	sent []string
}

func (w *warnings) send(client string, of ginlimit.Limit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, client+" "+of.String())
}

// requireSent wants what was sent since it was last asked.
func (w *warnings) requireSent(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, want, w.sent)
	w.sent = nil
}

// process returns a limiter that warns.
func (w *warnings) process(t *testing.T, b *testkit.Bubble, opts ...ginlimit.LimiterOption) *ginlimit.Limiter {
	return testkit.NewLimiter(t, b.Redis,
		append(opts, ginlimit.WithClientObserver(warnAt80(b.Connect(t), w.send)))...).Limiter
}

// TestAClientIsWarnedOnceAMonth by all processes together, as soon as 80 % are used, in each month.
func TestAClientIsWarnedOnceAMonth(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		processes := []*ginlimit.Policy{must(w.process(t, b).Policy("month", month...)),
			must(w.process(t, b).Policy("month", month...))}
		take := func(i, n int, client string) {
			require.True(t, testkit.Must(processes[i].AllowN(t.Context(), client, n)).Allowed)
		}
		for range 3 {
			take(0, 400, "Ann")
			take(1, 399, "Ann")
			w.requireSent(t)
			var all sync.WaitGroup // of both at the same time
			for i := range 10 {
				all.Go(func() { take(i%2, 1, "Ann") })
			}
			all.Wait()
			w.requireSent(t, "Ann 1000/month")
			time.Sleep(24 * time.Hour)
			take(0, 100, "Ann")
			take(1, 91, "Ann")
			w.requireSent(t)
			take(1, 800, "Bob")
			w.requireSent(t, "Bob 1000/month")
			now := time.Now()
			time.Sleep(time.Until(time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)))
		}
	})
}

// TestClocksThatDifferWarnOnce: the host of one process is three seconds behind.
func TestClocksThatDifferWarnOnce(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		observe := warnAt80(b.Connect(t), w.send)
		e := ginlimit.Event{Name: "month", Allowed: true, Remaining: 100,
			Limit: ginlimit.PerCalendar(1000, ginlimit.CalendarMonth(nil, 1))}
		end := time.Date(2000, 2, 1, 0, 0, 0, 0, time.UTC)
		time.Sleep(time.Until(end) - time.Second)
		e.ResetAfter = time.Second
		observe(t.Context(), e, "Ann")
		w.requireSent(t, "Ann 1000/month")
		time.Sleep(2 * time.Second)
		e.ResetAfter = 2 * time.Second // by the clock that is behind
		observe(t.Context(), e, "Ann")
		w.requireSent(t)
	})
}

// TestASettlementWarns, but not of the month before.
func TestASettlementWarns(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		p := must(w.process(t, b).Policy("month", month...))
		reserve := func() *ginlimit.Reservation { return testkit.Must(p.Reserve(t.Context(), "Ann", 100)) }
		require.NoError(t, reserve().Settle(t.Context(), 799))
		w.requireSent(t)
		late := reserve()
		w.requireSent(t, "Ann 1000/month")
		require.NoError(t, late.Settle(t.Context(), 0))
		require.NoError(t, p.Reset(t.Context(), "Ann"))

		late = testkit.Must(p.Reserve(t.Context(), "Bob", 100))
		require.NoError(t, testkit.Must(p.Reserve(t.Context(), "Bob", 100)).Settle(t.Context(), 700))
		require.NoError(t, late.Settle(t.Context(), 100))
		w.requireSent(t, "Bob 1000/month")

		late = testkit.Must(p.Reserve(t.Context(), "Cid", 100))
		time.Sleep(31 * 24 * time.Hour)
		require.NoError(t, late.Settle(t.Context(), 900))
		w.requireSent(t)
		require.True(t, testkit.Must(p.AllowN(t.Context(), "Cid", 800)).Allowed)
		w.requireSent(t, "Cid 1000/month")
	})
}

// TestNobodyIsWarnedForNothing: by what takes nothing of the quota, and by what does not know what is left.
func TestNobodyIsWarnedForNothing(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		l := w.process(t, b, ginlimit.WithFailureMode(ginlimit.FailLocal), ginlimit.WithReplicas(10),
			ginlimit.WithTimeout(50*time.Millisecond))
		p, other := must(l.Policy("month", month...)), must(l.Policy("day", ginlimit.PerDay(1), testkit.ByUser()))
		dry := must(w.process(t, b).Policy("month", append(month, ginlimit.WithDryRun())...))
		allow := func(p *ginlimit.Policy, n int) bool {
			return testkit.Must(p.AllowN(t.Context(), "Ann", n)).Allowed
		}
		require.True(t, allow(dry, 999))
		require.False(t, allow(dry, 999))
		require.True(t, allow(p, 799))
		require.False(t, allow(p, 202), "more than is left")
		require.False(t, allow(p, 1001), "never")
		require.True(t, allow(other, 1))
		router := testkit.Serve(ginlimit.AllOf(p, other))
		require.Equal(t, http.StatusTooManyRequests, testkit.Get(router, "/", testkit.User("Ann")).Code)
		require.NoError(t, p.Block(t.Context(), "Ann", time.Hour))
		require.False(t, allow(p, 1))
		b.Late.Store(true)
		require.True(t, testkit.Must(p.AllowN(t.Context(), "Bob", 100)).Allowed, "all of a tenth, without Redis")
		time.Sleep(time.Minute)
		w.requireSent(t)
	})
}

// TestAWarningIsOfTheClosestLimit: a policy with several limits warns of the one that has the fewest tokens left.
func TestAWarningIsOfTheClosestLimit(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		hours := ginlimit.Per(300, 5*time.Hour).WithAlgorithm(ginlimit.FixedWindow)
		p := must(w.process(t, b).Policy("month", append(month, hours)...))
		for range 3 {
			require.True(t, testkit.Must(p.AllowN(t.Context(), "Ann", 200)).Allowed)
			time.Sleep(5 * time.Hour)
		}
		require.True(t, testkit.Must(p.AllowN(t.Context(), "Ann", 239)).Allowed)
		w.requireSent(t) // though 839 are used
		require.True(t, testkit.Must(p.AllowN(t.Context(), "Ann", 1)).Allowed)
		w.requireSent(t, "Ann 300/5h fixed-window")
	})
}

// TestNoRequestWaitsForAWarning: at most 16 are under way in a process, and a later request sends those that were left
// out.
func TestNoRequestWaitsForAWarning(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var w warnings
		slow, calls := b.Connect(t), 0
		var mu sync.Mutex
		slow.AddHook(testkit.EveryCall(func(send func() error) error {
			mu.Lock()
			calls++
			mu.Unlock()
			time.Sleep(time.Minute)
			return send()
		}))
		p := must(testkit.NewLimiter(t, b.Redis, ginlimit.WithClientObserver(warnAt80(slow, w.send))).
			Limiter.Policy("month", month...))
		began := time.Now()
		for i := range 20 {
			require.True(t, testkit.Must(p.AllowN(t.Context(), strconv.Itoa(i), 900)).Allowed)
		}
		require.Zero(t, time.Since(began))
		synctest.Wait()
		mu.Lock()
		require.Equal(t, 16, calls)
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		for i := range 20 {
			require.True(t, testkit.Must(p.AllowN(t.Context(), strconv.Itoa(i), 1)).Allowed)
			time.Sleep(2 * time.Minute)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Len(t, w.sent, 20)
	})
}
