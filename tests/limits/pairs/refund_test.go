package pairs_test

import (
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

// Refunds beside other features. See docs/reference.md.

// refunded has all requests be refunded.
func refunded() ginlimit.Option { return ginlimit.WithRefund(func(*gin.Context) bool { return true }) }

// TestARefundByHandAddsToWhatARequestGivesBack: they are not taken for one another.
func TestARefundByHandAddsToWhatARequestGivesBack(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerDay(20)
		p := counts(t, b, settles(limit)...)
		p.during = func() { testkit.RequireMade(t, p.Refund(t.Context(), "alice", 4)) }
		p.uses(t, "alice", 10, 8, 200)
		p.left(t, "alice", 16)
		testkit.RequireMade(t, p.Reset(t.Context(), "alice"))
		time.Sleep(time.Minute) // more than two timeouts of the limiter
		p.during = func() {
			testkit.RequireMade(t, p.Refund(t.Context(), "alice", 15)) // ten fill it
			require.Equal(t, 20, testkit.AdmittedNow(t, b.Limiter, ginlimit.Key("p", "alice"), limit))
		}
		p.uses(t, "alice", 10, 1, 200)
		p.left(t, "alice", 9)
	})
}

// TestRefundsLeaveSlotsAlone: a refund by hand frees no slot, and a request that is refunded holds
// its slot until it ends.
func TestRefundsLeaveSlotsAlone(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, ginlimit.PerHour(10), refunded(), ginlimit.InFlight(1))
		p.during = func() {
			testkit.RequireMade(t, p.Refund(t.Context(), "alice", 1))
			require.Equal(t, 429, p.send("alice", testkit.With("X-Inner", "1")).Code)
			require.Equal(t, "p-c", p.found.Name)
			require.Equal(t, 1, b.Limiter.Stats().Slots)
		}
		p.wants(t, "alice", 200, 200)
		require.Zero(t, b.Limiter.Stats().Slots)
		p.left(t, "alice", 10)
		require.True(t, testkit.Reserve(t, p.Policy).Result().Allowed)
	})
}

// TestARefundComesBeforeWhoeverWaitsForTheSlot: with two tokens, four requests at once are served one after another.
func TestARefundComesBeforeWhoeverWaitsForTheSlot(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, ginlimit.PerDay(2), refunded(), ginlimit.InFlight(1), ginlimit.WithQueue(3, time.Minute))
		p.during = func() { time.Sleep(time.Second) }
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { assert.Equal(t, 200, p.send("alice").Code) })
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		synctest.Wait()
		p.left(t, "alice", 2)
	})
}

// TestARefundServesWhoeverWaitsForATokenAtOnce, if it is made in the same process.
func TestARefundServesWhoeverWaitsForATokenAtOnce(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		const waiting = 10 // who all find no token at the same time
		p := counts(t, b, ginlimit.PerHour(waiting))
		_, err := p.AllowN(t.Context(), "alice", waiting)
		require.NoError(t, err)
		var all sync.WaitGroup
		for range waiting {
			all.Go(func() { assert.NoError(t, p.Wait(t.Context(), "alice")) })
		}
		time.Sleep(time.Second)
		start := time.Now()
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", waiting))
		all.Wait()
		require.Less(t, time.Since(start), time.Second)
		p.left(t, "alice", 0)
	})
}

// TestARefundFillsTheBucketBelowTheFloorFirst: what a policy with a floor gives back is there for
// the policy that it was derived from.
func TestARefundFillsTheBucketBelowTheFloorFirst(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		people := counts(t, b, ginlimit.PerHour(10))
		batch := people.with(t, ginlimit.WithFloor(8), refunded())
		batch.wants(t, "alice", 200, 200, 200)
		people.left(t, "alice", 10)
		batch.during = func() { people.wants(t, "alice", 200, 200, 200, 200) }
		batch.wants(t, "alice", 200)
		people.left(t, "alice", 6)
		batch.left(t, "alice", 0)
		testkit.RequireMade(t, batch.Refund(t.Context(), "alice", 2))
		people.left(t, "alice", 8)
		batch.left(t, "alice", 0)
		testkit.RequireMade(t, batch.Refund(t.Context(), "alice", 100))
		people.left(t, "alice", 10)
		batch.left(t, "alice", 2)
	})
}

// TestARequestIsRefundedInThePeriodThatItBeganIn, and a refund by hand goes to the period of now.
func TestARequestIsRefundedInThePeriodThatItBeganIn(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		quota := ginlimit.PerCalendar(5, ginlimit.CalendarDay(westOfUTC))
		p := counts(t, b, quota, refunded())
		p.wants(t, "alice", 200, 200, 200, 200, 200, 200)
		p.left(t, "alice", 5)
		p.during = func() {
			time.Sleep(time.Minute)
			r, err := p.AllowN(t.Context(), "alice", 3)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		p.wants(t, "alice", 200)
		p.left(t, "alice", 2)
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 1))
		p.left(t, "alice", 3)
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 9))
		p.left(t, "alice", 5)
	})
}

// TestRefundsUnderAPlan: one by hand goes to the limits that the client has now, that of a request
// to those that it began with.
func TestRefundsUnderAPlan(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		hour, day := ginlimit.PerHour(10), ginlimit.PerDay(20)
		plans := map[string][]ginlimit.Limit{"alice": {hour, day}}
		p := counts(t, b, plansOf(plans), refunded(),
			ginlimit.WithCost(func(*gin.Context) int { return 4 }))
		left := func(want int, limit ginlimit.Limit) {
			t.Helper()
			plan := plans["alice"]
			plans["alice"] = []ginlimit.Limit{limit}
			p.left(t, "alice", want)
			plans["alice"] = plan
		}
		_, err := p.AllowN(t.Context(), "alice", 9)
		require.NoError(t, err)
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 3))
		left(4, hour)
		left(14, day)
		for _, plan := range [][]ginlimit.Limit{{day}, {ginlimit.Unlimited()}, {ginlimit.PerHour(0)},
			{ginlimit.PerMinute(7)}} {
			plans["alice"] = []ginlimit.Limit{hour, day}
			p.during = func() {
				left(0, hour)
				left(10, day)
				plans["alice"] = plan
			}
			p.wants(t, "alice", 200)
			left(4, hour)
			left(14, day)
		}
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 2))
		left(4, hour)
		plans["alice"] = []ginlimit.Limit{day}
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 2))
		left(4, hour)
		left(16, day)
		require.ErrorIs(t, p.Refund(t.Context(), "nobody", 1), ginlimit.ErrUnknownClient)
	})
}

// TestADryRunIsRefunded as a policy in force is; what it would deny has taken nothing, and gives nothing back.
func TestADryRunIsRefunded(t *testing.T) {
	for _, opts := range [][]ginlimit.PolicyOption{nil, {ginlimit.InFlight(1)}} {
		testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
			p := counts(t, b, append(opts, ginlimit.PerDay(3), ginlimit.WithDryRun(), refunded())...)
			p.wants(t, "alice", 200, 200, 200, 200)
			p.left(t, "alice", 3)
			reserve(t, p.Policy, 3, true).Release()
			p.wants(t, "alice", 200, 200)
			require.False(t, p.found.Allowed)
			p.left(t, "alice", 0)
			testkit.RequireMade(t, p.Refund(t.Context(), "alice", 2))
			p.left(t, "alice", 2)
		})
	}
}
