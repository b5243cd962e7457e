package scripts_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// guardTrace makes calls on the limits, the ban and the slots of a client, in Redis and in the process.
type guardTrace struct {
	mini  *miniredis.Miniredis
	rdb   *redis.Client
	r     *rand.Rand
	kind  guardKind
	ban   bucket.Bucket
	count int64 // slots
	store *memory.Store
	slots [2]slotModel // of the client, and of another one
	bans  int64        // how often it was banned, until probation is over
	free  int64        // the millisecond at which that is
	times []int64      // milliseconds at which something ends
	base  int64        // about so many attempts are settled
	what  string       // is done, for a failure
}

const banKey, slotKey, otherSlotKey = "{k}:ban", "{k}:slots", "{other}:slots"

// TestGuardsEqualTheModel at every step of calls drawn at random: they reply as much as the process
// says, and leave what it says.
func TestGuardsEqualTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		for i, name := range slices.Sorted(maps.Keys(guardKinds(time.Time{}))) {
			t.Run(fmt.Sprintf("seed %d, %s", seed, name), func(t *testing.T) {
				t.Parallel()
				testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
					g := &guardTrace{mini: b.Mini, rdb: b.Redis,
						r: rand.New(rand.NewPCG(seed, uint64(i))), store: memory.New(memory.MaxBuckets)}
					g.kind = guardKinds(time.Now())[name]
					g.ban, g.count = bucket.NewBan(20, 100), 4
					if g.kind.limits == nil {
						g.count = 1 + 2*int64(seed)
					}
					for step := range 150 / testkit.RaceShare {
						g.pause()
						g.step(t, step)
					}
				})
			})
		}
	}
}

func (g *guardTrace) now() int64 { return time.Now().UnixMilli() }

// pause has time pass: often until something ends, or the millisecond before.
func (g *guardTrace) pause() {
	ms := int64(0)
	switch x := g.r.IntN(100); {
	case x < 40:
	case x < 70:
		ms = g.r.Int64N(12)
	case x < 95:
		g.times = slices.DeleteFunc(g.times, func(at int64) bool { return at <= g.now() })
		if len(g.times) > 0 {
			ms = g.times[g.r.IntN(len(g.times))] - g.now() - g.r.Int64N(2)
		}
	default:
		ms = g.r.Int64N(slotLife)
	}
	time.Sleep(time.Duration(ms) * time.Millisecond)
	g.mini.SetTime(time.Now())
}

// ends notes that something ends in so many milliseconds.
func (g *guardTrace) ends(ms int64) {
	g.times = append(g.times[max(0, len(g.times)-11):], g.now()+ms)
}

func (g *guardTrace) step(t *testing.T, step int) {
	g.what = fmt.Sprintf("step %d", step)
	switch x := g.r.IntN(100); {
	case x < 8 && len(g.kind.limits) > 0:
		g.change(t)
	case x < 22:
		g.tell(t)
	case x < 25:
		g.foreign(t)
	case x < 28:
		g.reset(t)
	default:
		g.take(t)
	}
	g.look(t)
}

// state returns what a key holds, and how long for.
func (g *guardTrace) state(t *testing.T, key string) string {
	return (&scriptKeys{rdb: g.rdb}).state(t, key)
}

// look compares what Redis keeps of the ban and the slots with the model.
func (g *guardTrace) look(t *testing.T) {
	for i, key := range []string{slotKey, otherSlotKey} {
		m, want := &g.slots[i], `"" -2ns`
		if m.ends > g.now() {
			want = fmt.Sprintf("%q %s", m.value(), time.Duration(m.ends-g.now())*time.Millisecond)
		}
		require.Equal(t, want, g.state(t, key), "%s, %s", key, g.what)
	}
	want := `"" -2ns`
	if g.free > g.now() {
		want = fmt.Sprintf(`"%d %d" %s`, g.bans, g.ban.BanLength(g.bans), time.Duration(g.free-g.now())*time.Millisecond)
	}
	require.Equal(t, want, g.state(t, banKey), g.what)
}

// limitArgs returns the limits as arguments of a script.
func (g *guardTrace) limitArgs() (keys []string, args []any) {
	for i := range g.kind.limits {
		b := &g.kind.limits[i]
		keys, args = append(keys, limitKey(b)), append(args, b.Args[:]...)
		if b.Ends != 0 {
			args[3*i] = b.Left(g.now())
		}
	}
	return keys, args
}

// eval calls a script.
func (g *guardTrace) eval(t *testing.T, script int, keys []string, args ...any) ([]int64, error) {
	reply, err := g.rdb.Eval(t.Context(), testkit.ScriptSources(t).Server[script], keys, args...).Result()
	if one, ok := reply.(int64); ok {
		return []int64{one}, err
	}
	var list []int64
	if err == nil {
		for _, one := range reply.([]any) {
			list = append(list, one.(int64))
		}
	}
	return list, err
}

// change charges the limits, into debt, or blocks them, as is done without guards.
func (g *guardTrace) change(t *testing.T) {
	op, verb := bucket.Op{Verb: bucket.Charge, N: 1 + g.r.Int64N(10)}, "charge"
	if g.r.IntN(3) == 0 {
		op, verb = bucket.Op{Verb: bucket.Block, N: 1 + g.r.Int64N(30)}, "block"
	}
	keys, args := g.limitArgs()
	_, err := g.eval(t, g.kind.script, keys, append([]any{verb, op.N, 0}, args...)...)
	require.NoError(t, err)
	g.store.Do([]byte("k"), g.kind.limits, op, make([]bucket.State, len(g.kind.limits)))
	g.ends(op.N)
}

// message draws what a process tells of its slots, and attempts that are later.
func (g *guardTrace) message() (process string, settled, held int64, attempts []int64) {
	if g.base += g.r.Int64N(2); g.base > 40 {
		g.base = 0
	}
	process = []string{"P1", "P1", "P1", "P11", "P2", "P3"}[g.r.IntN(6)]
	settled, held = max(0, g.base+g.r.Int64N(5)-3), g.r.Int64N(3)
	for _, number := range g.r.Perm(10)[:g.r.IntN(4)] {
		attempts = append(attempts, settled+1+int64(number))
	}
	if g.r.IntN(2) == 0 {
		slices.Sort(attempts)
	}
	return process, settled, held, attempts
}

// tell tells Redis of slots, of one key or two.
func (g *guardTrace) tell(t *testing.T) {
	process, settled, held, _ := g.message()
	keys, args := []string{slotKey, otherSlotKey}, []any{process}
	order := g.r.Perm(2)[:1+g.r.IntN(2)]
	var told []string
	for _, i := range order {
		doubt := g.r.IntN(2)
		if g.r.IntN(2) == 0 {
			held = 0
		}
		told, args = append(told, keys[i]), append(args, settled, held, doubt)
		m := &g.slots[i]
		m.keep(g.now(), m.look(g.now(), process, settled, held), doubt == 1)
		settled, held = settled+1, held+1
	}
	failed, err := g.eval(t, redisstore.Report, told, args...)
	g.what = fmt.Sprintf("%s, %v told %v", g.what, told, args)
	require.NoError(t, err, g.what)
	require.Empty(t, failed, g.what)
	g.ends(slotLife)
}

// guardCall is a call of guards.lua.
type guardCall struct {
	keys     []string
	args     []any
	buckets  []bucket.Bucket // the limits, and then the guards
	op       bucket.Op
	slots    *slotLook
	attempts []int64
}

// call draws a call with a ban, slots or both.
func (g *guardTrace) call(verb string) *guardCall {
	c := &guardCall{op: bucket.Op{Charges: g.r.Int64N(3), N: 1 + g.r.Int64N(2), Bans: bucket.Bans(g.r.IntN(3))}}
	guards := 1 + g.r.IntN(3) // 1: a ban, 2: slots, 3: both
	keys, limits := g.limitArgs()
	c.keys, c.buckets = keys, slices.Clone(g.kind.limits)
	var more []any
	if guards != 2 {
		c.keys, c.buckets = append(c.keys, banKey), append(c.buckets, g.ban)
		more = append(more, g.ban.Cost, g.ban.Capacity, int(c.op.Bans))
	}
	if guards > 1 {
		process, settled, held, attempts := g.message()
		c.op.Charges, c.attempts = int64(len(attempts)), attempts
		c.slots = g.slots[0].look(g.now(), process, settled, held)
		text := ""
		for _, number := range attempts {
			text += strconv.FormatInt(number, 10) + ","
		}
		c.keys, c.buckets = append(c.keys, slotKey), append(c.buckets, bucket.NewSlots(g.count))
		more = append(more, g.count, process, settled, held, text)
	}
	charges := c.op.Charges
	if verb == "reset" { // without records
		charges = 0
	}
	c.args = append(append([]any{verb, c.op.N, charges}, limits...), []string{"", "ban", "slots", "both"}[guards])
	c.args = append(append(c.args, more...), len(g.kind.limits))
	return c
}

// script returns the script that decides with guards.
func (g *guardTrace) script() int {
	if g.kind.script == redisstore.BanOrSlots {
		return redisstore.BanOrSlots
	}
	return redisstore.WithBanOrSlots + g.kind.script
}

// take makes a decision and compares it with the model's.
func (g *guardTrace) take(t *testing.T) {
	c := g.call("take")
	g.what = fmt.Sprintf("%s: %v %v, slots %q", g.what, c.keys, c.args, g.state(t, slotKey))
	got, err := g.eval(t, g.script(), c.keys, c.args...)
	require.NoError(t, err, g.what)

	states := make([]bucket.State, len(c.buckets))
	if c.slots != nil {
		c.slots.own.later = slices.DeleteFunc(c.slots.own.later, func(number int64) bool {
			return slices.Contains(c.attempts, number)
		})
		c.attempts = slices.DeleteFunc(c.attempts, func(number int64) bool { return number <= c.slots.own.settled }) // late
		c.op.Charges = int64(len(c.attempts))
		states[len(states)-1].Level = c.slots.inUse()
	}
	limits, guards := len(g.kind.limits), c.buckets[len(g.kind.limits):]
	g.store.Do([]byte("k"), c.buckets, c.op, states)
	charges, fits := c.op.Charges, c.op.Charges // that fit in all, and in the guards alone
	for i := range c.buckets {
		charges = c.buckets[i].Fit(states[i].Level, charges, c.op.N)
		if i >= limits {
			fits = c.buckets[i].Fit(states[i].Level, fits, c.op.N)
		}
	}
	if c.slots != nil && charges > 0 {
		c.slots.own.later = append(c.slots.own.later, c.attempts[:charges]...)
		g.slots[0].keep(g.now(), c.slots, false)
		g.ends(slotLife)
	}

	got, whole := g.whole(got)
	var want []int64
	for i, s := range states[:limits] {
		want = append(want, s.Level)
		if b := &c.buckets[i]; whole && b.Kind != bucket.Token {
			reply := got[len(want)-1:]
			if b.Kind == bucket.SlidingWindow && fits > 0 && reply[2] == 0 {
				s.Wait = 0 // it does not say when one more fits if all were made
			}
			want = append(want, s.Soon, s.Wait, s.Reset, reply[4])
		}
		g.ends(max(s.Wait, s.Soon))
	}
	for i, s := range states[limits:] {
		if want = append(want, s.Level); guards[i].Kind == bucket.Ban {
			if want = append(want, s.Wait); s.Wait != s.Level {
				g.banned(s.Wait)
			}
			g.ends(s.Wait)
		}
	}
	require.Equal(t, want, got, g.what)
}

// whole returns a reply without what it begins with if it has all integers of windows, and whether it has.
func (g *guardTrace) whole(reply []int64) ([]int64, bool) {
	if g.kind.script < redisstore.Single || g.kind.script == redisstore.BanOrSlots {
		return reply, true
	}
	if reply[0] == redisstore.Whole {
		return reply[1:], true
	}
	return reply, false
}

// banned notes that the client is banned for so many milliseconds.
func (g *guardTrace) banned(ms int64) {
	if g.free <= g.now() {
		g.bans = 0
	}
	g.bans, g.free = g.bans+1, g.now()+2*ms
	g.ends(2 * ms)
}

// reset forgets limits and ban. Slots stay.
func (g *guardTrace) reset(t *testing.T) {
	c := g.call("reset")
	g.what = fmt.Sprintf("%s: %v %v", g.what, c.keys, c.args)
	got, err := g.eval(t, g.script(), c.keys, c.args...)
	require.NoError(t, err, g.what)
	limits := len(g.kind.limits)
	more := 0
	for i := range c.buckets[limits:] {
		if more++; c.buckets[limits+i].Kind == bucket.Ban {
			more++
			g.free = 0
		}
	}
	require.Equal(t, make([]int64, more), got[len(got)-more:], g.what)
	for i := range g.kind.limits {
		if more++; g.kind.limits[i].Kind != bucket.Token {
			more += 4
		}
	}
	got, whole := g.whole(got)
	require.True(t, whole, g.what)
	require.Len(t, got, more, g.what)
	g.store.Do([]byte("k"), c.buckets, bucket.Op{Verb: bucket.Reset, N: 1}, make([]bucket.State, len(c.buckets)))
}

// TestABanThatIsNotKept refuses all the same, and is not told of: nobody is banned by it.
func TestABanThatIsNotKept(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	const tooLong = int64(1 << 62) // Redis does not keep a key for twice as long
	g := &guardTrace{rdb: rdb}
	take := []any{"take", 1, 1, 7, 200, 200, "ban", tooLong, tooLong, 1, 1}
	for _, want := range [][]int64{{0, 0, 0}, {200, 0, 0}, {200, 0, 0}} {
		got, err := g.eval(t, redisstore.WithBanOrSlots+int(bucket.Token), []string{"{k}:a", banKey}, take...)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, `"" -2ns`, g.state(t, banKey))
	}
}

// foreign has a key hold what it does not for a while. Every call that needs it is an error and changes nothing.
func (g *guardTrace) foreign(t *testing.T) {
	c := g.call("take")
	key := banKey
	if c.slots != nil && (g.r.IntN(2) == 0 || !slices.Contains(c.keys, banKey)) {
		key = slotKey
	}
	ctx := t.Context()
	value, ttl := g.rdb.Get(ctx, key).Val(), g.rdb.PTTL(ctx, key).Val()
	require.NoError(t, g.rdb.Del(ctx, key).Err())
	left := 10 * time.Millisecond
	switch x := g.r.IntN(3); {
	case x == 0:
		require.NoError(t, g.rdb.RPush(ctx, key, "x").Err())
		require.NoError(t, g.rdb.PExpire(ctx, key, left).Err())
	case x == 1:
		text := []string{"x", "2 5 ", " 2 5", "2", "P1 0 1", "P1 1 1 1;", "10 10 ", "x 10 10 1"}[g.r.IntN(8)]
		require.NoError(t, g.rdb.Set(ctx, key, text, left).Err())
	case key == banKey:
		require.NoError(t, g.rdb.Set(ctx, key, "1 20", 0).Err())
	default:
		require.NoError(t, g.rdb.Set(ctx, key, []string{"P1 1 1 ", "10 10 1 P1 1 1 1 10 ;"}[g.r.IntN(2)], 0).Err())
	}
	var before, after []string
	for _, key := range c.keys {
		before = append(before, g.state(t, key))
	}
	g.what = fmt.Sprintf("%s: %v %v, %s holds %s", g.what, c.keys, c.args, key, g.state(t, key))
	_, err := g.eval(t, g.script(), c.keys, c.args...)
	require.Error(t, err, g.what)
	if key == slotKey {
		failed, err := g.eval(t, redisstore.Report, []string{key}, "P1", 1, 1, 1)
		require.NoError(t, err, g.what)
		require.Empty(t, failed, g.what)
	}
	for _, key := range c.keys {
		after = append(after, g.state(t, key))
	}
	require.Equal(t, before, after, g.what)
	require.NoError(t, g.rdb.Del(ctx, key).Err())
	if value != "" {
		require.NoError(t, g.rdb.Set(ctx, key, value, ttl).Err())
	}
}
