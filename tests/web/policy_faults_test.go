package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
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
		"no name":            {"", options{hour}, []string{"ginlimit: the policy has no name"}},
		"a nil option":       {"p", options{nil, hour}, []string{"ginlimit: option 1 is nil"}},
		"a nil *Limit":       {"p", options{hour, noLimit}, []string{"ginlimit: option 2 is nil"}},
		"a nil *Limit alone": {"p", options{noLimit}, []string{"ginlimit: option 1 is nil", none}},
		"no option":          {"p", nil, []string{none}},
		"no limit":           {"p", options{testkit.ByUser()}, []string{none}},
		"an empty list":      {"p", options{ginlimit.WithLimits()}, []string{none}},
		"the zero limit":     {"p", options{ginlimit.Limit{}}, []string{zero}},
		"none in flight":     {"p", options{hour, ginlimit.InFlight(0)}, []string{zero}},
		"fewer than none": {"p", options{hour, ginlimit.InFlight(-1)},
			[]string{invalid + "-1 in flight: in flight: want 1 to 1048576"}},
		"too many in flight": {"p", options{ginlimit.InFlight(1<<20 + 1)},
			[]string{invalid + "1048577 in flight: in flight: want 1 to 1048576"}},
		"the most":           {"p", options{ginlimit.InFlight(1 << 20)}, nil},
		"slots and a burst":  {"p", options{slots.WithBurst(3)}, []string{alone}},
		"slots and a window": {"p", options{slots.WithAlgorithm(ginlimit.FixedWindow)}, []string{alone}},
		"slots and a rate": {"p", options{with(hour, func(l *ginlimit.Limit) { l.InFlight = 2 })},
			[]string{alone}},
		"slots and a calendar": {"p", options{with(daily, func(l *ginlimit.Limit) { l.InFlight = 2 })},
			[]string{alone}},
		"two numbers of slots": {"p", options{slots, hour, ginlimit.InFlight(3)},
			[]string{invalid + "2 in flight and 3 in flight limit the same"}},
		"slots twice": {"p", options{slots, ginlimit.WithLimits(slots)},
			[]string{invalid + "2 in flight and 2 in flight limit the same"}},
		"a limit beside a function": {"p", options{hour, testkit.LimitsFrom(hour)}, []string{funcAll}},
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
		"one period, of which one is counted": {"p", options{ginlimit.PerMinute(-1), ginlimit.PerMinute(5)}, nil},
		"one period, of which one prohibits":  {"p", options{ginlimit.PerMinute(0), ginlimit.PerMinute(5)}, nil},
		"a queue for tokens":                  {"p", options{hour, ginlimit.WithQueue(1, time.Second)}, nil},
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
		testkit.Run(t, name, func(t *testing.T) {
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

// TestWithReplacesOptions of a request, and the buckets stay the same.
func TestWithReplacesOptions(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		plain := func(h ginlimit.Headers) ginlimit.Option { return ginlimit.WithHeaders(h) }
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerHour(100), testkit.ByUser(),
			ginlimit.WithCost(func(*gin.Context) int { return 2 }), plain(ginlimit.NoHeaders),
			ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("skip") != "" }))
		get := func(p *ginlimit.Policy, path string) (code int, left int, header http.Header) {
			w := testkit.Get(testkit.Serve(p.Handler()), path, testkit.User("alice"))
			r := testkit.Must(p.Peek(t.Context(), "alice"))
			return w.Code, r.Remaining, w.Header()
		}
		wants := func(p *ginlimit.Policy, path string, code, left int) http.Header {
			t.Helper()
			gotCode, gotLeft, header := get(p, path)
			require.Equal(t, []int{code, left}, []int{gotCode, gotLeft})
			return header
		}
		require.Empty(t, wants(p, "/", 200, 98).Get("X-RateLimit-Limit"))
		fields := wants(testkit.Derive(t, p, plain(ginlimit.XRateLimit)), "/", 200, 96)
		require.Equal(t, "100", fields.Get("X-RateLimit-Limit"))
		wants(testkit.Derive(t, p, ginlimit.WithCost(func(*gin.Context) int { return 7 })), "/", 200, 89)
		wants(testkit.Derive(t, p), "/?skip=1", 200, 89)
		wants(testkit.Derive(t, p, ginlimit.WithSkip(func(*gin.Context) bool { return false })), "/?skip=1", 200, 87)
		wants(testkit.Derive(t, p, ginlimit.WithRefund(func(*gin.Context) bool { return true })), "/", 200, 87)
		settled := testkit.Derive(t, p, ginlimit.WithSettle(func(*gin.Context) int { return 5 }))
		wants(settled, "/", 200, 82)
		wants(testkit.Derive(t, settled, ginlimit.WithRefund(func(*gin.Context) bool { return true })), "/", 200, 82)
		wants(testkit.Derive(t, p, ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))), "/", 403, 82)
		wants(testkit.Derive(t, p, ginlimit.WithFloor(81)), "/", 429, 1)
		floor := testkit.Derive(t, p, ginlimit.WithFloor(82),
			ginlimit.WithDeniedHandler(func(c *gin.Context, _ ginlimit.Result) {
				c.Status(http.StatusTeapot)
			}))
		wants(floor, "/", http.StatusTeapot, 0)
		wants(testkit.Derive(t, floor, ginlimit.WithFloor(0)), "/", 200, 80)
		dry := testkit.Derive(t, floor, ginlimit.WithDryRun())
		require.Equal(t, 18, testkit.Must(dry.Peek(t.Context(), "alice")).Remaining, "keys of its own")
		wants(p, "/", 200, 78)
	})
}

// TestWithKeepsSlotsAndBans of the policy that it was called on.
func TestWithKeepsSlotsAndBans(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "jobs", ginlimit.PerHour(4), ginlimit.InFlight(3),
			ginlimit.WithBan(24*time.Hour, 24*time.Hour))
		batch := testkit.Derive(t, p, ginlimit.InFlight(2), ginlimit.WithQueue(1, time.Second))
		reserve := func(p *ginlimit.Policy) ginlimit.Result {
			return testkit.Reserve(t, p).Result()
		}
		require.True(t, reserve(batch).Allowed)
		require.True(t, reserve(p).Allowed)
		start := time.Now()
		denied := reserve(batch)
		require.Equal(t, []any{"jobs-c", ginlimit.InFlight(2)}, []any{denied.Name, denied.Limit})
		require.Equal(t, time.Second, time.Since(start).Round(10*time.Millisecond))
		require.True(t, reserve(p).Allowed, "a third slot")
		require.Equal(t, ginlimit.CauseBan, reserve(p).Cause)
		require.Equal(t, ginlimit.CauseBan, reserve(batch).Cause)
	})
}

// TestWithKeepsADefaultLease as the limiter's, and what it needs of a burst: a policy derived from one with it may be
// in AllOf as that one may, and settles or refunds without a lease.
func TestWithKeepsADefaultLease(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, ginlimit.WithLease(time.Second))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerSecond(100), testkit.ByUser())
	other := testkit.NewPolicy(t, l, "other", ginlimit.PerHour(100), testkit.ByUser())
	own := testkit.NewPolicy(t, l, "own", ginlimit.PerSecond(100), testkit.ByUser(), ginlimit.WithLease(time.Second))
	refund := ginlimit.WithRefund(func(*gin.Context) bool { return true })
	require.ErrorContains(t, testkit.Err(own.With(refund)), "leave WithLease out")
	require.ErrorContains(t, testkit.PanicError(func() { ginlimit.AllOf(testkit.Derive(t, own), other) }), "WithLease")
	for name, derived := range map[string]*ginlimit.Policy{
		"as it was": p, "a floor": testkit.Derive(t, p, ginlimit.WithFloor(1)), "it refunds": testkit.Derive(t, p, refund),
		"it settles": testkit.Derive(t, p, ginlimit.WithSettle(func(*gin.Context) int { return 5 })),
	} {
		r := testkit.Must(derived.AllowN(t.Context(), "k", 51))
		require.Equal(t, ginlimit.CauseNever, r.Cause, "half of the burst is for leases")
		w := testkit.Get(testkit.Serve(ginlimit.AllOf(derived, other)), "/", testkit.User("alice"))
		require.Equal(t, http.StatusOK, w.Code, name)
	}
}

// TestWithAndAQueue: it is replaced, and kept if it is not.
func TestWithAndAQueue(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		l := testkit.NewLocal(t)
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(60).WithBurst(10))
		queued := testkit.Derive(t, p, ginlimit.WithQueue(1, 2*time.Second))
		kept := testkit.Derive(t, queued, ginlimit.WithFloor(2))
		longer := testkit.Derive(t, kept, ginlimit.WithQueue(1, time.Hour))
		testkit.Must(p.AllowN(t.Context(), "alice", 10))
		for i, row := range []struct {
			p       *ginlimit.Policy
			n       int
			allowed bool
			waits   time.Duration
		}{{p, 1, false, 0}, {queued, 1, true, time.Second}, {kept, 2, false, 0}, {longer, 2, true, 4 * time.Second}} {
			start := time.Now()
			require.Equal(t, row.allowed, testkit.Must(row.p.Reserve(t.Context(), "alice", row.n)).Result().Allowed, i)
			require.Equal(t, row.waits, time.Since(start), i)
		}
	})
}

// TestWithRefusesWhatNeedsOtherBuckets, and names every fault.
func TestWithRefusesWhatNeedsOtherBuckets(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	slots := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(2))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(10))
	for want, row := range map[string]struct {
		of  *ginlimit.Policy
		opt ginlimit.PolicyOption
	}{
		"WithKey":                      {p, ginlimit.WithKey(ginlimit.ByRoute)},
		"WithLimitFunc":                {p, testkit.LimitsFrom(ginlimit.PerHour(1))},
		"WithShares":                   {p, ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 })},
		"WithBan":                      {p, ginlimit.WithBan(time.Hour, time.Hour)},
		"WithLease":                    {p, ginlimit.WithLease(time.Second)},
		"5/h":                          {p, ginlimit.PerHour(5)},
		"10/h":                         {p, ginlimit.PerHour(10)},
		"1 in flight":                  {p, ginlimit.InFlight(1)},
		"3 in flight":                  {slots, ginlimit.InFlight(3)},
		"WithFloor(-1)":                {p, ginlimit.WithFloor(-1)},
		"WithFloor(10) leaves nothing": {p, ginlimit.WithFloor(10)},
		"option 1 is nil":              {p, nil},
		"WithQueue":                    {slots, ginlimit.WithQueue(0, time.Second)},
	} {
		derived, err := row.of.With(row.opt)
		require.Nil(t, derived, want)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, want)
		require.ErrorContains(t, err, want)
	}
	_, err := p.With(ginlimit.PerDay(5), ginlimit.WithKey(ginlimit.ByRoute), ginlimit.WithFloor(-1),
		ginlimit.WithSettle(func(*gin.Context) int { return 1 }),
		ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	for _, want := range []string{"5/d", "WithKey", "WithFloor(-1)", "WithSettle"} {
		require.ErrorContains(t, err, want)
	}
	for _, none := range []*ginlimit.Policy{nil, {}} {
		require.ErrorIs(t, testkit.Err(none.With(ginlimit.WithFloor(1))), ginlimit.ErrInvalidArgument)
	}
}

// TestWithKeepsATenant and the function of limits.
func TestWithKeepsATenant(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	shared := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(10),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 }))
	r := testkit.Must(testkit.Derive(t, shared.Share("b", 1), ginlimit.WithFloor(4)).AllowN(t.Context(), "k", 6))
	require.True(t, r.Allowed)

	lost := errors.New("lost")
	p := testkit.NewPolicy(t, l, "own", testkit.ByUser(),
		ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, lost }))
	require.ErrorIs(t, testkit.Err(testkit.Derive(t, p, ginlimit.WithFloor(1)).Allow(t.Context(), "k")), lost)
}

// What programs read of the errors of constructors.

// place is which option or argument an OptionError is about.
type place struct {
	index  int
	option string
}

// placesOf returns what each of joined errors is about, and requires that all are of one type.
func placesOf(t *testing.T, err error) (all []place) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	for _, err := range joined.Unwrap() {
		var fault *ginlimit.OptionError
		require.ErrorAs(t, err, &fault)
		require.ErrorIs(t, fault, ginlimit.ErrInvalidArgument)
		require.Equal(t, fault.Err.Error(), err.Error())
		require.Equal(t, http.StatusInternalServerError, ginlimit.ErrorStatus(err), "the application is at fault")
		all = append(all, place{fault.Index, fault.Option})
	}
	return all
}

// TestFaultsNameTheirOptions of every constructor, in the order of the texts.
func TestFaultsNameTheirOptions(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	settle := ginlimit.WithSettle(func(*gin.Context) int { return 1 })
	refund := ginlimit.WithRefund(func(*gin.Context) bool { return true })
	l := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithFloor(3)))
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	p := testkit.Must(l.Policy("api", ginlimit.PerHour(9), ginlimit.InFlight(2)))
	testkit.Must(l.NewPlans("plans", time.Minute, noPlans))
	policy := func(opts ...ginlimit.PolicyOption) error { return testkit.Err(l.Policy("p", opts...)) }
	hour, slots := ginlimit.PerHour(9), ginlimit.InFlight(2)
	shares := ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 })
	for name, row := range map[string]struct {
		err  error
		want []place
	}{
		"a limiter": {
			testkit.Err(ginlimit.NewLimiter((*redis.Client)(nil), ginlimit.WithTimeout(time.Second), nil, ginlimit.WithTimeout(0),
				settle, refund, ginlimit.WithDenyCache(-1))),
			[]place{{1, ""}, {2, "WithTimeout"}, {5, "WithDenyCache"}, {3, "WithSettle"}, {-1, "rdb"}},
		},
		"a local limiter": {
			testkit.Err(ginlimit.NewLocal(ginlimit.WithFloor(-1), ginlimit.WithPrefix("p"))),
			[]place{{0, "WithFloor"}, {1, "WithPrefix"}},
		},
		"a policy": {
			testkit.Err(l.Policy("", ginlimit.WithBan(0, time.Hour), hour, ginlimit.WithLimits(slots, slots, hour))),
			[]place{{0, "WithBan"}, {-1, "name"}, {2, "WithLimits"}, {2, "WithLimits"}},
		},
		"no limit":           {policy(ginlimit.WithFloor(0)), []place{{-1, "Limit"}}},
		"a name again":       {testkit.Err(l.Policy("api", hour)), []place{{-1, "name"}}},
		"a limit":            {policy(hour, ginlimit.Limit{}), []place{{1, "Limit"}}},
		"two that exclude":   {policy(hour, refund, settle), []place{{2, "WithSettle"}}},
		"a default floor":    {policy(ginlimit.PerHour(3)), []place{{-1, "WithFloor"}}},
		"its own":            {policy(hour, ginlimit.WithFloor(9)), []place{{1, "WithFloor"}}},
		"a list given twice": {policy(hour, ginlimit.WithAllowList(), ginlimit.WithAllowList()), []place{{2, "WithAllowList"}}},
		"too large to share": {policy(shares, ginlimit.PerHour(1<<25)), []place{{0, "WithShares"}}},
		"another policy": {
			testkit.Err(p.With(nil, ginlimit.WithKey(ginlimit.ByRoute), hour, ginlimit.InFlight(3), ginlimit.WithFloor(9))),
			[]place{{0, ""}, {1, "WithKey"}, {2, "Limit"}, {3, "Limit"}, {4, "WithFloor"}},
		},
		"plans": {
			testkit.Err(l.NewPlans("", 0, nil)), []place{{-1, "name"}, {-1, "life"}, {-1, "source"}},
		},
		"plans again": {testkit.Err(l.NewPlans("plans", time.Minute, noPlans)), []place{{-1, "name"}}},
	} {
		require.Equal(t, row.want, placesOf(t, row.err), "%s: %v", name, row.err)
	}
}

func noPlans(context.Context, string) ([]ginlimit.Limit, error) {
	return nil, ginlimit.ErrUnknownClient
}
