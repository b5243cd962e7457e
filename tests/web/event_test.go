package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What an Event says of each way that a request can go.

// way is a way that a request can go.
type way struct {
	local  bool // without Redis, by NewLocal
	opts   []ginlimit.PolicyOption
	before int                 // requests before
	held   int                 // slots that are held
	edit   func(*http.Request) // of the request
	late   bool                // Redis is
	closed bool                // the limiter is
	code   int
	want   ginlimit.Event // without its name
}

// ways are the ways that a request of the client "u" can go.
func ways() map[string]way {
	type options = []ginlimit.PolicyOption
	hour := ginlimit.PerHour(1)
	key := func(err error) ginlimit.Option {
		return ginlimit.WithKey(func(*gin.Context) (string, error) { return "", err })
	}
	limits := func(err error, all ...ginlimit.Limit) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return all, err })
	}
	cost := func(n int) ginlimit.Option { return ginlimit.WithCost(func(*gin.Context) int { return n }) }
	failed := func(reason ginlimit.Reason, cost int) ginlimit.Event {
		return ginlimit.Event{Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Reason: reason, Cost: cost}
	}
	allowed := func(limit ginlimit.Limit, source ginlimit.Source) ginlimit.Event {
		return ginlimit.Event{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Source: source, Cost: 1, Charged: 1}
	}
	denied := func(limit ginlimit.Limit, source ginlimit.Source, cause ginlimit.Cause) ginlimit.Event {
		return ginlimit.Event{Outcome: ginlimit.OutcomeDenied, Limit: limit, Source: source, Cause: cause, Cost: 1}
	}
	with := func(e ginlimit.Event, edit func(*ginlimit.Event)) ginlimit.Event { edit(&e); return e }
	costs := func(n int) func(*ginlimit.Event) {
		return func(e *ginlimit.Event) { e.Cost, e.Charged = n, min(n, e.Charged) }
	}
	because := func(reason ginlimit.Reason) func(*ginlimit.Event) {
		return func(e *ginlimit.Event) { e.Reason = reason }
	}
	skipped := ginlimit.Event{Outcome: ginlimit.OutcomeSkipped, Allowed: true, Source: ginlimit.FromPolicy}
	listed := ginlimit.Event{Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList}
	ended := func(r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		*r = *r.WithContext(ctx)
	}
	many, all := ginlimit.PerHour(10_000), netip.MustParsePrefix("0.0.0.0/0")
	ban, errOwn := ginlimit.WithBan(10*time.Hour, 20*time.Hour), errors.New("its own")
	return map[string]way{
		"allowed by Redis": {opts: options{hour}, code: 200, want: allowed(hour, ginlimit.FromRedis)},
		"allowed by a lease": {opts: options{many, ginlimit.WithLease(time.Minute)}, before: 4, code: 200,
			want: allowed(many, ginlimit.FromLease)},
		"allowed by a plan": {opts: options{limits(nil, hour)}, code: 200, want: allowed(hour, ginlimit.FromRedis)},
		"unlimited": {opts: options{ginlimit.Unlimited()}, code: 200,
			want: allowed(ginlimit.Unlimited(), ginlimit.FromPolicy)},
		"allowed without Redis": {opts: options{hour}, late: true, code: 200,
			want: with(allowed(hour, ginlimit.FromLocal), because("late"))},
		"open": {opts: options{hour, ginlimit.WithFailureMode(ginlimit.FailOpen)}, late: true, code: 200,
			want: with(allowed(hour, ginlimit.FromOpen), because("late"))},
		"free": {opts: options{hour, cost(0)}, code: 200, want: with(allowed(hour, ginlimit.FromRedis), costs(0))},

		"denied by Redis": {opts: options{hour}, before: 1, code: 429,
			want: denied(hour, ginlimit.FromRedis, ginlimit.CauseRate)},
		"denied by the cache": {opts: options{hour}, before: 2, code: 429,
			want: denied(hour, ginlimit.FromCache, ginlimit.CauseRate)},
		"denied without Redis": {opts: options{hour}, late: true, before: 1, code: 429,
			want: with(denied(hour, ginlimit.FromLocal, ginlimit.CauseRate), because("late"))},
		"denied by a floor": {opts: options{ginlimit.PerHour(2), ginlimit.WithFloor(1)}, before: 1, code: 429,
			want: denied(ginlimit.PerHour(2), ginlimit.FromRedis, ginlimit.CauseRate)},
		"denied by a slot": {opts: options{many, ginlimit.InFlight(1)}, held: 1, code: 429,
			want: denied(ginlimit.InFlight(1), ginlimit.FromRedis, ginlimit.CauseInFlight)},
		"denied by a slot beside a plan": {opts: options{ginlimit.InFlight(1), limits(nil, many)}, held: 1, code: 429,
			want: denied(ginlimit.InFlight(1), ginlimit.FromRedis, ginlimit.CauseInFlight)},
		"denied after a queue": {opts: options{ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Second)}, held: 1, code: 429,
			want: denied(ginlimit.InFlight(1), ginlimit.FromRedis, ginlimit.CauseInFlight)},
		"denied, and banned": {opts: options{hour, ban}, before: 1, code: 429,
			want: denied(hour, ginlimit.FromRedis, ginlimit.CauseBan)},
		"banned before": {local: true, opts: options{hour, ban}, before: 2, code: 429,
			want: denied(hour, ginlimit.FromLocal, ginlimit.CauseBan)},
		"a cost above the burst": {opts: options{hour, cost(2)}, code: 429,
			want: with(denied(hour, ginlimit.FromRedis, ginlimit.CauseNever), costs(2))},
		"prohibited": {opts: options{ginlimit.Prohibited()}, code: 429,
			want: denied(ginlimit.Prohibited(), ginlimit.FromPolicy, ginlimit.CauseNever)},
		"prohibited by a plan": {opts: options{limits(nil, ginlimit.PerDay(0))}, code: 429,
			want: denied(ginlimit.PerDay(0), ginlimit.FromPolicy, ginlimit.CauseNever)},
		"on the deny list": {opts: options{hour, ginlimit.WithDenyList(all)}, code: 403, want: listed},

		"skipped": {opts: options{hour, ginlimit.WithSkip(func(*gin.Context) bool { return true })}, code: 200,
			want: skipped},
		"on the allow list": {opts: options{hour, ginlimit.WithAllowList(all)}, code: 200, want: skipped},
		"on both lists": {opts: options{hour, ginlimit.WithAllowList(all), ginlimit.WithDenyList(all)}, code: 200,
			want: skipped},

		"no key": {opts: options{hour, key(nil)}, code: 500, want: failed("no_key", 1)},
		"a malformed key": {opts: options{hour, key(ginlimit.ErrBadRequest)}, code: 400,
			want: failed("bad_request", 1)},
		"a broken key": {opts: options{hour, key(errOwn)}, code: 500, want: failed("key_func", 1)},
		"a key function that is cut off": {opts: options{hour, key(context.Canceled)}, code: 503,
			want: failed("key_func", 1)},
		"a slow plan": {opts: options{limits(context.DeadlineExceeded)}, code: 503,
			want: failed("limit_func", 1)},
		"plans are unavailable": {opts: options{limits(errors.Join(ginlimit.ErrUnavailable, context.DeadlineExceeded))},
			code: 503, want: failed("limit_func", 1)},
		"no address for a list": {opts: options{hour, ginlimit.WithDenyList(all)}, edit: testkit.From("@"), code: 500,
			want: failed("no_key", 0)},
		"an unknown client": {opts: options{limits(ginlimit.ErrUnknownClient)}, code: 403, want: failed("unknown_client", 1)},
		"a broken plan":     {opts: options{limits(errOwn)}, code: 500, want: failed("limit_func", 1)},
		"two numbers of slots in a plan": {opts: options{limits(nil, hour, ginlimit.InFlight(1), ginlimit.InFlight(2))},
			code: 500,
			want: failed("invalid_argument", 1)},
		"no limit":        {opts: options{limits(nil)}, code: 500, want: failed("invalid_argument", 1)},
		"a negative cost": {opts: options{hour, cost(-1)}, code: 500, want: failed("invalid_argument", -1)},
		"the client left": {opts: options{hour}, edit: ended, code: 503, want: failed("canceled", 1)},
		"a closed limiter": {opts: options{hour, ginlimit.WithFailureMode(ginlimit.FailClosed)}, closed: true, code: 503,
			want: failed("closed", 1)},
		"closed": {opts: options{hour, ginlimit.WithFailureMode(ginlimit.FailClosed)}, late: true, code: 503,
			want: failed("late", 1)},
		"free, and closed": {opts: options{hour, ginlimit.WithFailureMode(ginlimit.FailClosed), cost(0)}, late: true,
			code: 200, want: with(failed("late", 0), func(e *ginlimit.Event) { e.Allowed = true })},
	}
}

// TestEventsOfEachWayOfARequest, and of the same request in a dry run, which differs in DryRun alone.
func TestEventsOfEachWayOfARequest(t *testing.T) {
	t.Parallel()
	for name, row := range ways() {
		for _, dryRun := range []bool{false, true} {
			title := name
			if dryRun {
				title += ", dry run"
			}
			testkit.RunInBubble(t, title, func(t *testing.T, b *testkit.Bubble) {
				seen := &events{}
				var limiter *testkit.Limiter
				if row.local {
					limiter = testkit.NewLocal(t, ginlimit.WithObserver(seen.observe))
				} else {
					limiter = testkit.NewLimiter(t, b.Redis, ginlimit.WithObserver(seen.observe), testkit.RemembersDenials(),
						ginlimit.WithTimeout(100*time.Millisecond), ginlimit.WithFailureMode(ginlimit.FailLocal))
				}
				opts, want, code := append([]ginlimit.PolicyOption{testkit.ByUser()}, row.opts...), row.want, row.code
				if dryRun {
					opts, code = append(opts, ginlimit.WithDryRun()), 200
					want.DryRun = true
				}
				p := testkit.NewPolicy(t, limiter, name, opts...)
				router := testkit.Serve(p.Handler())
				b.Late.Store(row.late)
				for range row.before {
					testkit.Get(router, "/", testkit.User("u"))
				}
				for range row.held {
					slot := testkit.Must(p.Reserve(t.Context(), "u", 1))
					require.True(t, slot.Result().Allowed)
					defer slot.Release()
				}
				if row.closed {
					require.NoError(t, limiter.Close())
				}
				seen.all = nil
				edit := row.edit
				if edit == nil {
					edit = func(*http.Request) {}
				}
				require.Equal(t, code, testkit.Get(router, "/", testkit.User("u"), edit).Code)
				require.Len(t, seen.all, 1)
				got := seen.all[0]
				require.GreaterOrEqual(t, got.Duration, got.Waited)
				want.Name, want.Remaining, want.ResetAfter = name, got.Remaining, got.ResetAfter
				want.Duration, want.Waited = got.Duration, got.Waited
				require.Equal(t, want, got)
			})
		}
	}
}

// TestWordsOfEvents are for labels of metrics.
func TestWordsOfEvents(t *testing.T) {
	t.Parallel()
	var outcomes, sources, causes []string
	for o := range ginlimit.OutcomeSettled + 2 {
		outcomes = append(outcomes, o.String())
	}
	for s := range ginlimit.FromPolicy + 2 {
		sources = append(sources, s.String())
	}
	for c := range ginlimit.CauseQueueFull + 2 {
		causes = append(causes, c.String())
	}
	require.Equal(t, []string{"allowed", "denied", "skipped", "failed", "settled", "unknown"}, outcomes)
	require.Equal(t, []string{"redis", "cache", "lease", "local", "open", "policy", "unknown"}, sources)
	require.Equal(t, []string{"", "rate", "in_flight", "ban", "never", "list", "share", "queue_full", "unknown"}, causes)
}

// TestEventsTellHowLongARequestWaitedForASlot apart from the decision.
func TestEventsTellHowLongARequestWaitedForASlot(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		var seen events
		p := testkit.NewPolicy(t, testkit.NewLocal(t, ginlimit.WithObserver(seen.observe)), "test",
			ginlimit.PerHour(100), ginlimit.InFlight(1), ginlimit.WithQueue(10, time.Minute), testkit.ByUser())
		slot := testkit.Must(p.Reserve(t.Context(), "u", 1))
		time.AfterFunc(3*time.Second, slot.Release)
		h := testkit.Serve(p.Handler())
		var all sync.WaitGroup
		for range 2 { // the second waits for its turn
			all.Go(func() { assert.Equal(t, http.StatusOK, testkit.Get(h, "/", testkit.User("u")).Code) })
		}
		all.Wait()
		require.Len(t, seen.all, 3)
		require.Zero(t, seen.all[0].Waited)
		for _, event := range seen.all[1:] {
			require.GreaterOrEqual(t, event.Waited, 3*time.Second)
			require.Equal(t, event.Duration, event.Waited)
		}
	})
}
