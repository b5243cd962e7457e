//go:build integration

package web_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestObserverSeesEveryDecisionOfAHandler(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	gone := testkit.ConnectDirect(t, testkit.RefusedAddr(t))
	limit, anyone := ginlimit.PerHour(2), netip.MustParsePrefix("192.0.2.0/24")
	type options = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		lost     bool
		options  options
		requests int
		want     []ginlimit.Event // of the last ones
	}{
		"allowed, denied, and denied from the cache": {false, options{limit}, 4, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Remaining: 1, Cost: 1},
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Cost: 1},
			{Outcome: ginlimit.OutcomeDenied, Limit: limit, Cause: ginlimit.CauseRate, Cost: 1},
			{Outcome: ginlimit.OutcomeDenied, Limit: limit, Source: ginlimit.FromCache, Cause: ginlimit.CauseRate, Cost: 1}}},
		"unlimited": {false, options{ginlimit.PerHour(-1)}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerHour(-1),
				Remaining: math.MaxInt, Source: ginlimit.FromPolicy, Cost: 1}}},
		"prohibited": {false, options{ginlimit.PerHour(0)}, 1, []ginlimit.Event{{Outcome: ginlimit.OutcomeDenied,
			Limit: ginlimit.PerHour(0), Source: ginlimit.FromPolicy, Cause: ginlimit.CauseNever, Cost: 1}}},
		"cost": {false, options{limit, ginlimit.WithCost(func(*gin.Context) int { return 2 })}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Cost: 2}}},
		"too large a cost": {false, options{limit, ginlimit.WithCost(func(*gin.Context) int { return 3 })}, 1,
			[]ginlimit.Event{
				{Outcome: ginlimit.OutcomeDenied, Limit: limit, Remaining: 2, Cause: ginlimit.CauseNever, Cost: 3}}},
		"negative cost": {false, options{limit, ginlimit.WithCost(func(*gin.Context) int { return -2 })},
			1, []ginlimit.Event{
				{Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Reason: "invalid_argument", Cost: -2}}},
		"local": {true, options{limit}, 3, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Source: ginlimit.FromLocal, Cost: 1},
			{Outcome: ginlimit.OutcomeDenied, Limit: limit, Source: ginlimit.FromLocal, Cause: ginlimit.CauseRate, Cost: 1}}},
		"open": {true, options{limit, ginlimit.WithFailureMode(ginlimit.FailOpen)}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit, Remaining: 1, Source: ginlimit.FromOpen, Cost: 1}}},
		"closed": {true, options{limit, ginlimit.WithFailureMode(ginlimit.FailClosed)}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Cost: 1}}},
		"skipped": {false, options{limit, ginlimit.WithSkip(func(*gin.Context) bool { return true })}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeSkipped, Allowed: true, Source: ginlimit.FromPolicy}}},
		"on the allow list": {false, options{limit, ginlimit.WithAllowList(anyone)}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeSkipped, Allowed: true, Source: ginlimit.FromPolicy}}},
		"free, and closed": {true, options{limit,
			ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithCost(func(*gin.Context) int { return 0 })}, 1,
			[]ginlimit.Event{{Outcome: ginlimit.OutcomeFailed, Allowed: true, Source: ginlimit.FromPolicy}}},
		"on the deny list": {false, options{limit, ginlimit.WithDenyList(anyone)}, 1,
			[]ginlimit.Event{{Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList}}},
		"dry run": {false, options{limit, ginlimit.WithDryRun()}, 3, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeAllowed, DryRun: true, Allowed: true, Limit: limit, Cost: 1},
			{Outcome: ginlimit.OutcomeDenied, DryRun: true, Limit: limit, Cause: ginlimit.CauseRate, Cost: 1}}},
		"no key": {false, options{limit, ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")), ginlimit.WithDryRun()},
			1, []ginlimit.Event{
				{Outcome: ginlimit.OutcomeFailed, DryRun: true, Source: ginlimit.FromPolicy, Reason: "no_key", Cost: 1}}},
		"no plan": {false, options{ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithLimitFunc(
			func(context.Context, string) ([]ginlimit.Limit, error) {
				return nil, ginlimit.ErrUnavailable
			})}, 1, []ginlimit.Event{
			{Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Reason: "limit_func", Cost: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, seen := rdb, &events{}
			if row.lost {
				client = gone
			}
			limiter := testkit.NewLimiter(t, client, ginlimit.WithObserver(seen.observe), testkit.RemembersDenials(),
				ginlimit.WithFailureMode(ginlimit.FailLocal))
			r := testkit.Serve(limiter.Handler(name, row.options...))
			for range row.requests {
				testkit.Get(r, "/")
			}
			got := seen.take(t)
			for i := range got {
				if row.lost { // by when the refused connection is seen
					assert.Contains(t, []string{"late", "connection_refused", "breaker_open"}, got[i].Reason)
					got[i].Reason = ""
				}
			}
			require.Len(t, got, row.requests, "one for each request")
			for i := range row.want {
				row.want[i].Name = name
			}
			require.Equal(t, row.want, got[len(got)-len(row.want):])
		})
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	limiter := testkit.NewLimiter(t, testkit.ConnectDirect(t, addr), testkit.RemembersDenials(),
		ginlimit.WithFailureMode(ginlimit.FailLocal))
	require.Equal(t, ginlimit.Stats{Servers: 1, Replicas: 1}, limiter.Stats())

	limit, ctx := ginlimit.PerHour(100), t.Context()
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 4 {
				_, err := limiter.Allow(ctx, "k", limit)
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool { return limiter.Stats().InFlight == 0 }))
	s := limiter.Stats()
	require.GreaterOrEqual(t, s.Decisions, uint64(101)) // further ones are denied from memory
	require.LessOrEqual(t, s.Decisions, uint64(256))
	require.LessOrEqual(t, s.Batches, s.Decisions)
	require.Positive(t, s.Batches)
	require.Zero(t, s.LostServers+s.Queued+s.LocalBuckets)
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		r, err := limiter.Allow(ctx, "k", limit)
		return err == nil && !r.Allowed && limiter.Stats().Remembered == 1
	}))
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		return limiter.Stats().Remembered == 0
	}), "for a second")

	require.NoError(t, process.Kill())
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		_, _ = limiter.Allow(ctx, "other", limit)
		return limiter.Stats().LostServers == 1
	}))
	_, err := limiter.Allow(ctx, "other", limit)
	require.NoError(t, err)
	require.Equal(t, 1, limiter.Stats().LocalBuckets)
	transitions := map[ginlimit.Transition]uint64{{To: "open", Reason: "connection_refused"}: 1}
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool { return limiter.Stats().Transitions != nil }))
	require.Equal(t, transitions, limiter.Stats().Transitions)
	require.NotNil(t, testkit.LaunchRedis(t, addr))
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		r, err := limiter.Allow(ctx, "other", limit)
		return err == nil && r.Source == ginlimit.FromRedis
	}))
	transitions[ginlimit.Transition{To: "half_open"}], transitions[ginlimit.Transition{To: "closed"}] = 1, 1
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		return maps.Equal(transitions, limiter.Stats().Transitions)
	}))
	require.NoError(t, limiter.Close())
	require.Zero(t, limiter.Stats().LostServers, "nobody seeks it any more")
	require.Equal(t, s.Batches, min(s.Batches, limiter.Stats().Batches))
}

// TestEventsTellWhyRedisDidNotDecide: a late decision is made here, and took the timeout; it is none of Redis.
func TestEventsTellWhyRedisDidNotDecide(t *testing.T) {
	t.Parallel()
	var seen events
	addr, process := testkit.StartRedisProcess(t)
	admin := testkit.Connect(t, addr)
	limiter, err := ginlimit.NewLimiter(testkit.ConnectDirect(t, addr), ginlimit.WithObserver(seen.observe),
		ginlimit.WithReplicas(1))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	user := func(*gin.Context) (string, error) { return "u", nil }
	var several [2]*ginlimit.Policy
	for i := range several {
		several[i], err = limiter.Policy(fmt.Sprint("several ", i), ginlimit.PerHour(100), ginlimit.WithKey(user))
		require.NoError(t, err)
	}
	one, err := limiter.Policy("100/h by key", ginlimit.PerHour(100), ginlimit.WithKey(user))
	require.NoError(t, err)
	handlers := map[string]http.Handler{
		"one key": testkit.Serve(one.Handler()),
		"several": testkit.Serve(ginlimit.AllOf(several[0], several[1])),
		"a ban": testkit.Serve(limiter.Handler("banning", ginlimit.PerHour(100), ginlimit.WithKey(user),
			ginlimit.WithBan(time.Minute, time.Hour))),
		"dry run": testkit.Serve(testkit.Derive(t, one, ginlimit.WithDryRun()).Handler()),
		"closed":  testkit.Serve(testkit.Derive(t, one, ginlimit.WithFailureMode(ginlimit.FailClosed)).Handler()),
	}
	reasons := func(want string) {
		for name, h := range handlers {
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				testkit.Get(h, "/")
				event := seen.take(t)[0]
				source := ginlimit.FromRedis
				switch {
				case want != "" && name == "closed":
					source = ginlimit.FromPolicy
				case want != "":
					source = ginlimit.FromLocal
				}
				return event.Reason == want && event.Source == source
			}), "%s: %q", name, want)
		}
	}
	reasons("") // once there is a connection
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha", "-eval").Err())
	reasons("NOPERM")
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "+evalsha", "+eval").Err())
	reasons("")

	require.NoError(t, process.Signal(syscall.SIGSTOP))
	_, err = testkit.Wrap(limiter, ginlimit.TokenBucket).Allow(t.Context(), "k", ginlimit.PerHour(5))
	require.NoError(t, err)
	late := seen.all[len(seen.all)-1]
	require.GreaterOrEqual(t, late.Duration, ginlimit.DefaultTimeout)
	late.Duration = 0
	require.Equal(t, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true,
		Limit: ginlimit.PerHour(5), Remaining: 4, Source: ginlimit.FromLocal, Cost: 1,
		Reason: "late"}, late)
	seen.take(t)
	reasons("breaker_open")

	worker, err := limiter.Policy("worker", ginlimit.PerHour(5),
		ginlimit.WithFailureMode(ginlimit.FailClosed))
	require.NoError(t, err)
	time.AfterFunc(2*time.Second, func() { _ = process.Signal(syscall.SIGCONT) })
	require.NoError(t, worker.Wait(t.Context(), "k"), "it goes on through the outage")
	event := seen.take(t)[0]
	require.Positive(t, event.Waited)
	require.Equal(t, ginlimit.FromRedis, event.Source)
	require.Empty(t, event.Reason, "of the try that Redis decided")
}
