package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWithReplacesOptions of a request, and the buckets stay the same.
func TestWithReplacesOptions(t *testing.T) {
	t.Parallel()
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
		require.Equal(t, "100", wants(testkit.Derive(t, p, plain(ginlimit.XRateLimit)), "/", 200, 96).Get("X-RateLimit-Limit"))
		wants(testkit.Derive(t, p, ginlimit.WithCost(func(*gin.Context) int { return 7 })), "/", 200, 89)
		wants(testkit.Derive(t, p), "/?skip=1", 200, 89)
		wants(testkit.Derive(t, p, ginlimit.WithSkip(func(*gin.Context) bool { return false })), "/?skip=1", 200, 87)
		wants(testkit.Derive(t, p, ginlimit.WithRefund(func(*gin.Context) bool { return true })), "/", 200, 87)
		settled := testkit.Derive(t, p, ginlimit.WithSettle(func(*gin.Context) int { return 5 }))
		wants(settled, "/", 200, 82)
		wants(testkit.Derive(t, settled, ginlimit.WithRefund(func(*gin.Context) bool { return true })), "/", 200, 82)
		wants(testkit.Derive(t, p, ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))), "/", 403, 82)
		wants(testkit.Derive(t, p, ginlimit.WithFloor(81)), "/", 429, 1)
		floor := testkit.Derive(t, p, ginlimit.WithFloor(82), ginlimit.WithDeniedHandler(func(c *gin.Context, _ ginlimit.Result) {
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
	t.Parallel()
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "jobs", ginlimit.PerHour(4), ginlimit.InFlight(3),
			ginlimit.WithBan(24*time.Hour, 24*time.Hour))
		batch := testkit.Derive(t, p, ginlimit.InFlight(2), ginlimit.WithQueue(1, time.Second))
		reserve := func(p *ginlimit.Policy) ginlimit.Result {
			r := testkit.Must(p.Reserve(t.Context(), "alice", 1))
			return r.Result()
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

// TestWithKeepsWhatLeasesNeed of a burst, though the requests of what it returns have none.
func TestWithKeepsWhatLeasesNeed(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, ginlimit.WithLease(time.Second))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerSecond(100), testkit.ByUser())
	own := testkit.NewPolicy(t, l, "own", ginlimit.PerSecond(100), ginlimit.WithLease(time.Second))
	_, err := own.With(ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	require.ErrorContains(t, err, "leave WithLease out")
	for _, derived := range []*ginlimit.Policy{
		p, testkit.Derive(t, p, ginlimit.WithFloor(1)), testkit.Derive(t, p, ginlimit.WithRefund(func(*gin.Context) bool { return true })),
	} {
		r := testkit.Must(derived.AllowN(t.Context(), "k", 51))
		require.Equal(t, ginlimit.CauseNever, r.Cause, "half of the burst is for leases")
	}
}

// TestWithAndAQueue: it is replaced, and kept if it is not.
func TestWithAndAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		ginlimit.WithSettle(func(*gin.Context) int { return 1 }), ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	for _, want := range []string{"5/d", "WithKey", "WithFloor(-1)", "WithSettle"} {
		require.ErrorContains(t, err, want)
	}
	for _, none := range []*ginlimit.Policy{nil, {}} {
		require.ErrorIs(t, testkit.Err(none.With(ginlimit.WithFloor(1))), ginlimit.ErrInvalidArgument)
	}
}

// TestWithKeepsADefaultLease as the limiter's: a policy derived from one with it may be in AllOf as that one may,
// and settles without a lease.
func TestWithKeepsADefaultLease(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, ginlimit.WithLease(time.Second))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(100), testkit.ByUser())
	other := testkit.NewPolicy(t, l, "other", ginlimit.PerHour(100), testkit.ByUser())
	for name, derived := range map[string]*ginlimit.Policy{
		"as it was": p, "a floor": testkit.Derive(t, p, ginlimit.WithFloor(1)),
		"it settles": testkit.Derive(t, p, ginlimit.WithSettle(func(*gin.Context) int { return 5 })),
	} {
		w := testkit.Get(testkit.Serve(ginlimit.AllOf(derived, other)), "/", testkit.User("alice"))
		require.Equal(t, http.StatusOK, w.Code, name)
	}
	own := testkit.NewPolicy(t, l, "own", ginlimit.PerHour(100), testkit.ByUser(), ginlimit.WithLease(time.Second))
	require.ErrorContains(t, testkit.PanicError(func() { ginlimit.AllOf(testkit.Derive(t, own), other) }), "WithLease")
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
