package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// While an application is deployed, processes with the library of this tree and with that of the
// commit before its rewrite share one Redis. Every process decides by what all of them have
// counted, and every guarantee holds.

// slow returns a limit of which a token takes hours to come back.
func slow(n int) ginlimit.Limit {
	return ginlimit.Limit{Rate: n, Period: time.Duration(n) * 3 * time.Hour}
}

// inFifteenDays returns a quota whose period does not end during a test.
func inFifteenDays(n int) ginlimit.Limit {
	return ginlimit.PerCalendar(n, ginlimit.CalendarMonth(nil, 1+(time.Now().UTC().Day()+14)%28))
}

func TestVersionsSideBySide(t *testing.T) {
	testkit.Need(t, "redis-server")
	began := time.Now()
	v := buildVersions(t)
	say(t, "built in %s", time.Since(began).Round(time.Millisecond))
	addr := testkit.StartRedis(t)
	rdb := testkit.Connect(t, addr)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(t *testing.T, v versions, rdb *redis.Client){
			"traces":                       tracesSideBySide,
			"bans":                         bansSideBySide,
			"reservations":                 reservationsSideBySide,
			"a reset ends claims":          resetsEndClaims,
			"what drained is not returned": drainedIsNotReturned,
			"slots":                        slotsSideBySide,
			"slots of killed processes":    slotsOfKilledProcesses,
			"leases":                       leasesSideBySide,
			"requests":                     requestsSideBySide,
			"plans":                        plansSideBySide,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, v, rdb)
			})
		}
	})
}

// travel lets time pass for all keys of a prefix: it makes them expire sooner, as the expiry of
// keys is the library's only clock.
var travel = redis.NewScript(`
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
  redis.call('PEXPIREAT', key, redis.call('PEXPIRETIME', key) - ARGV[2])
end
return 0`)

// tracesSideBySide makes seeded random steps, each by one of the versions. Every decision must
// equal the model's, and after each step both versions must report the same.
func tracesSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	calendar := inFifteenDays(9)
	for name, set := range map[string]struct {
		policy  sidebyside.Policy
		travels bool // time passes, as the model's clock can be set
	}{
		"token bucket":      {sidebyside.Policy{Limits: []ginlimit.Limit{slow(8)}}, true},
		"burst":             {sidebyside.Policy{Limits: []ginlimit.Limit{slow(8).WithBurst(13)}}, true},
		"two token buckets": {sidebyside.Policy{Limits: []ginlimit.Limit{slow(8), slow(11).WithBurst(7)}}, true},
		"three token buckets": {sidebyside.Policy{
			Limits: []ginlimit.Limit{slow(8).WithBurst(10), slow(13), slow(40).WithBurst(6)}}, true},
		"fixed window":   {sidebyside.Policy{Algorithm: ginlimit.FixedWindow, Limits: []ginlimit.Limit{slow(8)}}, true},
		"sliding window": {sidebyside.Policy{Algorithm: ginlimit.SlidingWindow, Limits: []ginlimit.Limit{slow(8)}}, true},
		"two fixed windows": {sidebyside.Policy{Algorithm: ginlimit.FixedWindow,
			Limits: []ginlimit.Limit{slow(8), slow(13)}}, true},
		"two sliding windows": {sidebyside.Policy{Algorithm: ginlimit.SlidingWindow,
			Limits: []ginlimit.Limit{slow(8), slow(13)}}, true},
		"calendar":                     {sidebyside.Policy{Limits: []ginlimit.Limit{calendar}}, false},
		"calendar beside token bucket": {sidebyside.Policy{Limits: []ginlimit.Limit{calendar, slow(11)}}, false},
		"calendar beside sliding window": {sidebyside.Policy{Algorithm: ginlimit.SlidingWindow,
			Limits: []ginlimit.Limit{slow(7), calendar}}, false},
		"hidden keys": {sidebyside.Policy{Secret: "0123456789abcdef", Limits: []ginlimit.Limit{slow(8)}}, true},
		"floor":       {sidebyside.Policy{Floor: 3, Limits: []ginlimit.Limit{slow(8), slow(13)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set.policy.Prefix, set.policy.Name = name, name
			both := v.pair(t, rdb.Options().Addr)
			for seed := range uint64(4) {
				follow(t, rdb, both, set.policy, seed, model(t, set.policy, set.travels), set.travels)
			}
		})
	}
}

// model returns a function that makes steps as one process alone would.
func model(t *testing.T, p sidebyside.Policy, travels bool) func(testkit.Step) sidebyside.Result {
	var m testkit.Steppable = testkit.NewBucketModel()
	if p.Algorithm != ginlimit.TokenBucket {
		m = testkit.NewWindowModel(p.Algorithm)
	}
	if travels {
		return func(s testkit.Step) sidebyside.Result {
			m.Advance(s.Wait)
			return sidebyside.ResultOf(s.Expect(m))
		}
	}
	opts := []ginlimit.PolicyOption{ginlimit.WithFloor(p.Floor)}
	for _, limit := range p.Limits {
		if limit.Calendar == (ginlimit.Calendar{}) {
			limit = limit.WithAlgorithm(p.Algorithm)
		}
		opts = append(opts, limit)
	}
	local := testkit.NewPolicy(t, testkit.NewLocal(t), p.Name, opts...)
	return func(s testkit.Step) sidebyside.Result {
		r, err := s.ApplyTo(t.Context(), local)
		require.NoError(t, err)
		return sidebyside.ResultOf(r)
	}
}

// follow makes the steps of a seed, each by a process that the seed chooses.
func follow(t *testing.T, rdb *redis.Client, both []*process, p sidebyside.Policy, seed uint64,
	expect func(testkit.Step) sidebyside.Result, travels bool) {
	random := rand.New(rand.NewPCG(seed, 1))
	key := fmt.Sprint("client ", seed)
	blocked := false
	for i := range 60 {
		s := testkit.Step{Op: "AllowN", Key: key, N: 1 + random.IntN(4), Limits: p.Limits}
		if travels && random.IntN(3) == 0 {
			s.Wait = time.Duration(1+30*random.IntN(14)) * time.Minute // so no token comes back at that moment
			require.NoError(t, travel.Run(t.Context(), rdb, []string{}, p.Prefix, s.Wait.Milliseconds()).Err())
		}
		switch random.IntN(16) {
		case 0, 1:
			s.Op, s.N = "Refund", 1+random.IntN(3)
		case 2, 3, 4:
			s.Op, s.N = "AllowUpTo", 1+random.IntN(9)
		case 5:
			s.Op, s.D = "Block", time.Duration(1+random.IntN(5))*7*time.Hour
			blocked = true
		case 6:
			s.Op, blocked = "Reset", false
		case 7:
			s.N = 100
		}
		maker := both[random.IntN(2)]
		want := expect(s)
		got := maker.do(t, sidebyside.Command{Op: s.Op, Policy: p, Key: key, N: s.N, D: s.D}).Result
		what := fmt.Sprintf("seed %d, step %d by the %s version, %s: want %+v, got %+v",
			seed, i, maker.version, s, want, got)
		if s.Op == "AllowN" || s.Op == "AllowUpTo" {
			requireSame(t, want, got, time.Minute, blocked, what)
			require.Equal(t, p.Name, got.Name, what)
			require.Equal(t, ginlimit.FromRedis.String(), got.Source, what)
		}
		want = expect(testkit.Step{Op: "Peek", Key: key, Limits: p.Limits})
		old, now, took := peekByBoth(t, both, p, key)
		requireSame(t, want, old, time.Minute, blocked, what)
		requireSame(t, old, now, took, false, what)
		require.Equal(t, old.Name, now.Name, what)
		require.Equal(t, old.Source, now.Source, what)
	}
}

// peekByBoth has both versions look, and returns what they see and how long that took. Of limits
// that are blocked for the same time, each version may report another one if a millisecond ends
// meanwhile: then both look again.
func peekByBoth(t *testing.T, both []*process, p sidebyside.Policy, key string) (old, now sidebyside.Result,
	took time.Duration) {
	t.Helper()
	peek := sidebyside.Command{Op: "Peek", Policy: p, Key: key}
	testkit.BecomesTrue(t.Context().Done(), func() bool {
		began := time.Now()
		old, now = both[0].do(t, peek).Result, both[1].do(t, peek).Result
		took = time.Since(began) + 2*time.Millisecond
		return old.Limit == now.Limit
	})
	return old, now, took
}

// requireSame asserts that two decisions are the same, made up to some time apart. During a block,
// which of several limits ends last may be a matter of less.
func requireSame(t *testing.T, want, got sidebyside.Result, apart time.Duration, blocked bool, what string) {
	t.Helper()
	require.Equal(t, want.Allowed, got.Allowed, what)
	require.Equal(t, want.Granted, got.Granted, what)
	require.Equal(t, want.Remaining, got.Remaining, what)
	require.Equal(t, want.RetryAfter < 0, got.RetryAfter < 0, what)
	require.InDelta(t, want.RetryAfter, got.RetryAfter, float64(apart), what)
	if !blocked {
		require.Equal(t, want.Limit, got.Limit, what)
		require.InDelta(t, want.ResetAfter, got.ResetAfter, float64(apart), what)
	}
}

// bansSideBySide: a client that one version bans is banned by the other one for the same time, and
// the next ban is twice as long, whichever version decides.
func bansSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	for i, first := range both {
		second := both[1-i]
		p := sidebyside.Policy{
			Prefix: "bans of " + first.version, Name: "ban",
			Limits: []ginlimit.Limit{{Rate: 4, Period: 8 * time.Hour}},
			Ban:    [2]time.Duration{10 * time.Hour, 30 * time.Hour},
		}
		take := sidebyside.Command{Op: "AllowN", Policy: p, Key: "client", N: 2}
		for j, ban := range []time.Duration{10 * time.Hour, 20 * time.Hour, 30 * time.Hour} {
			require.True(t, first.do(t, take).Result.Allowed, "%d: after a ban, in the probation", j)
			require.True(t, second.do(t, take).Result.Allowed)
			denied := first.do(t, take).Result
			require.False(t, denied.Allowed)
			for _, by := range both {
				again := by.do(t, take).Result
				requireSame(t, denied, again, time.Minute, false, by.version)
				require.InDelta(t, ban, again.RetryAfter, float64(time.Minute), "ban %d by the %s version", j, by.version)
			}
			require.NoError(t, travel.Run(t.Context(), rdb, []string{}, p.Prefix, (ban+time.Minute).Milliseconds()).Err())
			first, second = second, first
		}
		// Another denial, and a reset by the other version, which ends the ban.
		first.do(t, sidebyside.Command{Op: "AllowUpTo", Policy: p, Key: "client", N: 4})
		require.False(t, first.do(t, take).Result.Allowed)
		second.do(t, sidebyside.Command{Op: "Reset", Policy: p, Key: "client"})
		require.Equal(t, 2, first.do(t, take).Result.Remaining)
	}
}

// kinds are limits of each kind that hold n.
func kinds(prefix string, n int) map[string]sidebyside.Policy {
	all := map[string]sidebyside.Policy{
		"token bucket":   {Limits: []ginlimit.Limit{slow(n)}},
		"fixed window":   {Algorithm: ginlimit.FixedWindow, Limits: []ginlimit.Limit{slow(n)}},
		"sliding window": {Algorithm: ginlimit.SlidingWindow, Limits: []ginlimit.Limit{slow(n)}},
		"calendar":       {Limits: []ginlimit.Limit{inFifteenDays(n)}},
		"several":        {Limits: []ginlimit.Limit{slow(2*n + 1), slow(n), inFifteenDays(2 * n)}},
	}
	for name, p := range all {
		p.Prefix, p.Name = prefix, name
		all[name] = p
	}
	return all
}

// reservationsSideBySide: processes of both versions take tokens of one key and settle reservations
// at the same time. In the end the key has the tokens that they did not use.
func reservationsSideBySide(t *testing.T, v versions, rdb *redis.Client) {
	processes := append(v.pair(t, rdb.Options().Addr), v.pair(t, rdb.Options().Addr)...)
	const holds = 500
	for name, p := range kinds("reservations", holds) {
		replies := atOnce(t, processes, sidebyside.Command{Op: "TakeAndSettle", Policy: p, Key: name, N: 25, Callers: 4})
		net := 0
		for _, r := range replies {
			net += r.Net
		}
		more := net - holds // which was charged into debt
		if more >= 0 {
			processes[0].do(t, sidebyside.Command{Op: "Refund", Policy: p, Key: name, N: more + 1})
			net = holds - 1
		}
		say(t, "%s: %d of %d taken", name, net, holds)
		for _, process := range processes {
			r := process.do(t, sidebyside.Command{Op: "Peek", Policy: p, Key: name}).Result
			require.Equal(t, holds-net, r.Remaining, "%s, %s version", name, process.version)
		}
	}
}

// later waits until Redis' clock has moved on.
func later(t *testing.T, rdb *redis.Client) {
	t.Helper()
	began, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		now, err := rdb.Time(t.Context()).Result()
		return err == nil && now.Sub(began) > 3*time.Millisecond
	}))
}

// resetsEndClaims: one version reserves tokens, the other one resets the key and takes. The
// reservation, settled with less, gives back none of the tokens taken since.
func resetsEndClaims(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	for i, holder := range both {
		other := both[1-i]
		for name, p := range kinds("claims of "+holder.version, 10) {
			do := func(p2 *process, op string, n int) sidebyside.Result {
				return p2.do(t, sidebyside.Command{Op: op, Policy: p, Key: name, N: n, ID: name}).Result
			}
			require.Equal(t, 4, do(holder, "Reserve", 6).Remaining, name)
			later(t, rdb)
			do(other, "Reset", 0)
			later(t, rdb)
			require.Equal(t, 3, do(other, "Reserve", 7).Remaining, name)
			do(holder, "Settle", 0)
			require.Equal(t, 3, do(other, "Peek", 0).Remaining, "%s: the tokens of the other version", name)
			do(other, "Settle", 2)
			do(other, "Settle", 0)
			require.Equal(t, 8, do(holder, "Peek", 0).Remaining, "%s: settled once", name)
		}
	}
}

// drainedIsNotReturned: one version reserves all tokens of a bucket, which flow back before the
// other one takes them. The reservation, canceled then, gives nothing back.
func drainedIsNotReturned(t *testing.T, v versions, rdb *redis.Client) {
	both := v.pair(t, rdb.Options().Addr)
	const burst = 100_000
	for i, holder := range both {
		other := both[1-i]
		began := time.Now()
		p := sidebyside.Policy{Prefix: "drained of " + holder.version, Name: "drained",
			Limits: []ginlimit.Limit{{Rate: burst, Period: 300 * time.Millisecond, Burst: burst}}}
		do := func(p2 *process, op string, n int) sidebyside.Result {
			return p2.do(t, sidebyside.Command{Op: op, Policy: p, Key: "client", N: n, ID: "drained"}).Result
		}
		require.True(t, do(holder, "Reserve", burst).Allowed)
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return do(other, "Peek", 0).Remaining == burst
		}))
		took := do(other, "AllowUpTo", burst).Granted
		do(holder, "Settle", 0)
		took += do(other, "AllowUpTo", burst).Granted
		flowedBack := int(time.Since(began) * burst / (300 * time.Millisecond))
		require.LessOrEqual(t, took, flowedBack, "more than flowed back")
	}
}
