package scripts_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
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
	base  int64        // about the number of ended attempts
	what  string       // is done, for a failure
}

const banKey, slotKey, otherSlotKey = "{k}:ban", "{k}:slots", "{other}:slots"

// TestGuardsEqualTheModel at every step of calls drawn at random: they reply as much as the process
// says, and leave what it says.
func TestGuardsEqualTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		for i, name := range slices.Sorted(maps.Keys(guardKinds(time.Time{}))) {
			testkit.RunInBubble(t, fmt.Sprintf("seed %d, %s", seed, name), func(t *testing.T, b *testkit.Bubble) {
				g := &guardTrace{mini: b.Mini, rdb: b.Redis,
					r: rand.New(rand.NewPCG(seed, uint64(i))), store: memory.New(memory.MaxBuckets)}
				g.kind = guardKinds(time.Now())[name]
				g.ban, g.count = bucket.NewBan(20, 100), 4
				if g.kind.limits == nil {
					g.count = 1 + 2*int64(seed)
				}
				for step := range testkit.Steps(150) {
					g.pause()
					g.step(t, step)
				}
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
func (g *guardTrace) ends(ms int64) { g.times = append(g.times[max(0, len(g.times)-11):], g.now()+ms) }

func (g *guardTrace) step(t *testing.T, step int) {
	g.what = fmt.Sprintf("step %d", step)
	switch x := g.r.IntN(100); {
	case x < 8 && len(g.kind.limits) > 0:
		g.change(t)
	case x < 22:
		g.report(t)
	case x < 25:
		g.foreign(t)
	case x < 28:
		g.reset(t)
	default:
		g.take(t)
	}
	g.compare(t)
}

// state returns what a key holds, and how long for.
func (g *guardTrace) state(t *testing.T, key string) string {
	return (&scriptKeys{rdb: g.rdb}).state(t, key)
}

// compare compares the ban and the slots in Redis with the model.
func (g *guardTrace) compare(t *testing.T) {
	for i, key := range []string{slotKey, otherSlotKey} {
		m, want, got := &g.slots[i], `"" -2ns`, g.state(t, key)
		if m.ends > g.now() {
			lasts := time.Duration(m.ends-g.now()) * time.Millisecond
			if left := m.left(g.now()); got == fmt.Sprint(left.value(), lasts) {
				*m = left // a call that changed nothing else may have looked for what has ended, or not
			}
			want = fmt.Sprint(m.value(), lasts)
		}
		require.Equal(t, want, got, "%s, %s", key, g.what)
	}
	want := `"" -2ns`
	if g.free > g.now() {
		want = fmt.Sprintf(`"%d %d" %s`, g.bans, g.ban.BanLength(g.bans), time.Duration(g.free-g.now())*time.Millisecond)
	}
	require.Equal(t, want, g.state(t, banKey), g.what)
}

// eval calls a script.
func (g *guardTrace) eval(t *testing.T, script int, keys []string, args ...any) ([]int64, error) {
	reply, err := eval(t.Context(), g.rdb, testkit.ScriptSource(t, script), keys, args...).Result()
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
	testkit.Must(g.eval(t, g.kind.script, keys, append([]any{verb, op.N, 0}, args...)...))
	g.store.Do([]byte("k"), g.kind.limits, op, make([]bucket.State, len(g.kind.limits)))
	g.ends(op.N)
}

// report reports slots of one key or two to Redis.
func (g *guardTrace) report(t *testing.T) {
	process, ended, held, _ := g.message()
	keys, args := []string{slotKey, otherSlotKey}, []any{process}
	order := g.r.Perm(2)[:1+g.r.IntN(2)]
	var reported []string
	for _, i := range order {
		doubt := g.r.IntN(2)
		if g.r.IntN(2) == 0 {
			held = 0
		}
		reported, args = append(reported, keys[i]), append(args, ended, held, doubt)
		m := &g.slots[i]
		l := m.read(g.now(), process, ended, held)
		m.keep(g.now(), l, doubt == 1 || l.own.ended > ended)
		ended, held = ended+1, held+1
	}
	failed, err := g.eval(t, wire.Report, reported, args...)
	g.what = fmt.Sprintf("%s, %v reported %v", g.what, reported, args)
	require.NoError(t, err, g.what)
	require.Empty(t, failed, g.what)
	g.ends(slotLife)
}

// TestABanThatIsNotKept still denies the call. It is not in the reply, and bans nobody.
func TestABanThatIsNotKept(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	const tooLong = int64(1 << 62) // Redis does not keep a key for twice as long
	g := &guardTrace{rdb: rdb}
	take := []any{"take", 1, 1, 7, 200, 200, "ban", tooLong, tooLong, 1, 1, 0, 1}
	for _, want := range [][]int64{{0, 0, 0}, {200, 0, 0}, {200, 0, 0}} {
		got := testkit.Must(g.eval(t, wire.WithBanOrSlots+int(bucket.Token), []string{"{k}:a", banKey}, take...))
		require.Equal(t, want, got)
		require.Equal(t, `"" -2ns`, g.state(t, banKey))
	}
}

// TestABanKnowsWhatEachBucketLacks: a call takes two tokens of the second bucket, which has one, and another
// client's slots are taken too. So the denial is the banned client's own.
func TestABanKnowsWhatEachBucketLacks(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	keys := []string{"{k}:a", "{k}:b", banKey, slotKey, otherSlotKey}
	buckets := []any{1, 100, 1000, 1, 100, 1000}
	testkit.Must(g.eval(t, wire.Tokens, keys[1:2], append([]any{"take", 9, 1}, buckets[:3]...)...))
	testkit.Must(g.eval(t, wire.Report, keys[4:], "P2", 1, 1, 0))
	for want, each := range map[int64][]any{0: {2, 1}, 20: {1, 2}} {
		args := slices.Concat([]any{"take", 0, 1}, buckets, each,
			[]any{"both", 20, 100, 1, 2, 1, "P1", 0, 1, 0, 0, "1,", 1, 0, 0, "1,", 2})
		require.Equal(t, want, testkit.Must(g.eval(t, wire.WithBanOrSlots+wire.Tokens, keys, args...))[3], "%v", each)
		require.NoError(t, rdb.Del(t.Context(), banKey).Err())
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
	aside := g.rdb.Rename(ctx, key, "aside").Err() == nil // else there was no key
	left := 10 * time.Millisecond
	switch x := g.r.IntN(3); {
	case x == 0:
		require.NoError(t, g.rdb.RPush(ctx, key, "x").Err())
		require.NoError(t, g.rdb.PExpire(ctx, key, left).Err())
	case x == 1 && key == slotKey:
		fields := [][]any{{"all", "10 10 1"}, {"all", "x 10 1 1"}, {"all", ""}, {"a", "10 10 1 1"},
			{"P1", "1 1 1 10 "}}[g.r.IntN(5)]
		require.NoError(t, g.rdb.HSet(ctx, key, fields...).Err())
		require.NoError(t, g.rdb.PExpire(ctx, key, left).Err())
	case x == 1:
		text := []string{"x", "2 5 ", " 2 5", "2"}[g.r.IntN(4)]
		require.NoError(t, g.rdb.Set(ctx, key, text, left).Err())
	case key == banKey:
		require.NoError(t, g.rdb.Set(ctx, key, "1 20", 0).Err())
	default:
		require.NoError(t, g.rdb.HSet(ctx, key, "all", "10 10 1 1", "P9", "1 1 1 10 ").Err())
	}
	var before, after []string
	for _, key := range c.keys {
		before = append(before, g.state(t, key))
	}
	g.what = fmt.Sprintf("%s: %v %v, %s holds %s", g.what, c.keys, c.args, key, g.state(t, key))
	require.Error(t, testkit.Err(g.eval(t, g.script(), c.keys, c.args...)), g.what)
	if key == slotKey {
		failed, err := g.eval(t, wire.Report, []string{key}, "P1", 1, 1, 1)
		require.NoError(t, err, g.what)
		require.Empty(t, failed, g.what)
	}
	for _, key := range c.keys {
		after = append(after, g.state(t, key))
	}
	require.Equal(t, before, after, g.what)
	require.NoError(t, g.rdb.Del(ctx, key).Err())
	if aside {
		require.NoError(t, g.rdb.Rename(ctx, "aside", key).Err())
	}
}

// slotLife is for how many milliseconds what a process told of its slots holds.
const slotLife = 10_000

// slotEntry is what is known of the slots of a process.
type slotEntry struct {
	process     string
	ended, held int64   // all attempts up to a number are settled, and these hold so many slots
	later       []int64 // attempts beyond it that hold one
	until       int64   // the millisecond at which it ends
}

func (e *slotEntry) slots() int64 { return e.held + int64(len(e.later)) }

func (e *slotEntry) attempts() string {
	var b strings.Builder
	for _, number := range e.later {
		fmt.Fprintf(&b, "%d,", number)
	}
	return b.String()
}

// slotModel is what slots.lua keeps in a key.
type slotModel struct {
	entries []slotEntry
	start   int64 // the time 0 of the key
	first   int64 // no entry ends before
	ends    int64 // the key
}

// slotLook is what is found of a process and of the others.
type slotLook struct {
	own, told slotEntry
	others    []slotEntry
	first     int64
}

func (l *slotLook) inUse() int64 { return l.own.slots() + slotsOf(l.others) }

func slotsOf(entries []slotEntry) (n int64) {
	for i := range entries {
		n += entries[i].slots()
	}
	return n
}

// left is what a call leaves that looks for what has ended.
func (m *slotModel) left(now int64) slotModel {
	left := *m
	if len(m.entries) > 0 && m.first <= now {
		left.first = m.ends
		left.entries = slices.DeleteFunc(slices.Clone(m.entries), func(e slotEntry) bool { return e.until <= now })
		for _, e := range left.entries {
			left.first = min(left.first, e.until)
		}
	}
	return left
}

// read finds what is known, with what a process tells of itself.
func (m *slotModel) read(now int64, process string, ended, held int64) *slotLook {
	if m.ends <= now {
		*m = slotModel{start: now}
	}
	l := &slotLook{told: slotEntry{process: process, ended: ended, held: held}}
	l.own = l.told
	left := m.left(now)
	l.first = left.first
	for _, e := range left.entries {
		switch {
		case e.process != process:
			l.others = append(l.others, e)
		case ended < e.ended:
			l.own.ended, l.own.held, l.own.later = e.ended, e.held, slices.Clone(e.later)
		case ended == e.ended:
			l.own.held, l.own.later = min(held, e.held), slices.Clone(e.later)
		default:
			l.own.later = slices.DeleteFunc(slices.Clone(e.later), func(number int64) bool { return number <= ended })
		}
	}
	return l
}

// keep keeps what was found. A process without a slot is kept if there is doubt.
func (m *slotModel) keep(now int64, l *slotLook, doubt bool) {
	switch {
	case l.own.slots() > 0 || doubt:
		l.own.until, m.ends, m.first = now+slotLife, now+slotLife, l.first
		if len(l.others) == 0 {
			m.start, m.first = now, m.ends
		}
		m.entries = append(slices.Clone(l.others), l.own)
	case len(l.others) > 0:
		m.entries, m.first = l.others, l.first
	default:
		*m = slotModel{}
	}
}

// value returns the key's value.
func (m *slotModel) value() map[string]string {
	value := map[string]string{"all": fmt.Sprintf("%d %d %d %d",
		m.ends-m.start, m.first-m.start, slotsOf(m.entries), len(m.entries))}
	for i := range m.entries {
		e := &m.entries[i]
		value[e.process] = fmt.Sprintf("%d %d %d %d %s", e.ended, e.held, e.slots(), e.until-m.start, e.attempts())
	}
	return value
}
