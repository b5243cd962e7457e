package web_test

import (
	"context"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What a policy cannot be made of.

// requireInvalid wants an error of these lines, each of which is an ErrInvalidArgument.
func requireInvalid(t *testing.T, err error, lines ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, strings.Join(lines, "\n"), err.Error())
	var check func(err error) int
	check = func(err error) (leaves int) {
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok || !strings.Contains(err.Error(), "\n") {
			require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
			return 1
		}
		for _, err := range joined.Unwrap() {
			leaves += check(err)
		}
		return leaves
	}
	require.Equal(t, len(lines), check(err))
}

func TestFaultsOfPolicies(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	hour, slots := ginlimit.PerHour(5), ginlimit.InFlight(2)
	var noLimit *ginlimit.Limit
	const (
		invalid = "ginlimit: invalid argument: "
		none    = invalid + "no limit given"
		zero    = invalid + "none: the zero Limit; " +
			"a Rate of 0 prohibits only with a Period or a Calendar, and InFlight is at least 1"
		alone   = invalid + "2 in flight: requests in flight have no rate, period, burst, algorithm or calendar"
		funcAll = "ginlimit: WithLimitFunc does not go together with a limit but InFlight: the function returns all " +
			"of a client's limits; return the limit, or put it into a policy of its own: AllOf"
	)
	daily := ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil))
	with := func(l ginlimit.Limit, edit func(*ginlimit.Limit)) ginlimit.Limit { edit(&l); return l }
	for name, row := range map[string]struct {
		policy string
		opts   options
		want   []string
	}{
		"no name": {"", options{hour},
			[]string{"ginlimit: the policy has no name"}},
		"a nil option": {"p", options{nil, hour},
			[]string{"ginlimit: option 1 is nil"}},
		"a nil *Limit": {"p", options{hour, noLimit},
			[]string{"ginlimit: option 2 is nil"}},
		"a nil *Limit alone": {"p", options{noLimit},
			[]string{"ginlimit: option 1 is nil", none}},
		"no option": {"p", nil,
			[]string{none}},
		"no limit": {"p", options{testkit.ByUser()},
			[]string{none}},
		"an empty list": {"p", options{ginlimit.WithLimits()},
			[]string{none}},
		"the zero limit": {"p", options{ginlimit.Limit{}},
			[]string{zero}},
		"none in flight": {"p", options{hour, ginlimit.InFlight(0)},
			[]string{zero}},
		"fewer than none": {"p", options{hour, ginlimit.InFlight(-1)},
			[]string{invalid + "-1 in flight: in flight: want 1 to 1048576"}},
		"too many in flight": {"p", options{ginlimit.InFlight(1<<20 + 1)},
			[]string{invalid + "1048577 in flight: in flight: want 1 to 1048576"}},
		"the most": {"p", options{ginlimit.InFlight(1 << 20)}, nil},
		"slots and a burst": {"p", options{slots.WithBurst(3)},
			[]string{alone}},
		"slots and a window": {"p", options{slots.WithAlgorithm(ginlimit.FixedWindow)},
			[]string{alone}},
		"slots and a rate": {"p", options{with(hour, func(l *ginlimit.Limit) { l.InFlight = 2 })},
			[]string{alone}},
		"slots and a calendar": {"p", options{with(daily, func(l *ginlimit.Limit) { l.InFlight = 2 })},
			[]string{alone}},
		"two numbers of slots": {"p", options{slots, hour, ginlimit.InFlight(3)},
			[]string{invalid + "2 in flight and 3 in flight limit the same"}},
		"slots twice": {"p", options{slots, ginlimit.WithLimits(slots)},
			[]string{invalid + "2 in flight and 2 in flight limit the same"}},
		"a limit beside a function": {"p", options{hour, testkit.LimitsFrom(hour)},
			[]string{funcAll}},
		"a function beside a limit": {"p", options{testkit.LimitsFrom(hour), ginlimit.Unlimited()},
			[]string{funcAll}},
		"slots beside a function": {"p", options{slots, testkit.LimitsFrom(hour)}, nil},
		"an unknown algorithm": {"p", options{hour.WithAlgorithm(3)},
			[]string{invalid + "5/h unknown: no such algorithm; " +
				"want TokenBucket, FixedWindow or SlidingWindow"}},
		"a calendar's algorithm": {"p", options{daily.WithAlgorithm(ginlimit.FixedWindow)},
			[]string{invalid + "1/calendar-day fixed-window: a calendar quota has no algorithm"}},
		"a window with a burst": {"p", options{hour.WithBurst(9).WithAlgorithm(ginlimit.FixedWindow)},
			[]string{invalid + "5/h burst 9 fixed-window: a window has no burst of its own"}},
		"a lease of a sliding window": {"p",
			options{hour, ginlimit.PerDay(5).WithAlgorithm(ginlimit.SlidingWindow), ginlimit.WithLease(time.Second)},
			[]string{"ginlimit: WithLease does not go together with a SlidingWindow: " +
				"a token counts from when it was used; use another algorithm"}},
		"one period, two algorithms": {"p", options{hour, hour.WithAlgorithm(ginlimit.FixedWindow)}, nil},
		"one period, one algorithm": {"p", options{hour, hour.WithBurst(7)},
			[]string{invalid + "5/h and 5/h burst 7 have the same period"}},
		"a queue for tokens": {"p", options{hour, ginlimit.WithQueue(1, time.Second)}, nil},
		"a queue without anything to wait for": {"p", options{ginlimit.Unlimited(), ginlimit.WithQueue(1, time.Second)},
			[]string{"ginlimit: WithQueue does not go together with no limit that counts: " +
				"there is nothing to wait for; leave WithQueue out"}},
		"a floor of all": {"p", options{hour, ginlimit.WithFloor(5)},
			[]string{"ginlimit: WithFloor(5) leaves nothing of 5/h"}},
		"all at once": {"", options{nil, ginlimit.WithKey(nil),
			slots.WithBurst(1), slots, slots, hour, testkit.LimitsFrom(hour), noLimit},
			[]string{"ginlimit: option 1 is nil", "ginlimit: WithKey: the function is nil", "ginlimit: option 8 is nil", funcAll,
				"ginlimit: the policy has no name", alone,
				invalid + "2 in flight and 2 in flight limit the same"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := testkit.NewLocal(t)
			p, err := limiter.Policy(row.policy, row.opts...)
			if row.want == nil {
				require.NoError(t, err)
				require.NotNil(t, p)
				return
			}
			require.Nil(t, p)
			requireInvalid(t, err, row.want...)
			require.Equal(t, err.Error(), testkit.PanicText(t, func() { limiter.Handler(row.policy, row.opts...) }))
		})
	}
}

// TestLimitByPointer is the limit that it points to when the policy is made.
func TestLimitByPointer(t *testing.T) {
	t.Parallel()
	limit := ginlimit.PerHour(2)
	p := testkit.NewPolicy(t, testkit.NewLocal(t), "p", &limit)
	limit.Rate = 9
	require.Equal(t, 2, testkit.Must(p.Peek(t.Context(), "192.0.2.1")).Remaining)
}

// TestFaultsOfLimiters, of both kinds.
func TestFaultsOfLimiters(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	bad := []ginlimit.LimiterOption{nil, ginlimit.WithFloor(-1)}
	want := []string{"ginlimit: option 1 is nil", "ginlimit: WithFloor(-1): want at least 0"}
	_, err := ginlimit.NewLimiter(rdb, bad...)
	requireInvalid(t, err, want...)
	_, err = ginlimit.NewLocal(bad...)
	requireInvalid(t, err, want...)
	err = testkit.PanicError(func() {
		ginlimit.New(rdb, "p", ginlimit.Per(math.MaxInt32, 36_000*time.Hour), ginlimit.WithFloor(-1))
	})
	requireInvalid(t, err, want[1], "ginlimit: invalid argument: 2147483647/1500d is too large to be counted exactly")
}

// TestTwoNumbersOfSlotsFromALimitFunc are an error of each call and request, and take nothing.
func TestTwoNumbersOfSlotsFromALimitFunc(t *testing.T) {
	t.Parallel()
	var failed error
	p := testkit.NewPolicy(t, testkit.NewLocal(t), "p", testkit.ByUser(), ginlimit.InFlight(1),
		ginlimit.WithLimitFunc(func(_ context.Context, client string) ([]ginlimit.Limit, error) {
			if client == "plain" {
				return []ginlimit.Limit{ginlimit.PerHour(5)}, nil
			}
			return []ginlimit.Limit{ginlimit.PerHour(5), ginlimit.InFlight(2), ginlimit.InFlight(3)}, nil
		}),
		ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
			failed = err
			c.AbortWithStatus(ginlimit.ErrorStatus(err))
		}))
	ctx, n := t.Context(), 1
	for name, method := range methodsOf(p, &ctx, &n) {
		err := method("u")
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
		require.EqualError(t, err, "ginlimit: invalid argument: 2 in flight and 3 in flight limit the same", name)
	}
	slot, err := p.Reserve(ctx, "u", 1)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	require.Nil(t, slot)
	r := testkit.Serve(p.Handler())
	require.Equal(t, http.StatusInternalServerError, testkit.Get(r, "/", testkit.User("u")).Code)
	require.ErrorIs(t, failed, ginlimit.ErrInvalidArgument)
	require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.User("plain")).Code)
}
