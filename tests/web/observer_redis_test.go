//go:build integration

package web_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestEventsTellWhyRedisDidNotDecide: a late decision is made here, and took the timeout; it is none of Redis.
func TestEventsTellWhyRedisDidNotDecide(t *testing.T) {
	t.Parallel()
	var seen events
	addr, process := testkit.StartRedisProcess(t)
	admin := testkit.Connect(t, addr)
	limiter := testkit.Must(ginlimit.NewLimiter(testkit.ConnectDirect(t, addr), ginlimit.WithObserver(seen.observe),
		ginlimit.WithReplicas(1)))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	user := func(*gin.Context) (string, error) { return "u", nil }
	var several [2]*ginlimit.Policy
	for i := range several {
		several[i] = testkit.Must(limiter.Policy(fmt.Sprint("several ", i), ginlimit.PerHour(100), ginlimit.WithKey(user)))
	}
	one := testkit.Must(limiter.Policy("100/h by key", ginlimit.PerHour(100), ginlimit.WithKey(user)))
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
	testkit.Must(testkit.Wrap(limiter, ginlimit.TokenBucket).Allow(t.Context(), "k", ginlimit.PerHour(5)))
	late := seen.all[len(seen.all)-1]
	require.GreaterOrEqual(t, late.Duration, ginlimit.DefaultTimeout)
	late.Duration = 0
	require.Equal(t, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true,
		Limit: ginlimit.PerHour(5), Remaining: 4, Source: ginlimit.FromLocal, Cost: 1,
		Reason: "late"}, late)
	seen.take(t)
	reasons("breaker_open")

	worker := testkit.Must(limiter.Policy("worker", ginlimit.PerHour(5),
		ginlimit.WithFailureMode(ginlimit.FailClosed)))
	time.AfterFunc(2*time.Second, func() { _ = process.Signal(syscall.SIGCONT) })
	require.NoError(t, worker.Wait(t.Context(), "k"), "it goes on through the outage")
	event := seen.take(t)[0]
	require.Positive(t, event.Waited)
	require.Equal(t, ginlimit.FromRedis, event.Source)
	require.Empty(t, event.Reason, "of the try that Redis decided")
}
