package web_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestDryRunSharesNoKey with the policy in force of its name: no token, slot or ban.
func TestDryRunSharesNoKey(t *testing.T) {
	t.Parallel()
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		force := testkit.NewPolicy(t, e.Limiter, "api", ginlimit.PerHour(2), testkit.ByUser(), ginlimit.InFlight(1),
			ginlimit.WithBan(10*time.Hour, 20*time.Hour))
		trial := testkit.Derive(t, force, ginlimit.WithDryRun())
		var found ginlimit.Result
		var inner int
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) },
			trial.Handler(), force.Handler(), func(*gin.Context) { inner++ })
		tried := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		for i := range 4 { // it is denied twice, and banned
			require.Equal(t, http.StatusOK, testkit.Get(tried, "/", testkit.User("alice")).Code)
			require.Equal(t, i < 2, found.Allowed)
		}
		require.Equal(t, ginlimit.CauseBan, found.Cause)
		require.Greater(t, found.RetryAfter, 9*time.Hour)
		for i := range 3 {
			rec := testkit.Get(router, "/", testkit.User("alice"))
			require.Equal(t, i < 2, rec.Code == http.StatusOK, rec.Body.String())
		}
		require.Equal(t, 2, inner)
		require.NoError(t, force.Reset(t.Context(), "alice"))
		require.Equal(t, ginlimit.CauseBan, testkit.Must(trial.Peek(t.Context(), "alice")).Cause)
		require.Equal(t, ginlimit.CauseBan, testkit.Must(trial.Reserve(t.Context(), "alice", 1)).Result().Cause)
	})
}

// TestDryRunSettlesAsWithoutIt gives back no token that has flowed back by itself.
func TestDryRunSettlesAsWithoutIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "10/h", ginlimit.PerHour(10), testkit.ByUser(),
			ginlimit.InFlight(2), ginlimit.WithDryRun(),
			ginlimit.WithRefund(func(*gin.Context) bool { return true }))
		router := testkit.Serve(p.Handler(), func(*gin.Context) {
			r := testkit.Must(p.Reserve(t.Context(), "alice", 5))
			r.Release()
			time.Sleep(6 * time.Minute)
		})
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.Equal(t, 5, testkit.Must(p.Peek(t.Context(), "alice")).Remaining)
	})
}
