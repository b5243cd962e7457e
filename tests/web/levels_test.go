package web_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Requests in flight at several levels: of an API key, its user, and the account behind.

// levels are the names of the keys under which a request counts, and what each allows.
var levels = []struct {
	name           string
	slots, tokens  int
	field, slotsOf string
}{
	{"key", 2, 30, "X-Key", "key-c"}, {"user", 3, 60, "X-User", "user-c"}, {"account", 4, 90, "X-Account", "account-c"},
}

// levelsHandler limits requests in flight and requests a day at each level.
func levelsHandler(l *testkit.Limiter, opts ...ginlimit.PolicyOption) gin.HandlerFunc {
	var all []*ginlimit.Policy
	for _, level := range levels {
		all = append(all, l.Must(level.name, append([]ginlimit.PolicyOption{testkit.Key(level.field),
			ginlimit.PerDay(level.tokens), ginlimit.InFlight(level.slots)}, opts...)...))
	}
	return ginlimit.AllOf(all...)
}

// inFlight is requests that are being served.
type inFlight struct {
	router *gin.Engine
	all    sync.WaitGroup
}

// newInFlight serves requests that last until the function that begin returns is called.
func newInFlight(handlers ...gin.HandlerFunc) *inFlight {
	f := &inFlight{router: gin.New()}
	f.router.Use(handlers...)
	f.router.GET("/", func(c *gin.Context) {
		ctx := c.Request.Context()
		ctx.Value(f).(func())()
	})
	return f
}

// begin begins a request. It returns the response of a denied one, and else how to end it.
func (f *inFlight) begin(t *testing.T, edit ...func(*http.Request)) (denied *httptest.ResponseRecorder, finish func()) {
	t.Helper()
	began, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, e := range edit {
		e(req)
	}
	req = req.WithContext(context.WithValue(req.Context(), f, func() { close(began); <-end }))
	f.all.Go(func() {
		defer close(done)
		f.router.ServeHTTP(rec, req)
	})
	select {
	case <-began:
		return nil, func() { close(end); <-done }
	case <-done:
		return rec, nil
	}
}

// TestInFlightAtEveryLevel has requests begin and end at random: each is allowed exactly if every level has a slot and
// a token, and a denied one takes nothing of any.
func TestInFlightAtEveryLevel(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		testkit.Run(t, name, func(t *testing.T) {
			l, r := make(t), rand.New(rand.NewPCG(1, 2))
			f := newInFlight(levelsHandler(l, ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
				c.String(http.StatusTooManyRequests, "%s %s", r.Name, r.Cause)
			})))
			type request struct {
				end func()
				of  [3]string
			}
			var serving []request
			slots, tokens := map[string]int{}, map[string]int{}
			for step := range 400 {
				if len(serving) > 0 && r.IntN(5) < 2 {
					i := r.IntN(len(serving))
					serving[i].end()
					for _, of := range serving[i].of {
						slots[of]--
					}
					serving = slices.Delete(serving, i, i+1)
					continue
				}
				var of [3]string
				var edit []func(*http.Request)
				for i, level := range levels {
					client := fmt.Sprint(r.IntN(3))
					of[i], edit = level.name+client, append(edit, testkit.With(level.field, client))
				}
				var denies []string
				for i, level := range levels {
					switch {
					case tokens[of[i]] == level.tokens:
						denies = append(denies, level.name+" rate")
					case slots[of[i]] == level.slots:
						denies = append(denies, level.slotsOf+" in_flight")
					}
				}
				what := fmt.Sprintf("step %d: %v, slots %v, tokens %v", step, of, slots, tokens)
				denied, end := f.begin(t, edit...)
				if len(denies) > 0 {
					require.NotNil(t, denied, what)
					require.Contains(t, denies, denied.Body.String(), what)
					continue
				}
				require.Nil(t, denied, what)
				serving = append(serving, request{end, of})
				for _, of := range of {
					slots[of]++
					tokens[of]++
				}
			}
			for _, one := range serving {
				one.end()
			}
			for i, level := range levels {
				for client := range 3 {
					rows := testkit.Must(l.Status(t.Context(), ginlimit.Key(level.name, fmt.Sprint(client))))
					assert.Equal(t, level.tokens-tokens[fmt.Sprint(level.name, client)], rows[0].Remaining, "%s %d", level.name, i)
					assert.Equal(t, level.slots, rows[1].Remaining, "%s %d", level.name, i)
				}
			}
			require.Zero(t, l.Stats().Slots)
		})
	}
}

// TestFieldsListEachLevel: an item for each level, and for its slots.
func TestFieldsListEachLevel(t *testing.T) {
	t.Parallel()
	f := newInFlight(levelsHandler(testkit.NewLocal(t), ginlimit.WithHeaders(ginlimit.RateLimitDraft)))
	as := func(key, user, account string) []func(*http.Request) {
		return []func(*http.Request){testkit.With("X-Key", key), testkit.With("X-User", user),
			testkit.With("X-Account", account)}
	}
	_, one := f.begin(t, as("a", "u", "x")...)
	_, two := f.begin(t, as("b", "u", "x")...)
	_, three := f.begin(t, as("c", "u", "x")...)
	denied, _ := f.begin(t, as("d", "u", "x")...)
	require.NotNil(t, denied)
	require.Equal(t, http.StatusTooManyRequests, denied.Code)
	require.Equal(t, `"key";q=30;w=86400, "key-c";q=2;qu="concurrent-requests", `+
		`"user";q=60;w=86400, "user-c";q=3;qu="concurrent-requests", `+
		`"account";q=90;w=86400, "account-c";q=4;qu="concurrent-requests"`,
		strings.Join(denied.Header()["Ratelimit-Policy"], ", "))
	require.Contains(t, denied.Header().Get("RateLimit"), `"user-c";r=0;t=1`)
	require.Contains(t, denied.Body.String(), "user-c")
	for _, end := range []func(){one, two, three} {
		end()
	}
	_, again := f.begin(t, as("d", "u", "x")...)
	again()
}

// TestPlansHaveSlots: each client has as many as its plan says, and a plan that changes ends nobody.
func TestPlansHaveSlots(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		source := testkit.NewSource()
		source.Set("free", ginlimit.InFlight(1), nil)
		source.Set("paid", ginlimit.InFlight(3), nil)
		source.Set("other", ginlimit.PerHour(100), nil)
		p := testkit.NewPolicy(t, e.Limiter, "api", ginlimit.InFlight(2),
			ginlimit.WithLimitFunc(testkit.SingleLimit(source.Ask)))
		acquire := func(client string) *ginlimit.Reservation {
			slot := testkit.Must(p.Reserve(t.Context(), client, 1))
			return slot
		}
		var slots []*ginlimit.Reservation
		for client, n := range map[string]int{"free": 1, "paid": 3, "other": 2} {
			for range n {
				slot := acquire(client)
				require.True(t, slot.Result().Allowed, client)
				slots = append(slots, slot)
			}
			r := acquire(client).Result()
			require.Equal(t, []any{false, "api-c", ginlimit.InFlight(n), ginlimit.CauseInFlight},
				[]any{r.Allowed, r.Name, r.Limit, r.Cause})
		}
		source.Set("paid", ginlimit.InFlight(1), nil) // three hold a slot, and go on
		require.False(t, acquire("paid").Result().Allowed)
		require.Equal(t, 6, e.Limiter.Stats().Slots)
		source.Set("paid", ginlimit.InFlight(4), nil)
		more := acquire("paid")
		require.True(t, more.Result().Allowed)
		for _, slot := range append(slots, more) {
			slot.Release()
		}
		require.Zero(t, e.Limiter.Stats().Slots)
		testkit.Must(testkit.NewPolicy(t, e.Limiter, "two", ginlimit.WithLimitFunc(
			testkit.SingleLimit(source.Ask))).Reserve(t.Context(), "paid", 1))
	})
}

// TestFreeSlotsAreNotClosestToExhaustion: the header fields of one limit are of tokens, as long as slots are free.
func TestFreeSlotsAreNotClosestToExhaustion(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		testkit.Run(t, name, func(t *testing.T) {
			l := make(t)
			slots := l.Must("user", testkit.All(), ginlimit.InFlight(3))
			rec := testkit.Get(testkit.Serve(ginlimit.AllOf(l.Must("tokens", ginlimit.PerHour(100)), slots)), "/")
			require.Equal(t, []string{"100", "99"}, []string{rec.Header().Get("X-RateLimit-Limit"), testkit.Remaining(rec)})
			rec = testkit.Get(testkit.Serve(ginlimit.AllOf(l.Must("unlimited", ginlimit.Unlimited()), slots)), "/")
			require.Equal(t, []string{"3", "2"}, []string{rec.Header().Get("X-RateLimit-Limit"), testkit.Remaining(rec)})
		})
	}
}

// TestACostAboveTheShareOfAQuota waits until the period ends, and each row says so of its own limit.
func TestACostAboveTheShareOfAQuota(t *testing.T) {
	t.Parallel()
	month, day := ginlimit.CalendarMonth(nil, 1), ginlimit.CalendarDay(nil)
	monthly, daily := ginlimit.PerCalendar(5, month), ginlimit.PerCalendar(7, day)
	const toMonth, toDay = 31 * 24 * time.Hour, 24 * time.Hour // a bubble begins with a month
	for name, row := range map[string]struct {
		limits     []ginlimit.Limit
		cost       int
		limit      ginlimit.Limit // of the Result
		retryAfter []time.Duration
	}{
		"one quota":         {[]ginlimit.Limit{monthly}, 4, monthly, []time.Duration{toMonth}},
		"above the quota":   {[]ginlimit.Limit{monthly}, 6, monthly, []time.Duration{ginlimit.Never}},
		"two quotas":        {[]ginlimit.Limit{daily, monthly}, 4, monthly, []time.Duration{toDay, toMonth}},
		"above one of two":  {[]ginlimit.Limit{daily, monthly}, 6, monthly, []time.Duration{toDay, ginlimit.Never}},
		"a burst with room": {[]ginlimit.Limit{monthly, ginlimit.PerHour(100)}, 4, monthly, []time.Duration{toMonth, 0}},
		"a burst that forbids": {[]ginlimit.Limit{monthly, ginlimit.PerHour(3)}, 4, ginlimit.PerHour(3),
			[]time.Duration{toMonth, ginlimit.Never}},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var rows []ginlimit.Result
			var denied ginlimit.Result
			l := testkit.NewLimiter(t, b.Redis, ginlimit.WithReplicas(5), ginlimit.WithTimeout(50*time.Millisecond),
				ginlimit.WithFailureMode(ginlimit.FailLocal))
			p := testkit.NewPolicy(t, l, "p", ginlimit.WithLimits(row.limits...), testkit.ByUser(),
				ginlimit.WithCost(func(*gin.Context) int { return row.cost }),
				ginlimit.WithDeniedHandler(func(_ *gin.Context, r ginlimit.Result) { denied = r }),
				ginlimit.WithHeaderFunc(func(_ http.Header, all []ginlimit.Result) { rows = all }))
			b.Late.Store(true)
			testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("u"))
			require.Equal(t, row.limit, denied.Limit)
			require.Len(t, rows, len(row.retryAfter))
			for i, want := range append(row.retryAfter, slices.Max(row.retryAfter)) {
				r := append(rows, denied)[i]
				require.Equal(t, want == ginlimit.Never, r.RetryAfter == ginlimit.Never)
				require.Equal(t, want == ginlimit.Never, r.Cause == ginlimit.CauseNever)
				require.InDelta(t, want, r.RetryAfter, float64(time.Second))
			}
		})
	}
}
