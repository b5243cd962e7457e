package scripts_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// scriptWindow is a window in Redis and the same one in the process.
type scriptWindow struct {
	*scriptKeys
	bucket.Bucket
	store *memory.Store
	r     *rand.Rand
}

// scriptMark finds what was taken at a time, in Redis and in the process.
type scriptMark struct {
	at              time.Time
	inRedis, inHere int64
}

// here has the process do what an Op says, and returns what a script tells of it, but for the mark.
func (w *scriptWindow) here(op bucket.Op) (told []int64, mark int64) {
	states := make([]bucket.State, 1)
	w.store.Do([]byte("k"), []bucket.Bucket{w.Bucket}, op, states)
	return []int64{states[0].Level, states[0].More, states[0].Wait, states[0].Reset}, states[0].Mark
}

// inRedis has a script do it: of a take, in any of the ways to ask for one.
func (w *scriptWindow) inRedis(t *testing.T, verb string, op bucket.Op, mark ...any) []int64 {
	n, charges := int(op.N), int(op.Charges)
	var reply []int64
	var err error
	switch way := w.r.IntN(4); {
	case verb == "take" && way == 0:
		reply, err = w.together(t, verb, n, charges, "k")
	case verb == "take" && way == 1 && charges > 0:
		require.NoError(t, w.rdb.Del(t.Context(), "untouched").Err())
		reply, err = w.call(t, "each", n, 0, []string{"untouched", "k"}, 1, charges)
		require.NoError(t, err)
		if reply = reply[5:]; reply[0] == -1 { // it is to be asked for alone
			reply, err = w.call(t, verb, n, charges, []string{"k"})
		}
	default:
		reply, err = w.call(t, verb, n, charges, []string{"k"}, mark...)
	}
	require.NoError(t, err)
	return reply
}

// TestScriptsOfWindowsEqualTheProcess at every step of calls drawn at random: they tell the same,
// and a key lives for as long.
func TestScriptsOfWindowsEqualTheProcess(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ginlimit.Algorithm{"fixed": ginlimit.FixedWindow,
		"sliding": ginlimit.SlidingWindow, "calendar": ginlimit.FixedWindow} {
		for seed := range uint64(3) {
			testkit.RunInBubble(t, fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T, b *testkit.Bubble) {
				r, start := rand.New(rand.NewPCG(seed, 1)), time.Now()
				limit := ginlimit.Limit{Rate: int(2 + 5*seed), Period: time.Duration(9+26*seed) * time.Millisecond}
				source, args := testkit.ScriptOfLimit(t, a, limit)
				w := &scriptWindow{scriptKeys: &scriptKeys{mini: b.Mini, rdb: b.Redis,
					source: source, args: args}, store: memory.New(memory.MaxBuckets), r: r}
				w.Bucket, _ = bucket.New(testkit.Kinds[a], "", int64(limit.Rate), int64(limit.Rate), limit.Period.Milliseconds())
				if name == "calendar" {
					w.Bucket, _ = bucket.NewCalendar("", int64(limit.Rate),
						time.Minute.Milliseconds(), start.Add(time.Minute).UnixMilli())
				}
				w.follow(t, testkit.Steps(400), start)
			})
		}
	}
}

// follow makes steps of a trace.
func (w *scriptWindow) follow(t *testing.T, steps int, start time.Time) {
	var marks []scriptMark
	var blocked time.Time // until then
	var ends [2]int64     // the milliseconds until more is left, and all is
	var longer int64      // milliseconds by which a key may outlive a fixed window: one for each Refund of all
	r, limit := w.r, w.Burst
	verbs := [...]string{bucket.Take: "take", bucket.Charge: "charge", bucket.Give: "give",
		bucket.Return: "return", bucket.Block: "block", bucket.Reset: "reset"}
	for step := range steps {
		if r.IntN(3) == 0 {
			pause := r.Int64N(2 + w.Period/10)
			if r.IntN(20) == 0 {
				pause = r.Int64N(2 + 2*w.Period)
			}
			if end := ends[r.IntN(2)]; r.IntN(4) == 0 && 0 < end && end <= w.Period {
				pause = end - r.Int64N(2)
			}
			time.Sleep(time.Duration(pause%100) * time.Millisecond)
		}
		w.mini.SetTime(time.Now())
		if w.Ends != 0 {
			w.args = []any{w.Left(time.Now().UnixMilli()), "calendar", limit}
		}
		op, mark := bucket.Op{N: 1 + r.Int64N(limit+1)}, scriptMark{inRedis: bucket.NoMark, inHere: bucket.NoMark}
		if len(marks) > 0 && r.IntN(8) > 0 {
			if known := marks[r.IntN(len(marks))]; time.Since(known.at).Milliseconds() < w.Period {
				mark = known
			}
		}
		var more []any
		switch x := r.IntN(100); {
		case x < 65:
			op.Charges, op.N = r.Int64N(3), 1+r.Int64N(1+limit/4)
		case x < 70:
			op.Verb = bucket.Charge
		case x < 75:
			op.Verb = bucket.Give
			if w.Kind == bucket.FixedWindow {
				longer++
			}
		case x < 93:
			op.Verb, op.N, op.Claims, more = bucket.Return, 1+r.Int64N(3),
				[]bucket.Claim{{Mark: mark.inHere}}, []any{mark.inRedis}
		case x < 98:
			op.Verb, op.N = bucket.Block, 1+r.Int64N(50)
			blocked = time.Now().Add(50 * time.Millisecond)
		default:
			op.Verb = bucket.Reset
		}
		what := fmt.Sprintf("step %d at %s: %s %+v of %d in %d ms", step, time.Since(start),
			verbs[op.Verb], op, limit, w.Period)
		want, here := w.here(op)
		got := w.inRedis(t, verbs[op.Verb], op, more...)
		if op.Verb == bucket.Take {
			if w.Kind == bucket.SlidingWindow && op.Charges > 0 && got[2] == 0 {
				got[2] = want[2] // it does not say when one more fits if all were made
			}
			require.Equal(t, want, got[:4], what)
			if here != 0 {
				marks = append(marks[max(0, len(marks)-9):], scriptMark{time.Now(), got[4], here})
			}
		} else if op.Verb != bucket.Reset {
			require.Equal(t, want[0], got[0], what)
		}
		look := bucket.Peek(1 + r.Int64N(limit+1))
		want, _ = w.here(look)
		require.Equal(t, want, w.inRedis(t, "take", look)[:4], what)
		ends = [2]int64{want[1], want[3]}
		if want[0] == 0 || want[0] == limit && time.Now().Before(blocked) { // as much is told of a block
			marks = nil // a window that begins anew has the same ones
		}
		switch ttl := w.mini.TTL("k").Milliseconds(); {
		case w.Ends != 0 && time.Now().Before(blocked) && ttl == want[3]: // a block alone, of a period without charges
		case w.Ends != 0:
			after := ttl - w.Left(time.Now().UnixMilli()) // its period
			require.True(t, ttl == 0 || bucket.Grace <= after && after <= bucket.Grace+longer, "%s: %d ms", what, after)
		// If a Refund has emptied it, the key stays for as long as earlier marks may come, also beside a block.
		case want[3] == 0 || time.Now().Before(blocked):
			require.GreaterOrEqual(t, ttl, want[3], what)
			require.LessOrEqual(t, ttl, max(want[3], w.Period)+longer, what)
		default:
			require.GreaterOrEqual(t, ttl, want[3], what)
			require.LessOrEqual(t, ttl, want[3]+longer, what)
		}
	}
}

// recorded is a charge of a trace, which may be given back.
type recorded struct {
	at              time.Time
	n, level        int64
	inRedis, inHere int64 // marks
	era             int64
}

// TestScriptsWithRecordsEqualTheProcess gives back what some of many calls have taken, in any
// order, beside refunds, resets, blocks and debts: Redis and the process give back as much.
func TestScriptsWithRecordsEqualTheProcess(t *testing.T) {
	t.Parallel()
	for a, kind := range testkit.Kinds {
		for seed := range uint64(6) {
			testkit.RunInBubble(t, fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T, b *testkit.Bubble) {
				r := rand.New(rand.NewPCG(seed, uint64(a)))
				limit := ginlimit.Limit{Rate: 3 + r.IntN(40), Period: time.Duration(20+r.IntN(400)) * time.Millisecond}
				source, args := testkit.ScriptOfLimit(t, a, limit)
				one, ok := bucket.New(kind, "b", int64(limit.Rate), int64(limit.Rate), limit.Period.Milliseconds())
				require.True(t, ok)
				w := &recordTrace{
					scriptKeys: &scriptKeys{mini: b.Mini, rdb: b.Redis, source: source, args: args}, Bucket: one,
					store: memory.New(memory.MaxBuckets), r: r,
				}
				for step := range testkit.Steps(400) {
					w.step(t, step)
				}
			})
		}
	}
}

// recordTrace has the script of a limit and the process do the same.
type recordTrace struct {
	*scriptKeys
	bucket.Bucket
	store *memory.Store
	r     *rand.Rand
	taken []recorded
}

func (w *recordTrace) do(t *testing.T, verb string, op bucket.Op, second int64, keys []string,
	more ...any) (inRedis []int64, here bucket.State) {
	t.Helper()
	args := append([]any{verb, op.N, second}, w.args...)
	reply := testkit.Must(eval(t.Context(), w.rdb, w.source, keys, append(args, more...)...).Result())
	switch reply := reply.(type) {
	case int64:
		inRedis = []int64{reply}
	case []any:
		for _, n := range reply {
			inRedis = append(inRedis, n.(int64))
		}
	}
	states := make([]bucket.State, 1)
	w.store.Do([]byte("k"), []bucket.Bucket{w.Bucket}, op, states)
	return inRedis, states[0]
}

func (w *recordTrace) step(t *testing.T, step int) {
	r := w.r
	if r.IntN(3) == 0 {
		time.Sleep(time.Duration(r.Int64N(2+w.Period/8)) * time.Millisecond)
	}
	w.mini.SetTime(time.Now())
	alone, both := []string{"k"}, []string{"k", "k:back"}
	what := fmt.Sprintf("step %d of %+v", step, w.Bucket)
	switch x := r.IntN(100); {
	case x < 50:
		op := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1 + r.Int64N(max(1, w.Burst/3))}
		found, here := w.do(t, "take", op, 1, alone)
		require.Equal(t, here.Level, found[0], what)
		if w.Fits(bucket.State{Level: here.Level}, 1, op.N) == 1 {
			w.taken = append(w.taken, recorded{time.Now(), op.N, here.Level, found[len(found)-1], here.Mark, here.Era})
		}
	case x < 85 && len(w.taken) > 0:
		i := r.IntN(len(w.taken))
		one := w.taken[i]
		w.taken = append(w.taken[:i], w.taken[i+1:]...)
		what += w.giveBack(t, one, -1)
	case x < 92:
		w.do(t, "give", bucket.Op{Verb: bucket.Give, N: 1 + r.Int64N(w.Burst), Records: bucket.WithRecords}, 1, both)
		if found, _ := w.do(t, "take", bucket.Peek(1), 0, alone); found[0] > 0 && w.Kind == bucket.FixedWindow {
			w.taken = nil // nobody knows whose tokens are left
		}
	case x < 94:
		w.do(t, "block", bucket.Op{Verb: bucket.Block, N: 1 + r.Int64N(w.Period/4)}, 0, alone)
	case x < 96:
		w.do(t, "charge", bucket.Op{Verb: bucket.Charge, N: 1 + r.Int64N(w.Burst)}, 0, alone)
	case x < 98:
		w.do(t, "reset", bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords}, 1, both)
		w.do(t, "take", bucket.Op{Verb: bucket.Take, Charges: 1, N: w.Burst}, 1, alone)
		for _, one := range w.taken {
			what += w.giveBack(t, one, time.Since(one.at).Milliseconds())
		}
		found, _ := w.do(t, "take", bucket.Peek(1), 0, alone)
		require.Equal(t, w.Capacity, found[0], what)
		w.taken = nil
		w.mini.Del("k:back") // it began with the reset, unlike that of the process
	}
	found, here := w.do(t, "take", bucket.Peek(1), 0, alone)
	require.Equal(t, here.Level, found[0], what)
	if w.mini.Exists("k:back") {
		require.Positive(t, w.mini.TTL("k:back"), what)
		longest := 2*w.Period + 1 + (2*w.Period+1)/bucket.RecordSpans
		require.LessOrEqual(t, w.mini.TTL("k:back"), time.Duration(longest)*time.Millisecond, what)
	}
}

// giveBack gives back a charge, which a reset voids that was made in some milliseconds until now.
func (w *recordTrace) giveBack(t *testing.T, one recorded, resets int64) string {
	age := time.Since(one.at)
	if w.Kind != bucket.Token && age.Milliseconds() >= w.Period {
		return ""
	}
	claim := w.NewClaim(one.level, one.n*w.Cost, age.Nanoseconds(), 0)
	claim.Made = max(0, age.Milliseconds()-int64(w.r.IntN(2)))
	claim.Resets, claim.Mark, claim.Era = resets, one.inHere, one.era
	op := bucket.Op{Verb: bucket.Return, N: 1 + w.r.Int64N(one.n), Claims: []bucket.Claim{claim},
		Records: bucket.WithRecords}
	mark := one.inRedis
	if w.Kind == bucket.Token {
		mark = 0
	}
	w.do(t, "return", op, 1, []string{"k", "k:back"}, mark, claim.Sure, claim.Behind, claim.Age, claim.Made, claim.Resets)
	return fmt.Sprintf(": return %+v of %+v", op, one)
}
