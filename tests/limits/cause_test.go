package limits_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestCauseNames(t *testing.T) {
	t.Parallel()
	for cause, want := range map[ginlimit.Cause]string{0: "", ginlimit.CauseRate: "rate",
		ginlimit.CauseInFlight: "in_flight", ginlimit.CauseBan: "ban", ginlimit.CauseNever: "never",
		ginlimit.CauseList: "list", ginlimit.CauseShare: "share", ginlimit.CauseQueueFull: "queue_full",
		200: "unknown"} {
		assert.Equal(t, want, cause.String())
	}
}

// denial is a way to be denied.
type denial struct {
	opts  []ginlimit.PolicyOption
	ask   func(t *testing.T, p *ginlimit.Policy) ginlimit.Result
	cause ginlimit.Cause
	of    string // what the Result is of: "" is the policy, "-c" its slots
}

// takes returns the last Result of calls that take so many tokens of the client "alice".
func takes(costs ...int) func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
	return func(t *testing.T, p *ginlimit.Policy) (r ginlimit.Result) {
		t.Helper()
		var err error
		for _, n := range costs {
			r, err = p.AllowN(t.Context(), "alice", n)
			require.NoError(t, err)
		}
		return r
	}
}

// reserves is takes of a policy with slots, which it releases.
func reserves(costs ...int) func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
	return func(t *testing.T, p *ginlimit.Policy) (last ginlimit.Result) {
		t.Helper()
		for _, n := range costs {
			r := testkit.Must(p.Reserve(t.Context(), "alice", n))
			r.Release()
			last = r.Result()
		}
		return last
	}
}

// acquires takes a slot of the client "alice", and returns the Result of a second try.
func acquires(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
	t.Helper()
	slot := testkit.Reserve(t, p)
	defer slot.Release()
	require.True(t, slot.Result().Allowed)
	return testkit.Reserve(t, p).Result()
}

// requests sends so many requests of the user "alice", one after another, and returns the last one's Result.
func requests(n int) func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
	return func(t *testing.T, p *ginlimit.Policy) (found ginlimit.Result) {
		t.Helper()
		look := func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }
		router := testkit.Serve(look, p.Handler())
		for range n {
			testkit.Get(router, "/", testkit.User("alice"))
		}
		return found
	}
}

// requestInARequest sends a request of the user "alice" while another is served, and returns its Result.
func requestInARequest(t *testing.T, p *ginlimit.Policy) (found ginlimit.Result) {
	t.Helper()
	var router *gin.Engine
	look := func(c *gin.Context) {
		if c.Next(); c.GetHeader("X-Inner") != "" {
			found, _ = ginlimit.FromContext(c)
		}
	}
	router = testkit.Serve(look, p.Handler(), func(c *gin.Context) {
		if c.GetHeader("X-Inner") == "" {
			testkit.Get(router, "/", testkit.User("alice"), testkit.With("X-Inner", "1"))
		}
	})
	require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
	return found
}

// denials are all ways to be denied.
func denials() map[string]denial {
	type opts = []ginlimit.PolicyOption
	const rate, inFlight, ban, never = ginlimit.CauseRate, ginlimit.CauseInFlight, ginlimit.CauseBan, ginlimit.CauseNever
	hour, slot := ginlimit.PerHour(1), ginlimit.InFlight(1)
	bans, byUser := ginlimit.WithBan(24*time.Hour, 24*time.Hour), testkit.ByUser()
	return map[string]denial{
		"an empty bucket":         {opts{hour}, takes(1, 1), rate, ""},
		"a fixed window":          {opts{hour.WithAlgorithm(ginlimit.FixedWindow)}, takes(1, 1), rate, ""},
		"a sliding window":        {opts{hour.WithAlgorithm(ginlimit.SlidingWindow)}, takes(1, 1), rate, ""},
		"a calendar quota":        {opts{ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil))}, takes(1, 1), rate, ""},
		"one of several limits":   {opts{ginlimit.PerDay(9), hour, ginlimit.InFlight(9)}, reserves(1, 1), rate, ""},
		"too few tokens":          {opts{ginlimit.PerHour(3)}, takes(2, 2), rate, ""},
		"a floor":                 {opts{ginlimit.PerHour(3), ginlimit.WithFloor(2)}, takes(1, 1), rate, ""},
		"tokens, though it waits": {opts{hour, slot, ginlimit.WithQueue(1, time.Minute)}, reserves(1, 1), rate, ""},
		"a client's own limit":    {opts{testkit.LimitsFrom(hour), slot}, reserves(1, 1), rate, ""},
		"a dry run":               {opts{hour, byUser, ginlimit.WithDryRun()}, requests(2), rate, ""},
		"a block": {opts{ginlimit.PerHour(9)}, func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
			testkit.RequireMade(t, p.Block(t.Context(), "alice", time.Hour))
			return takes(1)(t, p)
		}, rate, ""},
		"AllowUpTo": {opts{hour}, func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
			takes(1)(t, p)
			r := testkit.Must(p.AllowUpTo(t.Context(), "alice", 9))
			return r
		}, rate, ""},
		"Reserve": {opts{hour}, func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
			takes(1)(t, p)
			r := testkit.Must(p.Reserve(t.Context(), "alice", 1))
			return r.Result()
		}, rate, ""},
		"Reserve, without a token": {opts{hour, ginlimit.InFlight(9)}, acquires, rate, ""},

		"no slot":                {opts{slot}, acquires, inFlight, "-c"},
		"no slot, with tokens":   {opts{ginlimit.PerHour(9), slot}, acquires, inFlight, "-c"},
		"no slot, in time":       {opts{slot, ginlimit.WithQueue(1, time.Second)}, acquires, inFlight, "-c"},
		"no slot for a request":  {opts{ginlimit.PerHour(9), slot, byUser}, requestInARequest, inFlight, "-c"},
		"no slot of a dry run":   {opts{slot, byUser, ginlimit.WithDryRun()}, requestInARequest, inFlight, "-c"},
		"no slot, under a plan":  {opts{slot, testkit.LimitsFrom(ginlimit.PerHour(9))}, acquires, inFlight, "-c"},
		"no slot, by a dry slot": {opts{slot, ginlimit.WithDryRun()}, acquires, inFlight, "-c"},

		"this denial bans":  {opts{hour, bans}, takes(1, 1), ban, ""},
		"an earlier denial": {opts{hour, bans}, takes(1, 1, 1), ban, ""},
		"a banned request":  {opts{hour, byUser, bans}, requests(3), ban, ""},
		"a ban, with tokens left": {opts{hour, bans}, func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
			takes(1, 1)(t, p)
			testkit.RequireMade(t, p.Refund(t.Context(), "alice", 1))
			return takes(1)(t, p)
		}, ban, ""},
		"a ban, with a free slot": {opts{hour, slot, bans}, func(t *testing.T, p *ginlimit.Policy) ginlimit.Result {
			reserves(1, 1)(t, p)
			return testkit.Reserve(t, p).Result()
		}, ban, ""},
		"a ban for want of a slot": {opts{ginlimit.PerHour(9), slot, bans}, acquires, ban, ""},

		"prohibited":                  {opts{ginlimit.PerHour(0)}, takes(1), never, ""},
		"prohibited beside others":    {opts{hour, slot, ginlimit.PerDay(0), bans}, reserves(1), never, ""},
		"a slot of what prohibits":    {opts{ginlimit.Prohibited(), slot}, nil, never, ""},
		"a client that is prohibited": {opts{testkit.LimitsFrom(ginlimit.PerHour(0)), slot}, reserves(1), never, ""},
		"prohibited by a floor":       {opts{testkit.LimitsFrom(hour), ginlimit.WithFloor(1)}, takes(1), never, ""},
		"more than the burst":         {opts{ginlimit.PerHour(3)}, takes(4), never, ""},
		"more than one burst":         {opts{ginlimit.PerHour(9), ginlimit.PerDay(3)}, takes(4), never, ""},
		"more than a floor leaves":    {opts{ginlimit.PerHour(3), ginlimit.WithFloor(1)}, takes(3), never, ""},
		"more, while it is banned":    {opts{hour, bans}, takes(1, 1, 2), never, ""},
		"a request that costs more": {opts{hour, byUser, ginlimit.WithCost(func(*gin.Context) int { return 2 })},
			requests(1), never, ""},

		"the deny list": {opts{hour, byUser, ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))},
			requests(1), ginlimit.CauseList, ""},
		"the deny list of a dry run": {opts{hour, byUser, ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0")),
			ginlimit.WithDryRun()}, requests(1), ginlimit.CauseList, ""},
	}
}

// wants has a policy deny for the row's cause.
func (d denial) wants(t *testing.T, l *testkit.Limiter, name string) {
	t.Helper()
	p := testkit.NewPolicy(t, l, name, d.opts...)
	ask := d.ask
	if ask == nil {
		ask = func(t *testing.T, p *ginlimit.Policy) ginlimit.Result { return testkit.Reserve(t, p).Result() }
	}
	r := ask(t, p)
	require.False(t, r.Allowed, "%s: %+v", name, r)
	require.Zero(t, r.Granted, name)
	require.Equal(t, d.cause, r.Cause, "%s: %s, %+v", name, r.Cause, r)
	require.Equal(t, name+d.of, r.Name)
	waits := d.cause != ginlimit.CauseNever && d.cause != ginlimit.CauseList
	require.Positive(t, r.RetryAfter, "%s: %+v", name, r)
	require.Equal(t, !waits, r.RetryAfter == ginlimit.Never, "%s: %+v", name, r)
}

// TestCause: a denial says why, wherever it is decided.
func TestCause(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		for name, row := range denials() {
			row.wants(t, b.Limiter, name)
		}
	})
}

// TestEventHasTheCause of the Result.
func TestEventHasTheCause(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		last := map[string]ginlimit.Event{} // by policy
		l := testkit.NewLocal(t, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
			assert.Equal(t, e.Outcome == ginlimit.OutcomeDenied, e.Cause != 0)
			last[e.Name] = e
		}))
		for name, row := range denials() {
			row.wants(t, l, name)
			require.Equal(t, row.cause, last[name].Cause, name)
			require.False(t, last[name].Allowed)
		}
	})
}

// TestAFullQueueIsACause; whoever waited in vain has the cause of what it lacked.
func TestAFullQueueIsACause(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "slots", ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Minute))
		defer testkit.Reserve(t, p).Release()
		waits := make(chan ginlimit.Result, 1)
		go func() { waits <- testkit.Reserve(t, p).Result() }()
		synctest.Wait()
		full := testkit.Reserve(t, p).Result()
		require.Equal(t, ginlimit.CauseQueueFull, full.Cause)
		require.Equal(t, ginlimit.FromPolicy, full.Source)
		require.Equal(t, ginlimit.CauseInFlight, (<-waits).Cause)
	})
}

// TestAFullQueueIsNoCauseOfAnother policy, which denies for want of tokens before the queue does.
func TestAFullQueueIsNoCauseOfAnother(t *testing.T) {
	t.Parallel()
	testkit.RunInBubble(t, "a rate", func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())
		slots := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(1), ginlimit.WithQueue(1, 2*time.Second))
		rate := testkit.NewPolicy(t, l, "rate", ginlimit.PerHour(1), ginlimit.WithQueue(5, time.Second))
		defer testkit.Reserve(t, slots).Release()
		takes(1)(t, rate)
		require.False(t, takes(1)(t, rate).Allowed)
		waits := make(chan ginlimit.Result, 1)
		go func() { waits <- testkit.Reserve(t, slots).Result() }()
		synctest.Wait()
		r := testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: slots, Client: "alice", N: 1},
			ginlimit.Charge{Policy: rate, Client: "alice", N: 1})).Result()
		require.Equal(t, []any{"rate", ginlimit.CauseRate}, []any{r.Name, r.Cause})
		require.Equal(t, ginlimit.CauseInFlight, (<-waits).Cause)
	})
}

// TestRememberedDenialKeepsItsCause: the deny cache gives it as Redis did.
func TestRememberedDenialKeepsItsCause(t *testing.T) {
	t.Parallel()
	type opts = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		opts opts
		want ginlimit.Cause
	}{
		"of a rate":  {opts{ginlimit.PerHour(1)}, ginlimit.CauseRate},
		"of a ban":   {opts{ginlimit.PerHour(1), ginlimit.WithBan(24*time.Hour, 24*time.Hour)}, ginlimit.CauseBan},
		"of a quota": {opts{ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil))}, ginlimit.CauseRate},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials()), "api", row.opts...)
			takes(1)(t, p)
			for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache} {
				r := takes(1)(t, p)
				require.Equal(t, source, r.Source)
				require.Equal(t, row.want, r.Cause)
			}
		})
	}
}

// TestNeverIsTheLongestWait: a loop that sleeps RetryAfter does not spin where no waiting helps.
func TestNeverIsTheLongestWait(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		never := func(r ginlimit.Result) {
			t.Helper()
			require.False(t, r.Allowed)
			require.Equal(t, ginlimit.Never, r.RetryAfter)
			require.Equal(t, ginlimit.CauseNever, r.Cause)
			require.Contains(t, string(testkit.Must(json.Marshal(r))), `"retry_after":null`)
			require.True(t, time.Now().Add(r.RetryAfter).After(time.Now().AddDate(200, 0, 0)), "it is added without an overflow")
		}
		none := testkit.NewPolicy(t, b.Limiter, "none", ginlimit.PerHour(0))
		never(testkit.Must(none.Allow(t.Context(), "k")))
		never(testkit.Must(none.AllowUpTo(t.Context(), "k", 2)))
		never(testkit.Must(none.Peek(t.Context(), "k")))
		never(testkit.Must(none.Status(t.Context(), "k"))[0])
		few := testkit.NewPolicy(t, b.Limiter, "few", ginlimit.PerHour(20), ginlimit.PerDay(30), ginlimit.InFlight(5))
		testkit.Must(few.Reserve(t.Context(), "k", 20)).Release()
		never(testkit.Must(few.Reserve(t.Context(), "k", 21)).Result()) // 20 come back within an hour
		banned := testkit.NewPolicy(t, b.Limiter, "banned", ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour))
		for range 2 {
			testkit.Must(banned.Allow(t.Context(), "k"))
		}
		never(testkit.Must(banned.AllowN(t.Context(), "k", 2)))
	})
}

// TestNeverBehindOthersThatWait, whose tokens come.
func TestNeverBehindOthersThatWait(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "api", ginlimit.PerHour(2), ginlimit.WithQueue(1, 2*time.Hour))
		testkit.Must(p.AllowN(t.Context(), "k", 2))
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = p.Reserve(ctx, "k", 1) }()
		synctest.Wait()
		for _, n := range []int{3, 1000} {
			r := testkit.Must(p.Reserve(t.Context(), "k", n)).Result()
			require.Equal(t, ginlimit.Never, r.RetryAfter)
			require.Equal(t, ginlimit.CauseNever, r.Cause)
		}
		leave()
	})
}

// TestLongWaitsAreNotNever, nor negative, however many wait before.
func TestLongWaitsAreNotNever(t *testing.T) {
	t.Parallel()
	const century = 100 * 365 * 24 * time.Hour
	for _, a := range append(testkit.WindowAlgorithms, ginlimit.TokenBucket) {
		testkit.RunSynctest(t, a.String(), func(t *testing.T) {
			l := testkit.NewLocal(t)
			limit := ginlimit.Limit{Rate: 1, Period: 2 * century, Algorithm: a}
			if a == ginlimit.TokenBucket {
				limit.Burst = 2
			}
			p := testkit.NewPolicy(t, l, "api", limit, ginlimit.WithQueue(1, time.Hour),
				ginlimit.WithKey(func(*gin.Context) (string, error) { return "k", nil }),
				ginlimit.WithCost(func(*gin.Context) int { return max(1, limit.Burst) }))
			router := testkit.Serve(p.Handler())
			require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
			ctx, leave := context.WithCancel(t.Context())
			for range 5 {
				go func() { _ = p.Wait(ctx, "k") }()
			}
			synctest.Wait()
			r := testkit.Must(p.Reserve(t.Context(), "k", max(1, limit.Burst))).Result()
			require.False(t, r.Allowed)
			require.Greater(t, r.RetryAfter, century)
			require.Less(t, r.RetryAfter, ginlimit.Never)
			require.GreaterOrEqual(t, r.ResetAfter, r.RetryAfter)
			require.Less(t, r.ResetAfter, ginlimit.Never)
			denied := testkit.Get(router, "/")
			require.Equal(t, http.StatusTooManyRequests, denied.Code)
			require.Len(t, denied.Header().Get("Retry-After"), len("9223372036"), "seconds")
			leave()
		})
	}
}

// TestHeaderFuncsHearOfNever, also of a client that is banned.
func TestHeaderFuncsHearOfNever(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		var rows []ginlimit.Result
		cost := 1
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerHour(2), ginlimit.PerDay(9),
			ginlimit.WithBan(time.Minute, time.Minute), ginlimit.WithCost(func(*gin.Context) int { return cost }),
			ginlimit.WithHeaderFunc(func(_ http.Header, limits []ginlimit.Result) { rows = limits }))
		router := testkit.Serve(p.Handler())
		for _, cost = range []int{1, 2, 3} { // the second is banned
			response := testkit.Get(router, "/")
			if cost < 3 {
				continue
			}
			require.Equal(t, http.StatusTooManyRequests, response.Code)
			require.NotContains(t, response.Header(), "Retry-After")
			require.Equal(t, ginlimit.Never, rows[0].RetryAfter)
			require.Equal(t, ginlimit.CauseNever, rows[0].Cause)
			require.Equal(t, time.Minute, rows[1].RetryAfter)
			require.Equal(t, ginlimit.CauseBan, rows[1].Cause)
		}
	})
}
