package fifo

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var k = Name{"k", "tokens"}

// join joins a queue.
func (q *Queues) join(name Name) *Turn { return q.Join(name, Caller{Since: time.Now()}) }

// length returns how many callers are in a queue.
func length(q *Queues, name Name) int { return q.Before(name, time.Now()).Callers }

// woken returns which turns were woken since the last call.
func woken(turns ...*Turn) (all []bool) {
	for _, turn := range turns {
		all = append(all, len(turn.Wake) > 0)
		for len(turn.Wake) > 0 {
			<-turn.Wake
		}
	}
	return all
}

// TestWake wakes the first callers of the queues of a key, once however often it is called.
func TestWake(t *testing.T) {
	t.Parallel()
	var q Queues
	q.Wake("a") // nobody
	var turns []*Turn
	for _, name := range []Name{{"a", "1"}, {"a", "2"}, {"a", "2"}, {"a 1", "1"}, {"b", "1"}} {
		turns = append(turns, q.join(name))
	}
	for range 3 {
		q.Wake("a")
	}
	require.Equal(t, []bool{true, true, false, false, false}, woken(turns...))
	require.Equal(t, []bool{false, false, false, false, false}, woken(turns...), "once")
}

// TestWhatTheFirstExpects is at first what it came with. Another caller changes nothing.
func TestWhatTheFirstExpects(t *testing.T) {
	t.Parallel()
	var q Queues
	soon, later := Expectation{time.Now(), 1}, Expectation{time.Now().Add(time.Minute), 2}
	turn := q.Join(k, Caller{Expects: soon})
	require.True(t, turn.AtOnce)
	expects := func() Expectation { return q.Before(k, time.Now()).Expects }
	require.Equal(t, soon, expects())
	turn.Expect(later)
	q.Join(k, Caller{Expects: soon}).Leave()
	require.Equal(t, later, expects())
	require.Zero(t, q.Before(Name{Key: "other"}, time.Now()))
	turn.Leave()
	require.Zero(t, q.Before(k, time.Now()))
	require.True(t, q.Empty())
}

// TestNamesDoNotMeet: each has its own queue, also names of one key, in whatever order callers
// leave.
func TestNamesDoNotMeet(t *testing.T) {
	t.Parallel()
	names := []Name{{"k", "one"}, {"k", "other"}, {"k", "third"}, {"k one", ""}}
	for first := range names {
		var q Queues
		var turns []*Turn
		for i, name := range names {
			require.Zero(t, length(&q, name))
			turns = append(turns, q.join(name))
			turns[i].Expect(Expectation{Resource: i})
		}
		for i := range names {
			i = (first + i) % len(names)
			require.Equal(t, 1, length(&q, names[i]))
			require.Equal(t, i, q.Before(names[i], time.Now()).Expects.Resource)
			require.False(t, q.Empty())
			turns[i].Leave()
			require.Zero(t, length(&q, names[i]))
		}
		require.True(t, q.Empty())
	}
}

// TestNobodyIsLeftBehind, whoever leaves when: of those in the queue the first one has been woken, and nobody else.
func TestNobodyIsLeftBehind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q Queues
		var turns []*Turn
		told := map[*Turn]bool{}
		for range 200 {
			if len(turns) == 0 || r.IntN(2) == 0 {
				turns = append(turns, q.join(k))
				require.Equal(t, len(turns) == 1, turns[len(turns)-1].AtOnce)
			} else {
				i := r.IntN(len(turns))
				turns[i].Leave()
				turns = slices.Delete(turns, i, i+1)
			}
			for i, turn := range turns {
				told[turn] = told[turn] || turn.AtOnce || woken(turn)[0]
				require.Equal(t, i == 0, told[turn], seed)
			}
			require.Equal(t, len(turns), length(&q, k))
		}
	}
}

// TestACallerThatWaitedElsewhereStandsBeforeLaterOnes, but not before the one whose turn it is.
func TestACallerThatWaitedElsewhereStandsBeforeLaterOnes(t *testing.T) {
	t.Parallel()
	var q Queues
	start := time.Now()
	turns := map[int64][]*Turn{}
	for _, since := range []int64{5, 3, 4, 1, 3} {
		at := start.Add(time.Duration(since) * time.Second)
		turns[since] = append(turns[since], q.Join(k, Caller{Since: at, Wants: since}))
	}
	require.Equal(t, Line{Callers: 4, Wants: 5 + 1 + 3 + 3, First: 5}, q.Before(k, start.Add(3*time.Second)),
		"the first, and earlier or equal arrivals")
	turns[5][0].Leave()
	for _, next := range []*Turn{turns[1][0], turns[3][0], turns[3][1], turns[4][0]} {
		require.Equal(t, []bool{true}, woken(next))
		next.Leave()
	}
	require.True(t, q.Empty())
}
