package bucket

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// tenantsOfTest are tenants of one bucket, as a store keeps them.
type tenantsOfTest struct {
	limit, b Bucket
	level    int64
	sum, all int64
	holds    map[string]Holder
}

func newTenantsOfTest(limit Bucket) *tenantsOfTest {
	return &tenantsOfTest{limit: limit, b: NewTenants(&limit), holds: map[string]Holder{}}
}

// state returns what a tenant of a weight finds.
func (t *tenantsOfTest) state(name string, weight int64) State {
	of := &Shares{Sum: t.sum, Weights: t.all, Finish: NoFinish, Weight: weight}
	if h, ok := t.holds[name]; ok {
		of.Finish, of.Held = h.Finish, h.Weight
	}
	return State{Level: t.level, Shares: of}
}

// inOrder returns who holds something, in the order of the finishes.
func (t *tenantsOfTest) inOrder() (names []string) {
	for name := range t.holds {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(t.holds[a].Finish - t.holds[b].Finish) })
	return names
}

// take charges the bucket by one charge of n tokens, if that fits.
func (t *tenantsOfTest) take(name string, weight, n int64) bool {
	s := t.state(name, weight)
	if t.limit.Fits(State{Level: t.level}, 1, n) == 0 || t.b.Fits(s, 1, n) == 0 {
		return false
	}
	t.keep(name, t.b.Charged(s, 1, n))
	return true
}

func (t *tenantsOfTest) keep(name string, s State) {
	t.level, t.sum, t.all = s.Level, s.Shares.Sum, s.Shares.Weights
	delete(t.holds, name)
	if s.Shares.Finish != NoFinish {
		t.holds[name] = Holder{s.Shares.Finish, s.Shares.Held}
	}
}

// later lets time pass, and removes whose finish has passed.
func (t *tenantsOfTest) later(ms int64) {
	t.level = max(0, t.level-ms*t.limit.Drain)
	for _, name := range t.inOrder() {
		h := t.holds[name]
		if float64(h.Finish) > t.b.Virtual(t.sum, t.all, t.level) {
			break
		}
		delete(t.holds, name)
		t.sum, t.all = t.sum-h.Weight*h.Finish, t.all-h.Weight
	}
}

// wait returns how long a charge of a tenant waits for its share.
func (t *tenantsOfTest) wait(name string, weight, n int64) int64 {
	names, at := t.inOrder(), -1
	return t.b.TenantWait(t.state(name, weight), n, func() (h Holder, own, ok bool) {
		if at++; at == len(names) {
			return h, false, false
		}
		return t.holds[names[at]], names[at] == name, true
	})
}

// many charges one token after another, and returns how many fit.
func (t *tenantsOfTest) many(name string, weight int64) (n int64) {
	for t.take(name, weight, 1) {
		n++
	}
	return n
}

// TestTenantsHoldNoMoreThanIsFree times their weights, and one that holds nothing may have what is free.
func TestTenantsHoldNoMoreThanIsFree(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 10, 100, second)
	all := newTenantsOfTest(limit)
	require.EqualValues(t, 50, all.b.RemainingOf(all.state("a", 1)))
	require.EqualValues(t, 50, all.many("a", 1), "half of the burst, alone")
	require.Zero(t, all.b.RemainingOf(all.state("a", 1)))
	require.EqualValues(t, 25, all.b.RemainingOf(all.state("b", 1)))
	require.EqualValues(t, 38, all.b.RemainingOf(all.state("b", 3)), "38 ≤ 3 × (50 - 37)")
	require.EqualValues(t, 25, all.many("b", 1))
	require.EqualValues(t, 13, all.many("c", 1), "13 ≤ 25 - 12")
	require.EqualValues(t, 8800, all.level/limit.Cost*100)
	for _, name := range []string{"a", "b", "c"} {
		require.False(t, all.take(name, 1, 1), name)
	}
	require.True(t, all.take("a", 9, 1), "its weight is larger now")

	few := newTenantsOfTest(newBucket(t, Token, 10, 2, second))
	for _, name := range []string{"a", "b"} {
		require.True(t, few.take(name, 1, 1), "it holds nothing: %s", name)
		require.False(t, few.take(name, 1, 1), name)
	}
}

// TestTenantsHoldTheLevel together, whatever they take and whenever: what is left of their charges is the
// bucket's level.
func TestTenantsHoldTheLevel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := newBucket(t, Token, 1+r.Int64N(50), 20+r.Int64N(1000), []int64{second, minute, hour}[r.IntN(3)])
		all := newTenantsOfTest(limit)
		for range 200 {
			all.later(r.Int64N(1 + limit.FillTime()/20))
			name := string(rune('a' + r.IntN(6)))
			weight, n := 1+r.Int64N(4), 1+r.Int64N(8)
			held := all.b.Holds(all.state(name, weight).Shares, all.level)
			if all.take(name, weight, n) {
				after := all.b.Holds(all.state(name, weight).Shares, all.level)
				require.InDelta(t, float64(held+n*limit.Cost), float64(after), 2+4*float64(limit.Cost)/Parts, "seed %d", seed)
			}
			sum := int64(0)
			for name, h := range all.holds {
				sum += all.b.Holds(all.state(name, h.Weight).Shares, all.level)
			}
			require.InDelta(t, float64(all.level), float64(sum), 8, "seed %d", seed)
		}
	}
}

// TestTenantsWait exactly as long as it takes until their charge fits, if nobody else charges the bucket.
func TestTenantsWait(t *testing.T) {
	t.Parallel()
	waited := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		limit := newBucket(t, Token, 1+r.Int64N(50), 20+r.Int64N(200), []int64{second, minute}[r.IntN(2)])
		all := newTenantsOfTest(limit)
		for range 60 {
			all.take(string(rune('a'+r.IntN(6))), 1+r.Int64N(4), 1+r.Int64N(8))
		}
		name, weight, n := string(rune('a'+r.IntN(6))), 1+r.Int64N(4), 1+r.Int64N(8)
		wait := all.wait(name, weight, n)
		if wait == 0 {
			continue
		}
		waited++
		rounding := 1 + limit.duration(limit.Cost*weight/Parts) // of the slack
		all.later(max(0, wait-1-rounding))
		require.Zero(t, all.b.Fits(all.state(name, weight), 1, n), "seed %d: not before", seed)
		all.later(1 + min(rounding, wait-1))
		require.EqualValues(t, 1, all.b.Fits(all.state(name, weight), 1, n), "seed %d: then", seed)
		require.Zero(t, all.wait(name, weight, n))
	}
	require.Greater(t, waited, 100)
}

// TestTenantsOfSharesNobodyKnows deny nothing.
func TestTenantsOfSharesNobodyKnows(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 10, 100, second)
	b := NewTenants(&limit)
	require.False(t, b.IsLimit())
	require.EqualValues(t, 7, b.Fits(State{Level: 9000}, 7, 3))
	require.EqualValues(t, int64(math.MaxInt64), b.RemainingOf(State{Level: 9000}))
	require.Equal(t, State{Level: 400}, b.Charged(State{Level: 100}, 1, 3))
	require.Zero(t, b.Status(State{Level: 9000}, 1).Retry)
	require.Zero(t, b.MoreOf(State{Level: 9000}))
	require.False(t, b.Denies(b.After(State{Level: 9000}, 0), 1))
}

// TestTenantsAreForgotten where a finish or the sum would be too large to count exactly. Then what the
// bucket lacks is of a tenant without a name.
func TestTenantsAreForgotten(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 10, 100, second)
	b := NewTenants(&limit)
	for name, of := range map[string]Shares{
		"finish": {Sum: MaxFinish - 10, Weights: 1, Finish: NoFinish, Weight: 1},
		"sum":    {Sum: MaxUnits - MaxFinish/2, Weights: 1 << 20, Finish: NoFinish, Weight: 1000},
	} {
		after := b.Charged(State{Level: 100, Shares: &of}, 3, 1)
		require.Equal(t, State{Level: 400, Shares: &Shares{
			Sum: 4 * Parts, Weights: 1, Finish: NoFinish, Weight: of.Weight,
		}}, after, name)
	}
}

// TestTenantThatGivesBackAllHoldsNothing where the sum of what is held is rounded below the level.
func TestTenantThatGivesBackAllHoldsNothing(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 10, 100, second)
	b := NewTenants(&limit)
	const other, own = 199 * 1975, 25 * 5242 // less than 6 tokens and less than 2
	s := Shares{Sum: other + own, Weights: 199 + 25, Finish: 5242, Held: 25, Weight: 25}
	require.Negative(t, b.Virtual(s.Sum, s.Weights, 8*b.Cost))
	b.Add(&s, 8*b.Cost, 6*b.Cost)
	require.Equal(t, Shares{Sum: 8*Parts - own, Weights: 199, Finish: NoFinish, Weight: 25}, s)
}

// TestWhatNoTenantHasChargedFlowsBackLast: the tenants hold what they have charged, whatever a policy that is
// not shared takes, or however the rate is raised.
func TestWhatNoTenantHasChargedFlowsBackLast(t *testing.T) {
	t.Parallel()
	all := newTenantsOfTest(newBucket(t, Token, 10, 100, second))
	require.True(t, all.take("a", 1, 10))
	all.level += 30 * all.limit.Cost
	require.True(t, all.take("b", 1000, 2))
	holds := func(name string, weight, want int64) {
		t.Helper()
		s := all.state(name, weight)
		require.EqualValues(t, want*all.limit.Cost, all.b.Holds(s.Shares, all.level))
	}
	holds("a", 1, 10)
	holds("b", 1000, 2)
	all.later(100)
	require.False(t, all.take("a", 1, 50))
	holds("a", 1, 10)
	holds("b", 1000, 1)
	all.later(1000)
	holds("b", 1000, 0)
	holds("a", 1, 1)
	all.later(100)
	holds("a", 1, 0)
	require.EqualValues(t, 30*all.limit.Cost, all.level)
	require.True(t, all.take("a", 1, 35))
	require.False(t, all.take("a", 1, 1))
}

// TestOnlyAChargeChangesAWeight: what a tenant gives back was charged by the weight that it had.
func TestOnlyAChargeChangesAWeight(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 10, 100, second)
	b := NewTenants(&limit)
	s := Shares{Sum: 20 * Parts, Weights: 10, Finish: 2 * Parts, Held: 10, Weight: 1}
	b.Add(&s, 20*b.Cost, 15*b.Cost)
	require.EqualValues(t, 10, s.Held)
	require.EqualValues(t, 15*b.Cost, b.Holds(&s, 15*b.Cost))
	b.Add(&s, 15*b.Cost, 16*b.Cost)
	require.EqualValues(t, 1, s.Held)
	require.EqualValues(t, 16*b.Cost, b.Holds(&s, 16*b.Cost))
}

// TestMoreForTenant is when the tenant has another token, alone and beside another.
func TestMoreForTenant(t *testing.T) {
	t.Parallel()
	all := newTenantsOfTest(newBucket(t, Token, 10, 100, second))
	all.many("a", 1)
	require.EqualValues(t, 50, all.b.MoreOf(all.state("a", 1)), "alone, what flows back counts twice")
	all.later(49)
	require.Zero(t, all.b.RemainingOf(all.state("a", 1)))
	all.later(1)
	require.EqualValues(t, 1, all.b.RemainingOf(all.state("a", 1)))
}

// TestAnyLimitHasAShare divides limits near all bounds: there is always a bucket, and it never
// holds or regains more than its part of the whole, but for one token.
func TestAnyLimitHasAShare(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	valid := [Kinds]int{}
	for range 20_000 {
		kind := Kind(r.IntN(Kinds))
		rate, burst, period := someNumber(r, math.MaxInt64), someNumber(r, 1<<53), someNumber(r, 1<<40)
		if kind != Token {
			rate = burst
		}
		b, ok := New(kind, "id", rate, burst, period)
		if !ok {
			continue // too large to be counted at all
		}
		valid[kind]++
		processes := someNumber(r, math.MaxInt64)
		share := b.Share(processes)
		about := []any{"%+v among %d: %+v", b, processes, share}
		require.LessOrEqual(t, share.rate(), max(1, rate/processes), about...)
		require.Positive(t, share.rate(), about...)
		require.LessOrEqual(t, share.Burst, max(1, burst/processes), about...)
		require.Positive(t, share.Burst, about...)
		require.Equal(t, burst, share.Whole, about...)
		require.Equal(t, b.ID, share.ID)
		require.Equal(t, b.Period, share.Period)
		if processes == 1 {
			require.Equal(t, b, share)
		}
	}
	for kind, n := range valid {
		require.Greater(t, n, 200, "kind %d", kind)
	}
}

// TestShareOfALargeLimit has divided rates that need units too small for the divided burst.
func TestShareOfALargeLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate, burst, period, processes int64
		shareRate, shareBurst          int64
	}{
		{2_000_000_000, 1 << 50, second, 2, 1_000_000_000, 1 << 49},
		{2_000_000_000, 1 << 50, second, 3, 666_666_000, 1 << 50 / 3}, // whole tokens per millisecond
		{1000, 8_000_000_000_000, 1_000_000, 2, 500, 4_000_000_000_000},
		{1000, 8_000_000_000_000, 1_000_000, 3, 333, MaxUnits / 2 / 1_000_000}, // units of a token per period
	} {
		b := newBucket(t, Token, c.rate, c.burst, c.period)
		want := newBucket(t, Token, c.shareRate, c.shareBurst, c.period)
		want.Whole = c.burst
		require.Equal(t, want, b.Share(c.processes))
	}
}

// TestShareOfAFloor is a part of it, and leaves at least one token to take.
func TestShareOfAFloor(t *testing.T) {
	for _, c := range []struct{ burst, floor, processes, shareBurst, shareFloor int64 }{
		{100, 40, 4, 15, 10}, {100, 40, 3, 20, 13}, {100, 97, 4, 1, 24}, {3, 2, 4, 1, 0}, {100, 40, 1, 60, 40},
		{100, 0, 4, 25, 0},
	} {
		for kind := range Kind(Kinds) {
			b := newBucket(t, kind, 100, c.burst, second)
			b.Leave(c.floor)
			share := b.Share(c.processes)
			require.Equal(t, c.shareBurst, share.Burst, "%v of kind %d", c, kind)
			require.Equal(t, c.shareBurst*share.Cost, share.Capacity, "%v of kind %d", c, kind)
			require.Equal(t, c.shareFloor*share.Cost, share.Floor, "%v of kind %d", c, kind)
			require.Equal(t, c.burst-c.floor, share.Whole, "%v of kind %d", c, kind)
			require.Equal(t, share.Debt(0, MaxUnits), 2*(c.shareBurst+c.shareFloor), "%v of kind %d", c, kind)
		}
	}
}
