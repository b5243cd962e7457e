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
			t.Run(fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				t.Parallel()
				testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
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
		if w.Fit(here.Level, 1, op.N) == 1 {
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
