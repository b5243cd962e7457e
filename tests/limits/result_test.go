package limits_test

import (
	"context"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSourceNames(t *testing.T) {
	t.Parallel()
	for source, want := range map[ginlimit.Source]string{ginlimit.FromRedis: "redis", ginlimit.FromCache: "cache",
		ginlimit.FromLease: "lease", ginlimit.FromLocal: "local", ginlimit.FromOpen: "open", ginlimit.FromPolicy: "policy",
		200: "unknown"} {
		assert.Equal(t, want, source.String())
	}
}

// TestResultIsNamed: by the policy whose limit it is of.
func TestResultIsNamed(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	hour, day, dry := ginlimit.PerHour(1), ginlimit.PerDay(2), ginlimit.WithDryRun()
	for name, row := range map[string]struct {
		own, all options  // of a policy, and of another one for everybody, if there is one
		want     []string // of each request
	}{
		"a policy":                   {options{ginlimit.PerDay(3), hour}, nil, []string{"own", "own"}},
		"prohibited":                 {options{ginlimit.PerDay(0)}, nil, []string{"own"}},
		"unlimited":                  {options{ginlimit.Unlimited()}, nil, []string{"own"}},
		"dry run":                    {options{hour, dry}, nil, []string{"own", "own"}},
		"another one that is closer": {options{ginlimit.PerDay(3)}, options{day}, []string{"all", "all", "all"}},
		"another one that is not":    {options{day}, options{ginlimit.PerDay(3)}, []string{"own", "own", "own"}},
		"another one that prohibits": {options{day}, options{ginlimit.PerDay(0)}, []string{"all"}},
		"a limit of another one": {options{ginlimit.PerHour(5)}, options{ginlimit.PerHour(9), day},
			[]string{"all", "all", "all"}},
		"another one, in a dry run": {options{day}, options{hour, dry}, []string{"all", "all", "own"}},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				var found, denied ginlimit.Result
				look := ginlimit.WithDeniedHandler(func(_ *gin.Context, r ginlimit.Result) { denied = r })
				policies := []*ginlimit.Policy{b.Limiter.Must("own", append(options{testkit.ByUser(), look}, row.own...)...)}
				if row.all != nil {
					policies = append(policies, b.Limiter.Must("all", append(options{testkit.All(), look}, row.all...)...))
				}
				find := func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }
				r := testkit.Serve(find, ginlimit.AllOf(policies...))
				for i, want := range row.want {
					rec := testkit.Get(r, "/", testkit.User("u"))
					require.Equal(t, want, found.Name, "request %d", i)
					if rec.Code == http.StatusTooManyRequests {
						require.Equal(t, want, denied.Name)
					}
				}
			})
		})
	}
}

// row is a row of a status. Its durations may be off by a second.
type row struct {
	limit  ginlimit.Limit
	left   int
	cause  ginlimit.Cause // 0 if it is allowed
	retry  time.Duration
	reset  time.Duration
	static bool // the limit is not counted
}

const second = float64(time.Second)

// requireStatus wants the rows of a policy's status of the client "alice", wherever it is decided.
func requireStatus(t *testing.T, b testkit.Backend, p *ginlimit.Policy, name string, want ...row) {
	t.Helper()
	decided := testkit.Must(b.Limiter.Peek(t.Context(), "where it is decided", ginlimit.PerHour(1)))
	got := testkit.Must(p.Status(t.Context(), "alice"))
	require.Len(t, got, len(want))
	for i, w := range want {
		r := got[i]
		require.Equal(t, w.limit, r.Limit, "row %d", i)
		if w.limit.InFlight > 0 {
			require.Equal(t, name+"-c", r.Name)
		} else {
			require.Equal(t, name, r.Name)
		}
		require.Zero(t, r.Granted)
		require.Equal(t, w.left, r.Remaining, "row %d: %+v", i, r)
		require.Equal(t, w.cause, r.Cause, "row %d: %+v", i, r)
		require.Equal(t, w.cause == 0, r.Allowed, "row %d: %+v", i, r)
		require.InDelta(t, w.retry, r.RetryAfter, second, "row %d: %+v", i, r)
		require.Equal(t, w.retry > 0, r.RetryAfter > 0, "row %d: %+v", i, r)
		require.InDelta(t, w.reset, r.ResetAfter, second, "row %d: %+v", i, r)
		if w.static {
			require.Equal(t, ginlimit.FromPolicy, r.Source, "row %d", i)
		} else {
			require.Equal(t, decided.Source, r.Source, "row %d", i)
		}
	}
}

// eastOfUTC has the day of a bubble end half a day after the bubble begins.
var eastOfUTC = time.FixedZone("east", 12*60*60)

// TestStatusHasARowForEachLimit in the order given, and takes nothing.
func TestStatusHasARowForEachLimit(t *testing.T) {
	t.Parallel()
	slots, hour, free := ginlimit.InFlight(3), ginlimit.PerHour(10), ginlimit.Unlimited()
	quota := ginlimit.PerCalendar(100, ginlimit.CalendarDay(eastOfUTC))
	fixed := ginlimit.PerMinute(5).WithAlgorithm(ginlimit.FixedWindow)
	sliding := ginlimit.PerMinute(50).WithAlgorithm(ginlimit.SlidingWindow)
	fresh := map[ginlimit.Limit]row{
		slots: {limit: slots, left: 3}, hour: {limit: hour, left: 10}, quota: {limit: quota, left: 100},
		fixed: {limit: fixed, left: 5}, sliding: {limit: sliding, left: 50},
		free: {limit: free, left: math.MaxInt, static: true},
	}
	used := map[ginlimit.Limit]row{ // by three tokens and a slot
		slots: {limit: slots, left: 2, reset: time.Second}, hour: {limit: hour, left: 7, reset: 18 * time.Minute},
		quota: {limit: quota, left: 97, reset: 12 * time.Hour}, fixed: {limit: fixed, left: 2, reset: time.Minute},
		sliding: {limit: sliding, left: 47, reset: time.Minute}, free: fresh[free],
	}
	for name, limits := range map[string][]ginlimit.Limit{
		"slots first":   {slots, hour, quota, fixed, free, sliding},
		"slots last":    {sliding, free, fixed, quota, hour, slots},
		"slots between": {quota, fixed, slots, sliding, hour, free},
		"tokens alone":  {fixed, hour},
		"slots alone":   {slots},
		"unlimited":     {free},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				p := testkit.NewPolicy(t, b.Limiter, "api", limits[0], ginlimit.WithLimits(limits[1:]...))
				rows := func(of map[ginlimit.Limit]row) (all []row) {
					for _, l := range limits {
						all = append(all, of[l])
					}
					return all
				}
				for range 2 {
					requireStatus(t, b, p, "api", rows(fresh)...)
				}
				slot := testkit.Must(p.Reserve(t.Context(), "alice", 3))
				require.True(t, slot.Result().Allowed)
				for range 2 {
					requireStatus(t, b, p, "api", rows(used)...)
				}
				require.LessOrEqual(t, b.Limiter.Stats().Slots, 1)
				slot.Release()
			})
		})
	}
}

// TestStatusDeniesRowByRow: what denies a token or a slot shows in its own row alone.
func TestStatusDeniesRowByRow(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		hour, day, slots := ginlimit.PerHour(2), ginlimit.PerDay(24), ginlimit.InFlight(1)
		p := testkit.NewPolicy(t, b.Limiter, "api", hour, slots, day)
		reserves(1)(t, p)
		requireStatus(t, b, p, "api", row{limit: hour, left: 1, reset: 30 * time.Minute}, row{limit: slots, left: 1},
			row{limit: day, left: 23, reset: time.Hour})
		slot := testkit.Reserve(t, p)
		noSlot := row{slots, 0, ginlimit.CauseInFlight, time.Second, time.Second, false}
		noToken := row{hour, 0, ginlimit.CauseRate, 30 * time.Minute, time.Hour, false}
		requireStatus(t, b, p, "api", noToken, noSlot, row{limit: day, left: 22, reset: 2 * time.Hour})
		slot.Release()
		time.Sleep(10 * time.Millisecond)
		requireStatus(t, b, p, "api", noToken, row{limit: slots, left: 1}, row{limit: day, left: 22, reset: 2 * time.Hour})
	})
}

// TestStatusOfABlock: every row of tokens is denied until it ends; slots are free or not.
func TestStatusOfABlock(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		hour, slots := ginlimit.PerHour(4), ginlimit.InFlight(2)
		fixed := ginlimit.PerMinute(5).WithAlgorithm(ginlimit.FixedWindow)
		quota := ginlimit.PerCalendar(100, ginlimit.CalendarDay(eastOfUTC))
		p := testkit.NewPolicy(t, b.Limiter, "api", hour, slots, fixed, quota)
		const block = 3 * time.Hour
		testkit.RequireMade(t, p.Block(t.Context(), "alice", block))
		const rate = ginlimit.CauseRate
		requireStatus(t, b, p, "api", row{hour, 0, rate, block, block + 45*time.Minute, false}, row{limit: slots, left: 2},
			row{fixed, 0, rate, block, block, false}, row{quota, 0, rate, block, block, false})
		testkit.RequireMade(t, p.Reset(t.Context(), "alice"))
		requireStatus(t, b, p, "api", row{limit: hour, left: 4}, row{limit: slots, left: 2}, row{limit: fixed, left: 5},
			row{limit: quota, left: 100})
	})
}

// TestStatusOfABan: every row of tokens is denied until it ends, also what is unlimited.
func TestStatusOfABan(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		hour, day, slots := ginlimit.PerHour(1), ginlimit.PerDay(24), ginlimit.InFlight(1)
		limits := []ginlimit.PolicyOption{slots, hour, ginlimit.Unlimited(), day}
		p := testkit.NewPolicy(t, b.Limiter, "api", append(limits, ginlimit.WithBan(10*time.Hour, 10*time.Hour))...)
		const ban = ginlimit.CauseBan
		reserves(1)(t, p)
		requireStatus(t, b, p, "api", row{limit: slots, left: 1},
			row{hour, 0, ginlimit.CauseRate, time.Hour, time.Hour, false},
			row{limit: ginlimit.Unlimited(), left: math.MaxInt, static: true}, row{limit: day, left: 23, reset: time.Hour})
		require.Equal(t, ban, reserves(1)(t, p).Cause)
		requireStatus(t, b, p, "api", row{slots, 1, ban, 10 * time.Hour, 0, false},
			row{hour, 0, ban, 10 * time.Hour, 10 * time.Hour, false},
			row{ginlimit.Unlimited(), 0, ban, 10 * time.Hour, 10 * time.Hour, false},
			row{day, 0, ban, 10 * time.Hour, 10 * time.Hour, false})
		require.Equal(t, ban, testkit.Reserve(t, p).Result().Cause, "though a slot is free")
	})
}

// TestStatusIsOneCall of Redis, whatever the policy has, and is no Event. What the deny cache knows
// does not answer it.
func TestStatusIsOneCall(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var calls, events atomic.Int64
		rdb := b.Connect(t)
		rdb.AddHook(testkit.EveryScript(func(send func() error) error { calls.Add(1); return send() }))
		l := testkit.NewLimiter(t, rdb, testkit.RemembersDenials(),
			ginlimit.WithObserver(func(context.Context, ginlimit.Event) { events.Add(1) }))
		hour, day := ginlimit.PerHour(2), ginlimit.PerDay(24)
		p := testkit.NewPolicy(t, l, "api", hour, day)
		takes(1, 1, 1)(t, p)
		require.Equal(t, ginlimit.FromCache, takes(1)(t, p).Source)
		guarded := testkit.NewPolicy(t, l, "guarded", hour, day, ginlimit.InFlight(3), ginlimit.WithBan(time.Hour, time.Hour),
			ginlimit.PerCalendar(9, ginlimit.CalendarDay(eastOfUTC)))
		for _, p := range []*ginlimit.Policy{p, guarded} {
			before := calls.Load()
			rows := testkit.Must(p.Status(t.Context(), "alice"))
			require.EqualValues(t, 1, calls.Load()-before)
			require.Equal(t, ginlimit.FromRedis, rows[0].Source)
		}
		require.Equal(t, 22, testkit.Must(p.Status(t.Context(), "alice"))[1].Remaining)
		seen := events.Load()
		testkit.Must(p.Status(t.Context(), "alice"))
		require.Equal(t, seen, events.Load())

		before := calls.Load()
		testkit.Must(testkit.NewPolicy(t, l, "free", ginlimit.Unlimited()).Status(t.Context(), "alice"))
		require.Equal(t, before, calls.Load(), "nothing is counted")
	})
}

// TestStatusErrors are those of Allow.
func TestStatusErrors(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	failing := testkit.NewPolicy(t, l, "plan", ginlimit.WithKey(func(*gin.Context) (string, error) { return "", nil }),
		ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return nil, ginlimit.ErrUnknownClient
		}))
	_, err := failing.Status(t.Context(), "alice")
	require.ErrorIs(t, err, ginlimit.ErrUnknownClient)
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerHour(1))
	_, err = p.Status(t.Context(), "")
	require.ErrorIs(t, err, ginlimit.ErrNoKey)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Status(ctx, "alice")
	require.ErrorIs(t, err, context.Canceled)
	for _, none := range []*ginlimit.Policy{nil, new(ginlimit.Policy)} {
		_, err = none.Status(t.Context(), "alice")
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	}
	require.NoError(t, l.Close())
	for _, limit := range []ginlimit.Limit{ginlimit.PerHour(1), ginlimit.Unlimited()} {
		_, err = testkit.NewPolicy(t, l, limit.String(), limit).Status(t.Context(), "alice")
		require.ErrorIs(t, err, ginlimit.ErrClosed)
	}
}
