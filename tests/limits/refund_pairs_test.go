package limits_test

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
		testkit.Must(p.AllowN(t.Context(), "alice", waiting))
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
