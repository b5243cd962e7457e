//go:build integration

package docs_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestManyRequestsPassNoBudget sends 200 requests at once through two processes, to the last dollar of a key: no more
// are served than it pays for, and what is left of each budget is exact, for the team too.
func TestManyRequestsPassNoBudget(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	var processes []http.Handler
	for range 2 {
		rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 20})
		defer rdb.Close()
		limiter, err := ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed))
		require.NoError(t, err)
		defer limiter.Close()
		router := signedIn("api key", "team")
		moneyRecipe(router, limiter)
		processes = append(processes, router)
	}

	seen := testkit.NewLimiter(t, testkit.Connect(t, addr)).Limiter
	team := must(seen.Policy("team budget", ginlimit.WithKey(ginlimit.ByValue("team")),
		ginlimit.Per(48*dollar, 5*time.Hour).WithAlgorithm(ginlimit.FixedWindow),
		ginlimit.PerCalendar(200*dollar, ginlimit.CalendarWeek(nil, time.Monday)),
		ginlimit.PerCalendar(600*dollar, ginlimit.CalendarMonth(nil, 1))))

	// atOnce sends a prompt of each length, and returns what those that were served used.
	atOnce := func(prompts []int) (served, spent int) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i, prompt := range prompts {
			all.Go(func() {
				rec := complete(processes[i%2], "a", "red", prompt)
				mu.Lock()
				defer mu.Unlock()
				if rec.Code == http.StatusOK {
					served++
					spent += bill(prompt, prompt/10)
				} else if rec.Code != http.StatusPaymentRequired {
					t.Errorf("%d: %s", rec.Code, rec.Body)
				}
			})
		}
		all.Wait()
		return served, spent
	}
	_, spent := atOnce([]int{4_888_889}) // about 11 dollars
	require.Equal(t, less(spent), left(t, processes[0], "a"))

	var prompts, exact []int
	for i := range 200 {
		prompts, exact = append(prompts, 1000+7*i), append(exact, 10_000)
	}
	served, more := atOnce(prompts) // each of them costs less than its estimate
	spent += more
	require.Positive(t, served)
	require.LessOrEqual(t, spent, 12*dollar)
	require.Equal(t, less(spent), left(t, processes[1], "a"))

	served, more = atOnce(exact) // as much as their estimates
	require.Equal(t, (12*dollar-spent)/bill(10_000, 1000), served)
	spent += more
	require.LessOrEqual(t, spent, 12*dollar)
	require.Equal(t, less(spent), left(t, processes[0], "a"))
	t.Logf("spent %d of %d, left %v", spent, 12*dollar, left(t, processes[1], "a"))

	require.Equal(t, "api key budget", requireDenied(t, complete(processes[0], "a", "red", 10_000)).Name)
	for i, r := range testkit.Must(team.Status(t.Context(), "red")) {
		require.Equal(t, r.Limit.Rate-spent, r.Remaining, i)
	}
}
