package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// acquire takes a slot of a client, if there is one.
func (p *process) acquire(t *testing.T, policy sidebyside.Policy, id string) sidebyside.Result {
	t.Helper()
	return p.do(t, sidebyside.Command{Op: "Acquire", Policy: policy, Key: "client", ID: id}).Result
}

// acquireSoon takes a slot that is released elsewhere at this moment.
func (p *process) acquireSoon(t *testing.T, policy sidebyside.Policy, id string) (r sidebyside.Result) {
	t.Helper()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		r = p.acquire(t, policy, id)
		return r.Allowed
	}), "a slot is not released")
	return r
}

// slotsSideBySide: both versions take slots of one client, first in turns, then at the same time.
// Never are more held than there are.
func slotsSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	p := sidebyside.Policy{Prefix: "slots", Name: "slots", Slots: 3, Limits: []ginlimit.Limit{slow(50)}}
	release := func(by *process, id string) { by.do(t, sidebyside.Command{Op: "Release", ID: id}) }
	left := 50
	for turn := range 6 {
		one, other := both[turn%2], both[1-turn%2]
		for i, by := range []*process{one, other, one} {
			left--
			require.Equal(t, left, by.acquireSoon(t, p, strconv.Itoa(i)).Remaining, "turn %d, slot %d", turn, i)
		}
		denied := one.acquire(t, p, "denied")
		require.False(t, denied.Allowed)
		require.Equal(t, "slots-c", denied.Name)
		require.Equal(t, denied, other.acquire(t, p, "denied"))
		release(one, "0")
		left--
		require.Equal(t, left, other.acquireSoon(t, p, "3").Remaining)
		require.False(t, one.acquire(t, p, "denied").Allowed)
		release(one, "2")
		release(other, "1")
		release(other, "3")
	}
	p = sidebyside.Policy{Prefix: "slots", Name: "many", Slots: 5}
	processes := append(slices.Clone(both), v.pair(t, rdb.Options().Addr)...)
	hold := sidebyside.Command{Op: "HoldSlots", Policy: p, Key: "client", D: 2 * time.Second, Callers: 4}
	for i, r := range atOnce(t, processes, hold) {
		say(t, "%s version: %d of %d calls got a slot, %d held at most", processes[i].version, r.Net, r.Calls, r.Most)
		require.NotZero(t, r.Net)
		require.LessOrEqual(t, r.Most, int64(5))
	}
	for i := range 5 {
		processes[i%4].acquireSoon(t, p, fmt.Sprint("again ", i))
	}
	for _, by := range processes {
		require.False(t, by.acquire(t, p, "denied").Allowed)
	}
}

// slotsOfKilledProcesses: processes of both versions are killed while they hold slots. Others get
// these after about 10 s, and not within the 7 s for which a process may be cut off.
func slotsOfKilledProcesses(t *testing.T, v versions, rdb *redis.Client) {
	killed, alive := v.pair(t, rdb.Options().Addr), v.pair(t, rdb.Options().Addr)
	p := sidebyside.Policy{Prefix: "killed", Name: "killed", Slots: 5}
	for _, by := range killed {
		require.True(t, by.acquire(t, p, "first").Allowed)
		require.True(t, by.acquire(t, p, "second").Allowed)
	}
	require.True(t, alive[0].acquire(t, p, "held throughout").Allowed)
	for _, by := range killed {
		by.kill(t)
	}
	began := time.Now()
	for i := range 4 {
		alive[i%2].acquireSoon(t, p, strconv.Itoa(i))
		took := time.Since(began)
		say(t, "slot %d is free after %s", i, took.Round(time.Millisecond))
		require.Greater(t, took, 7*time.Second)
		require.Less(t, took, 12*time.Second)
	}
	for _, by := range alive {
		require.False(t, by.acquire(t, p, "a sixth").Allowed)
	}
}

// leasesSideBySide: processes of both versions take tokens of one key with leases, at more than its
// rate and at less. One of each version is closed in between, and gives its lease back.
//
// The versions have different rules: the old one decides by all of the burst, and knows nothing of the
// lease bucket. So nothing is compared but the bound, to which what processes of this version may hold
// comes once: twice what flows back in a lease, or half of the burst.
func leasesSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	addr := rdb.Options().Addr
	processes := append(v.pair(t, addr), v.pair(t, addr)...)
	limit := ginlimit.PerSecond(1000).WithBurst(300)
	p := sidebyside.Policy{
		Prefix: "leases", Name: "leases", Limits: []ginlimit.Limit{limit}, Lease: 300 * time.Millisecond,
	}
	var all []admission
	began, calls := time.Now().UnixNano(), 0
	leased := map[string]int{}
	load := func(processes []*process, d, pace time.Duration) {
		c := sidebyside.Command{Op: "Load", Policy: p, Key: "client", N: int(pace.Microseconds()), D: d, Callers: 4}
		for i, r := range atOnce(t, processes, c) {
			calls += r.Calls
			leased[processes[i].version] += r.Leased
			for _, a := range r.Admissions {
				all = append(all, admission{time.Duration(a.From - began), time.Duration(a.To - began), a.Tokens})
			}
		}
	}
	load(processes, time.Second/2, 4*time.Millisecond)
	load(processes, time.Second, 20*time.Millisecond)
	for _, by := range processes[2:] {
		by.do(t, sidebyside.Command{Op: "Close"})
	}
	load(processes[:2], time.Second, 10*time.Millisecond)
	load(processes[:2], time.Second/2, 2*time.Millisecond)
	bound := limit.WithBurst(limit.Burst + limit.Burst/2)
	fullest := assertNoMoreThan(t, bound, all, loss{from: -1, to: -1})
	say(t, "%d of %d calls pass, %d of a burst of %d in the fullest span, from leases %v",
		len(all), calls, fullest, limit.Burst, leased)
	require.Greater(t, calls, len(all), "the limit is not reached")
	require.NotZero(t, leased["old"])
	require.NotZero(t, leased["new"])
}

// requestsSideBySide: both versions answer one client's requests with the same status, header
// fields and body.
func requestsSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	for name, p := range map[string]sidebyside.Policy{
		"unnamed": {Name: "5/d", Unnamed: true, Limits: []ginlimit.Limit{ginlimit.PerDay(5)}},
		"one":     {Name: "one", Limits: []ginlimit.Limit{ginlimit.PerDay(5)}},
		"several": {Name: "several", Limits: []ginlimit.Limit{slow(7), ginlimit.PerDay(5)}},
		"sliding": {Name: "sliding", Limits: []ginlimit.Limit{ginlimit.PerDay(5)}, Algorithm: ginlimit.SlidingWindow},
	} {
		p.Prefix = "requests " + name
		request := sidebyside.Command{Op: "Request", Policy: p, Key: "203.0.113.7"}
		for i := range 5 {
			r := both[i%2].do(t, request)
			require.Equal(t, http.StatusOK, r.Status)
			require.Equal(t, strconv.Itoa(4-i), r.Header.Get("X-RateLimit-Remaining"), name)
		}
		var old, now sidebyside.Reply
		assert.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { // within one second
			old, now = both[0].do(t, request), both[1].do(t, request)
			return assert.ObjectsAreEqual(old, now)
		}))
		require.Equal(t, old, now, name)
		require.Equal(t, http.StatusTooManyRequests, now.Status)
	}
}

// plansSideBySide: one version reads a plan from Redis that the other one has stored, and each
// learns of the other's Invalidate.
func plansSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	for i, finder := range both {
		other, client := both[1-i], "client of "+finder.version
		first, second := []ginlimit.Limit{slow(5), inFifteenDays(7)}, []ginlimit.Limit{slow(6).WithBurst(2)}
		plan := func(by *process, op string, source []ginlimit.Limit) []ginlimit.Limit {
			return by.do(t, sidebyside.Command{Op: op, Key: client, Policy: sidebyside.Policy{Limits: source}}).Limits
		}
		require.Equal(t, first, plan(finder, "Plan", first))
		require.Equal(t, first, plan(other, "Plan", second), "the plan in Redis")
		plan(other, "Invalidate", second)
		require.Equal(t, second, plan(other, "Plan", second))
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return slices.Equal(second, plan(finder, "Plan", first))
		}))
	}
}
