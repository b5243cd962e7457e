package limits_test

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Requests that settle beside other features. See docs/reference.md.

// settles has requests take their header's cost, and settle with what they used.
func settles(opts ...ginlimit.PolicyOption) []ginlimit.PolicyOption {
	number := func(header string) func(*gin.Context) int {
		return func(c *gin.Context) int { n, _ := strconv.Atoi(c.GetHeader(header)); return n }
	}
	return append(opts, ginlimit.WithCost(number("X-Cost")), ginlimit.WithSettle(number("X-Used")))
}

// uses sends a request that takes an estimate, and uses another number of tokens.
func (c *counted) uses(t *testing.T, client string, cost, used, code int, edit ...func(*http.Request)) {
	t.Helper()
	rec := c.send(client,
		append(edit, testkit.With("X-Cost", strconv.Itoa(cost)), testkit.With("X-Used", strconv.Itoa(used)))...)
	require.Equal(t, code, rec.Code)
	require.Empty(t, c.errs)
}

// TestRequestsSettleBesideReservations of the same bucket: each settles its own estimate.
func TestRequestsSettleBesideReservations(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, settles(ginlimit.PerHour(100))...)
		before := testkit.Must(p.Reserve(t.Context(), "alice", 20))
		p.during = func() {
			p.left(t, "alice", 70)
			require.NoError(t, before.Settle(t.Context(), 5))
			p.left(t, "alice", 85)
		}
		p.uses(t, "alice", 10, 25, 200)
		p.left(t, "alice", 70)
		p.during = func() {}
		p.uses(t, "alice", 10, 0, 200)
		p.left(t, "alice", 70)
	})
}

// TestARequestSettlesInThePeriodThatItBeganIn: the next one is as if it had not been.
func TestARequestSettlesInThePeriodThatItBeganIn(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, settles(ginlimit.PerCalendar(100, ginlimit.CalendarDay(westOfUTC)))...)
		p.uses(t, "alice", 10, 30, 200)
		p.left(t, "alice", 70)
		p.uses(t, "alice", 10, 4, 200)
		p.left(t, "alice", 66)
		p.during = func() { // alice's request has bob's begin, and both end on the next day
			p.during = func() {
				time.Sleep(time.Minute)
				p.uses(t, "alice", 10, 7, 200, testkit.With("X-Inner", "1"))
				p.left(t, "alice", 93)
			}
			p.uses(t, "bob", 10, 500, 200)
		}
		p.uses(t, "alice", 10, 1, 200)
		p.left(t, "alice", 93)
		p.left(t, "bob", 100)
		p.during = func() {}
		p.uses(t, "bob", 100, 100, 200)
	})
}

// TestARequestSettlesUnderThePlanThatItBeganWith, and the new plan keeps the bucket.
func TestARequestSettlesUnderThePlanThatItBeganWith(t *testing.T) {
	for name, row := range map[string]struct {
		used   int
		plan   []ginlimit.Limit
		left   int
		inHour int // of 100 an hour
	}{
		"more, of a smaller plan":   {50, []ginlimit.Limit{ginlimit.PerHour(50)}, 25, 50},
		"less, of a larger plan":    {0, []ginlimit.Limit{ginlimit.PerHour(200)}, 200, 100},
		"more, of another period":   {50, []ginlimit.Limit{ginlimit.PerDay(10)}, 10, 50},
		"less, of another period":   {3, []ginlimit.Limit{ginlimit.PerDay(10)}, 10, 97},
		"more, of an unlimited one": {50, []ginlimit.Limit{{Rate: -1}}, math.MaxInt, 50},
		"less, of none":             {0, []ginlimit.Limit{ginlimit.PerHour(0)}, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				plans := map[string][]ginlimit.Limit{"alice": {ginlimit.PerHour(100)}}
				p := counts(t, b, settles(plansOf(plans))...)
				p.during = func() { plans["alice"] = row.plan }
				p.uses(t, "alice", 10, row.used, 200)
				p.left(t, "alice", row.left)
				plans["alice"] = []ginlimit.Limit{ginlimit.PerHour(100)}
				p.left(t, "alice", row.inHour)
			})
		})
	}
}

// TestDebtOfAWindow keeps it from everybody until the tokens have left, and no longer.
func TestDebtOfAWindow(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerDay(20)
		for name, row := range map[string]struct{ estimate, actual int }{
			"one more than all": {8, 21}, "half as much again": {8, 30}, "twice": {8, 40},
			"more than is charged": {1, 500}, "of all": {20, 33},
		} {
			require.NoError(t, e.Limiter.Reset(t.Context(), "k", limit))
			r := e.Reserve(t, row.estimate, limit)
			e.Advance(9 * time.Hour)
			require.NoError(t, r.Settle(t.Context(), row.actual), name)
			wait := 15 * time.Hour // a fixed window ends with what it owes
			if extra := min(row.actual, 40) - row.estimate; e.Algorithm == ginlimit.SlidingWindow && extra >= 20 {
				wait = 24 * time.Hour // what was charged later alone fills the window
			}
			e.Denied(t, 1, wait, limit)
			e.Advance(wait - 10*time.Second)
			e.Denied(t, 1, 10*time.Second, limit)
			e.Advance(10 * time.Second)
			left := 20
			if e.Algorithm == ginlimit.SlidingWindow && wait < 24*time.Hour {
				left = 20 - (min(row.actual, 40) - row.estimate)
			}
			require.Equal(t, left, e.Left(t, limit), name)
		}
	})
}

// TestManySettleAtOnce has charges and debts of many callers travel together, on one key and on several.
func TestManySettleAtOnce(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		const callers, keys = 60, 3
		limit := ginlimit.PerDay(2000)
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for key := range keys {
					r, err := e.Limiter.Reserve(t.Context(), fmt.Sprint("key ", key), 10, limit)
					if !assert.NoError(t, err) || !assert.True(t, r.Result().Allowed) {
						return
					}
					assert.NoError(t, r.Settle(t.Context(), []int{3, 10, 22}[caller%3]))
				}
			})
		}
		all.Wait()
		for key := range keys {
			r := testkit.Must(e.Limiter.Peek(t.Context(), fmt.Sprint("key ", key), limit))
			require.InDelta(t, 2000-callers/3*(3+10+22), r.Remaining, 1) // a token bucket regains one in 43 s
		}
	})
}
