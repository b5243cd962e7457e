package web_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// settlesUsed settles a request to the number in its header Used.
func settlesUsed() ginlimit.PolicyOption {
	return ginlimit.WithSettle(func(c *gin.Context) int { return testkit.Must(strconv.Atoi(c.GetHeader("Used"))) })
}

// onBothStores runs a test on a limiter that counts in Redis, and on one that counts in the process. The test gets what
// their observer sees.
func onBothStores(
	t *testing.T, name string, test func(t *testing.T, l *testkit.Limiter, seen *events, source ginlimit.Source),
	opts ...ginlimit.LimiterOption,
) {
	testkit.RunInBubble(t, name+" in Redis", func(t *testing.T, b *testkit.Bubble) {
		seen := &events{}
		opts := append(opts, ginlimit.WithObserver(seen.observe))
		test(t, testkit.NewLimiter(t, b.Redis, opts...), seen, ginlimit.FromRedis)
	})
	testkit.RunSynctest(t, name+" in the process", func(t *testing.T) {
		seen := &events{}
		opts := append(opts, ginlimit.WithObserver(seen.observe))
		test(t, testkit.NewLocal(t, opts...), seen, ginlimit.FromLocal)
	})
}

// untimed returns what was seen since, without how long it took.
func (e *events) untimed() []ginlimit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	for i := range all {
		all[i].Duration = 0
	}
	return all
}

// TestASettlementMakesAnEvent of what the work took and of what is left, after the Event of the decision.
func TestASettlementMakesAnEvent(t *testing.T) {
	t.Parallel()
	refund := func(back bool) ginlimit.PolicyOption {
		return ginlimit.WithRefund(func(*gin.Context) bool { return back })
	}
	for name, row := range map[string]struct {
		option          ginlimit.PolicyOption
		used            string
		cost, remaining int // of the settlement
		reset           time.Duration
	}{
		"less":      {settlesUsed(), "4", 4, 96, 144 * time.Second},
		"nothing":   {settlesUsed(), "0", 0, 100, 0},
		"the same":  {settlesUsed(), "10", 10, 90, 6 * time.Minute},
		"more":      {settlesUsed(), "25", 25, 75, 15 * time.Minute},
		"a debt":    {settlesUsed(), "130", 130, 0, 78 * time.Minute},
		"a refund":  {refund(true), "", 0, 100, 0},
		"no refund": {refund(false), "", 10, 90, 6 * time.Minute},
	} {
		onBothStores(t, name, func(t *testing.T, l *testkit.Limiter, seen *events, source ginlimit.Source) {
			ten := ginlimit.WithCost(func(*gin.Context) int { return 10 })
			p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100), ten, row.option, testkit.ByUser())
			router := testkit.Serve(p.Handler())
			require.Equal(t, 200, testkit.Get(router, "/", testkit.User("u"), testkit.With("Used", row.used)).Code)
			decided := ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerHour(100),
				Remaining: 90, ResetAfter: 6 * time.Minute, Source: source, Cost: 10, Charged: 10}
			settled := decided
			settled.Outcome, settled.Cost, settled.Charged = ginlimit.OutcomeSettled, row.cost, row.cost-10
			settled.Remaining, settled.ResetAfter = row.remaining, row.reset
			require.Equal(t, []ginlimit.Event{decided, settled}, seen.untimed())
		})
	}
}

// TestASettlementSaysWhatIsLeft under each kind of limit, as Peek does then.
func TestASettlementSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]ginlimit.Limit{
		"token bucket": {ginlimit.PerMinute(100).WithBurst(50)},
		"fixed":        {ginlimit.PerMinute(100).WithAlgorithm(ginlimit.FixedWindow)},
		"sliding":      {ginlimit.PerMinute(100).WithAlgorithm(ginlimit.SlidingWindow)},
		"calendar":     {ginlimit.PerCalendar(100, ginlimit.CalendarDay(nil))},
		"several": {ginlimit.PerMinute(100), ginlimit.PerHour(120).WithAlgorithm(ginlimit.SlidingWindow),
			ginlimit.PerCalendar(130, ginlimit.CalendarMonth(nil, 1)), ginlimit.InFlight(3)},
	} {
		onBothStores(t, name, func(t *testing.T, l *testkit.Limiter, seen *events, source ginlimit.Source) {
			p := testkit.NewPolicy(t, l, "p", ginlimit.WithLimits(limits...), ginlimit.WithFloor(5))
			for _, actual := range []int{3, 12, 0, 7, 20} {
				before := testkit.Must(p.Reserve(t.Context(), "u", 2))
				time.Sleep(10 * time.Millisecond)
				r := testkit.Must(p.Reserve(t.Context(), "u", 10))
				seen.untimed()
				require.NoError(t, r.Settle(t.Context(), actual))
				all := seen.untimed()
				require.Len(t, all, 1)
				left := testkit.Must(p.Peek(t.Context(), "u"))
				want := ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeSettled, Allowed: true, Limit: left.Limit,
					Remaining: left.Remaining, ResetAfter: left.ResetAfter, Source: source, Cost: actual, Charged: actual - 10}
				require.Equal(t, want, all[0], "%d of 10", actual)
				before.Release()
				r.Release()
			}
		})
	}
}

// TestASettlementSaysWhatIsLeftOfAShare, to a tenant beside another.
func TestASettlementSaysWhatIsLeftOfAShare(t *testing.T) {
	t.Parallel()
	onBothStores(t, "", func(t *testing.T, l *testkit.Limiter, seen *events, _ ginlimit.Source) {
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerMinute(1000), ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 }))
		mine, other := p.Share("a", 1), p.Share("b", 2)
		testkit.Must(other.Reserve(t.Context(), "account", 100))
		for _, actual := range []int{30, 180, 0, 100} {
			r := testkit.Must(mine.Reserve(t.Context(), "account", 100))
			require.True(t, r.Result().Allowed)
			seen.untimed()
			require.NoError(t, r.Settle(t.Context(), actual))
			require.Equal(t, testkit.Must(mine.Peek(t.Context(), "account")).Remaining, seen.untimed()[0].Remaining, actual)
		}
	})
}

// TestWhichSettlementsMakeAnEvent: those of what was taken and is known, once, each of its own policy and client.
func TestWhichSettlementsMakeAnEvent(t *testing.T) {
	t.Parallel()
	var seen []string
	note := ginlimit.WithClientObserver(func(_ context.Context, e ginlimit.Event, client string) {
		if e.Outcome == ginlimit.OutcomeSettled {
			seen = append(seen, e.Name+" "+client+" "+strconv.Itoa(e.Cost)+map[bool]string{true: ", dry run"}[e.DryRun])
		}
	})
	l := testkit.NewLocal(t, note, testkit.ByUser())
	p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100), settlesUsed())
	q := testkit.NewPolicy(t, l, "q", ginlimit.PerHour(5), settlesUsed(), ginlimit.WithKey(ginlimit.ByHeader("Team")))
	free := testkit.NewPolicy(t, l, "free", ginlimit.Unlimited(), settlesUsed())
	dry := testkit.NewPolicy(t, l, "dry", ginlimit.PerHour(5), settlesUsed(), ginlimit.WithDryRun())
	plain := testkit.NewPolicy(t, l, "plain", ginlimit.PerHour(100))
	router := testkit.Serve(ginlimit.AllOf(p, q, free, dry, plain))
	get := func(used string) {
		testkit.Get(router, "/", testkit.User("u"), testkit.With("Team", "t"), testkit.With("Used", used))
	}
	want := func(what string, events ...string) {
		t.Helper()
		require.ElementsMatch(t, events, seen, what)
		seen = nil
	}
	get("2")
	want("of each policy that settles", "p u 2", "q t 2", "free u 2", "dry u 2, dry run")
	get("-1")
	want("nothing is known")
	get("6")
	want("", "p u 6", "q t 6", "free u 6", "dry u 6, dry run")
	get("1")
	want("it was denied, and took nothing but in the dry run, which is not settled")

	ctx := t.Context()
	r := testkit.Must(ginlimit.ReserveAll(ctx, ginlimit.Charge{Policy: p, Client: "a", N: 9}, ginlimit.Charge{Policy: plain, Client: "b", N: 1}))
	require.NoError(t, r.Settle(ctx, 4, 5))
	want("of each charge", "p a 4", "plain b 5")
	require.NoError(t, r.Settle(ctx, 1, 1))
	require.NoError(t, r.Cancel(ctx))
	want("once")
	testkit.Must(plain.Reserve(ctx, "b", 1)).Release()
	want("without Settle the estimate stands")
	require.NoError(t, testkit.Must(plain.Reserve(ctx, "b", 3)).Cancel(ctx))
	want("a cancellation is a settlement to nothing", "plain b 0")
	require.NoError(t, testkit.Must(plain.Reserve(ctx, "b", 101)).Cancel(ctx))
	want("nothing was taken")
	require.NoError(t, plain.Refund(ctx, "b", 1))
	want("a refund is of no charge")
	require.NoError(t, testkit.Must(dry.Reserve(ctx, "c", 2)).Settle(ctx, 1))
	want("", "dry c 1, dry run")
}

// TestASettlementThatFailsMakesNoEvent: the estimate stands, and the error is in the context.
func TestASettlementThatFailsMakesNoEvent(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		seen := &events{}
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithObserver(seen.observe), ginlimit.WithFailureMode(ginlimit.FailLocal),
			ginlimit.WithTimeout(100*time.Millisecond))
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100), testkit.ByUser(),
			ginlimit.WithSettle(func(*gin.Context) int { b.Late.Store(true); return 3 }))
		var errs []*gin.Error
		app := testkit.Serve(func(c *gin.Context) { c.Next(); errs = c.Errors }, p.Handler())
		testkit.Get(app, "/", testkit.User("u"))
		require.Len(t, seen.untimed(), 1)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], ginlimit.ErrUnavailable)

		for range 2 { // what this process decided is settled in it
			testkit.Get(app, "/", testkit.User("u"))
		}
		all := seen.untimed()
		require.Len(t, all, 4)
		require.Equal(t, ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeSettled, Allowed: true, Limit: ginlimit.PerHour(100),
			Remaining: 94, ResetAfter: 216*time.Second - 110*time.Millisecond, Source: ginlimit.FromLocal, Cost: 3, Charged: 2}, all[3])
	})
}

// TestASettlementOfACallerThatHasLeftMakesAnEvent when it is carried out.
func TestASettlementOfACallerThatHasLeftMakesAnEvent(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		seen := &events{}
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithObserver(seen.observe))
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100))
		r := testkit.Must(p.Reserve(t.Context(), "u", 10))
		seen.untimed()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Settle(ctx, 4), context.Canceled)
		synctest.Wait()
		require.Equal(t, []ginlimit.Event{{Name: "p", Outcome: ginlimit.OutcomeSettled, Allowed: true, Limit: ginlimit.PerHour(100),
			Remaining: 96, ResetAfter: 144 * time.Second, Source: ginlimit.FromRedis, Cost: 4, Charged: -6}}, seen.untimed())
	})
}

// TestADryRunThatDeniesSettlesNothing, as it took nothing: a reservation of others beside it makes no Event of it.
func TestADryRunThatDeniesSettlesNothing(t *testing.T) {
	t.Parallel()
	onBothStores(t, "p", func(t *testing.T, l *testkit.Limiter, seen *events, _ ginlimit.Source) {
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(100))
		for burst, want := range map[int][]string{5: {"p"}, 50: {"p", "50"}} {
			name := strconv.Itoa(burst)
			trial := testkit.NewPolicy(t, l, name, ginlimit.PerHour(burst), ginlimit.WithDryRun())
			r := testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: p, Client: "u", N: 10},
				ginlimit.Charge{Policy: trial, Client: "u", N: 10}))
			require.True(t, r.OK())
			seen.untimed()
			require.NoError(t, r.Settle(t.Context(), 7, 7))
			var settled []string
			for _, e := range seen.untimed() {
				require.Zero(t, e.Cause)
				settled = append(settled, e.Name)
			}
			require.Equal(t, want, settled)
		}
	})
}
