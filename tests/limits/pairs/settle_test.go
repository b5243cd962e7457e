package pairs_test

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
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
		before, err := p.Reserve(t.Context(), "alice", 20)
		require.NoError(t, err)
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

// TestRequestsThatSettleTakeNothingAhead, and tokens that the policy they are derived from has leased are
// neither lost nor given twice.
func TestRequestsThatSettleTakeNothingAhead(t *testing.T) {
	for _, used := range []int{0, 3, 20} {
		t.Run(strconv.Itoa(used), func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, bench *testkit.LeaseBench) {
				limit := ginlimit.PerHour(2000).WithAlgorithm(ginlimit.FixedWindow) // so that no token flows back
				l := bench.Limiter(t, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
				plain := counts(t, testkit.Backend{Limiter: l}, limit)
				p := plain.with(t, settles()...)
				for range 20 {
					p.uses(t, "alice", 5, used, 200)
					bench.Advance(10 * time.Millisecond)
				}
				require.Zero(t, l.Stats().Leased)
				for range 40 {
					plain.wants(t, "alice", 200)
					p.uses(t, "alice", 5, used, 200)
					plain.wants(t, "alice", 200, 200, 200)
					bench.Advance(10 * time.Millisecond)
				}
				require.Positive(t, l.Stats().Leased)
				require.NoError(t, l.Close())
				other := counts(t, testkit.Backend{Limiter: bench.Limiter(t)}, limit)
				other.left(t, "alice", 2000-60*used-160)
			})
		})
	}
}

// TestRequestsThatSettleHoldTheirSlot until they are settled; what finds no slot is not settled.
func TestRequestsThatSettleHoldTheirSlot(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, settles(ginlimit.PerHour(100), ginlimit.InFlight(1))...)
		p.during = func() {
			p.uses(t, "alice", 10, 99, 429, testkit.With("X-Inner", "1"))
			require.Equal(t, "p-c", p.found.Name)
			require.Equal(t, 1, b.Limiter.Stats().Slots)
		}
		for _, left := range []int{70, 40, 10} {
			p.uses(t, "alice", 10, 30, 200)
			require.Zero(t, b.Limiter.Stats().Slots)
			slot := testkit.Reserve(t, p.Policy)
			require.True(t, slot.Result().Allowed)
			slot.Release()
			testkit.RequireMade(t, p.Refund(t.Context(), "alice", 1)) // the token of Reserve
			p.left(t, "alice", left)
		}
	})
}

// TestWhoWaitsForASlotSettles once it was served; what finds no place in the queue does not.
func TestWhoWaitsForASlotSettles(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, settles(ginlimit.PerHour(100), ginlimit.InFlight(1), ginlimit.WithQueue(1, 10*time.Second))...)
		p.during = func() { time.Sleep(time.Second) }
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				rec := p.send("alice", testkit.With("X-Cost", "5"), testkit.With("X-Used", "30"))
				assert.Equal(t, 200, rec.Code)
			})
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, 429, p.send("alice", testkit.With("X-Cost", "5"), testkit.With("X-Used", "99")).Code)
		all.Wait()
		require.Empty(t, p.errs)
		synctest.Wait()
		p.left(t, "alice", 40)
	})
}

// TestWhatIsSettledBansNobody: neither an estimate that is given back, nor a debt. What is denied
// because of the debt does.
func TestWhatIsSettledBansNobody(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, settles(ginlimit.PerHour(10), ginlimit.WithBan(24*time.Hour, 24*time.Hour))...)
		for range 3 {
			p.uses(t, "alice", 10, 0, 200)
		}
		p.uses(t, "alice", 1, 15, 200)
		r, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.InDelta(t, 36*time.Minute, r.RetryAfter, float64(time.Minute), "six tokens")
		p.uses(t, "alice", 1, 1, 429)
		require.InDelta(t, 24*time.Hour, p.found.RetryAfter, float64(time.Minute))
	})
}

// TestARequestSettlesWithTokensOfTheFloor, which it could not take.
func TestARequestSettlesWithTokensOfTheFloor(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		people := counts(t, b, ginlimit.PerHour(100))
		batch := people.with(t, settles(ginlimit.WithFloor(80))...)
		batch.uses(t, "alice", 21, 0, 429)
		batch.uses(t, "alice", 5, 50, 200)
		people.left(t, "alice", 50)
		batch.uses(t, "alice", 1, 1, 429)
		people.wants(t, "alice", 200)
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

// TestADryRunSettles what it counts; what it would deny takes nothing, whatever it used.
func TestADryRunSettles(t *testing.T) {
	for _, opts := range [][]ginlimit.PolicyOption{nil, {ginlimit.InFlight(1)}} {
		testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
			p := counts(t, b, settles(append(opts, ginlimit.PerHour(100), ginlimit.WithDryRun())...)...)
			p.uses(t, "alice", 10, 30, 200)
			p.left(t, "alice", 70)
			p.uses(t, "alice", 10, 4, 200)
			p.left(t, "alice", 66)
			p.uses(t, "alice", 80, 90, 200)
			require.False(t, p.found.Allowed)
			p.left(t, "alice", 66)
		})
	}
}

// TestARequestThatSettlesEndsARememberedDenial: what it did not use is there at once.
func TestARequestThatSettlesEndsARememberedDenial(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := counts(t, testkit.Backend{Limiter: testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())},
			settles(ginlimit.PerHour(10))...)
		p.during = func() {
			for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache} {
				p.uses(t, "alice", 1, 1, 429, testkit.With("X-Inner", "1"))
				require.Equal(t, source, p.found.Source)
			}
		}
		p.uses(t, "alice", 10, 4, 200)
		p.during = func() {}
		p.uses(t, "alice", 6, 8, 200)
		p.uses(t, "alice", 1, 1, 429)
		require.InDelta(t, 18*time.Minute, p.found.RetryAfter, float64(time.Second), "two tokens of debt, and its own")
	})
}
