package limits_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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
