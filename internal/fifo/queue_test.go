package fifo

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var k = Name{"k", "tokens"}

// join joins a queue.
func join(ctx context.Context, q *Queues, name Name) (*Turn, error) {
	return q.Join(ctx, nil, name, math.MaxInt, Caller{Since: time.Now()})
}

// joined has joined a queue of at most so many, and has its turn.
func joined(t *testing.T, q *Queues, name Name, most int) *Turn {
	turn, err := q.Join(t.Context(), nil, name, most, Caller{Since: time.Now()})
	require.NoError(t, err)
	return turn
}

// length returns how many callers are in a queue.
func length(q *Queues, name Name) int { return q.Before(name, time.Now()).Callers }

// TestOneAfterAnother in order of arrival, except for callers who leave the queue.
func TestOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		var got []int
		var all sync.WaitGroup
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%3 == 1 {
				time.AfterFunc(time.Minute, cancel)
			}
			all.Go(func() {
				turn, err := join(ctx, &q, k)
				if err != nil {
					require.Equal(t, 1, i%3)
					return
				}
				got = append(got, i)
				time.Sleep(time.Hour)
				turn.Leave()
			})
			synctest.Wait()
		}
		require.Equal(t, 10, length(&q, k))
		all.Wait()
		require.Equal(t, []int{0, 2, 3, 5, 6, 8, 9}, got)
		require.Zero(t, length(&q, k))
		require.True(t, q.Empty())
	})
}

// TestWake wakes the callers whose turn it is in the queues of a key, once however often it is called.
func TestWake(t *testing.T) {
	var q Queues
	q.Wake("a") // nobody
	var turns []*Turn
	for _, name := range []Name{{"a", "1"}, {"a", "2"}, {"a 1", "1"}, {"b", "1"}} {
		turns = append(turns, joined(t, &q, name, 1))
	}
	woken := func() (all []bool) {
		for _, turn := range turns {
			all = append(all, len(turn.Wake) > 0)
			for len(turn.Wake) > 0 {
				<-turn.Wake
			}
		}
		return all
	}
	for range 3 {
		q.Wake("a")
	}
	require.Equal(t, []bool{true, true, false, false}, woken())
	require.Equal(t, []bool{false, false, false, false}, woken(), "once")
}

// TestOnlyTheCallerWhoseTurnItIsSetsWhatItExpects: at first it is what the first caller came with. One that
// leaves before its turn changes nothing.
func TestOnlyTheCallerWhoseTurnItIsSetsWhatItExpects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		soon, later := Expectation{time.Now(), 1}, Expectation{time.Now().Add(time.Minute), 2}
		turn, err := q.Join(t.Context(), nil, k, 2, Caller{Expects: soon})
		require.NoError(t, err)
		require.True(t, turn.AtOnce)
		expects := func() Expectation { return q.Before(k, time.Now()).Expects }
		require.Equal(t, soon, expects())
		turn.Expect(later)
		_, err = q.Join(t.Context(), nil, k, 2, Caller{Until: time.Now().Add(time.Second), Expects: soon})
		require.ErrorIs(t, err, ErrOver)
		require.Equal(t, later, expects())
		require.Zero(t, q.Before(Name{Key: "other"}, time.Now()))
		turn.Leave()
		require.Zero(t, q.Before(k, time.Now()))
		require.True(t, q.Empty())
	})
}

// TestNamesDoNotMeet: each has its own queue, also names of one key, in whatever order callers
// leave.
func TestNamesDoNotMeet(t *testing.T) {
	names := []Name{{"k", "one"}, {"k", "other"}, {"k", "third"}, {"k one", ""}}
	for first := range names {
		var q Queues
		var turns []*Turn
		for i, name := range names {
			require.Zero(t, length(&q, name))
			turns = append(turns, joined(t, &q, name, 1))
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

// TestFull: a queue holds at most its maximum, including the caller whose turn it is.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		first := joined(t, &q, k, 2)
		var all sync.WaitGroup
		all.Go(func() { joined(t, &q, k, 2).Leave() })
		synctest.Wait()
		_, err := q.Join(t.Context(), nil, k, 2, Caller{})
		require.Equal(t, ErrFull, err)
		require.Equal(t, 2, length(&q, k))
		first.Leave()
		all.Wait()
		require.True(t, q.Empty())
	})
}

// TestStop ends the wait of the queued callers.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		stop := make(chan struct{})
		first := joined(t, &q, k, 1)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				_, err := q.Join(t.Context(), stop, k, math.MaxInt, Caller{})
				require.ErrorIs(t, err, ErrStopped)
			})
		}
		synctest.Wait()
		close(stop)
		all.Wait()
		first.Leave()
		require.True(t, q.Empty())
	})
}

// TestNobodyIsLeftBehind, whoever leaves when: a turn that begins as its caller leaves goes to the
// next one.
func TestNobodyIsLeftBehind(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var q Queues
			var all sync.WaitGroup
			var mu sync.Mutex
			turns, now := 0, 0
			for range 50 {
				patience, hold := time.Duration(1+r.IntN(40)), time.Duration(r.IntN(3))
				time.Sleep(time.Duration(r.IntN(2)))
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					turn, err := join(ctx, &q, k)
					if err != nil {
						return
					}
					mu.Lock()
					now++
					turns++
					require.Equal(t, 1, now)
					mu.Unlock()
					time.Sleep(hold)
					mu.Lock()
					now--
					mu.Unlock()
					turn.Leave()
				})
			}
			all.Wait()
			require.Positive(t, turns)
			require.True(t, q.Empty())
		})
	}
}

// TestACallerThatWaitedElsewhereStandsBeforeLaterOnes, but not before the one whose turn it is.
func TestACallerThatWaitedElsewhereStandsBeforeLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		start, order := time.Now(), make(chan int, 5)
		join := func(since int) {
			go func() {
				at := start.Add(time.Duration(since) * time.Second)
				turn, err := q.Join(t.Context(), nil, k, math.MaxInt, Caller{Since: at, Wants: int64(since)})
				assert.NoError(t, err)
				order <- since
				time.Sleep(time.Second)
				turn.Leave()
			}()
			synctest.Wait()
		}
		for _, since := range []int{5, 3, 4, 1, 3} {
			join(since)
		}
		require.Equal(t, Line{Callers: 4, Wants: 5 + 1 + 3 + 3, First: 5}, q.Before(k, start.Add(3*time.Second)),
			"the first, and earlier or equal arrivals")
		for _, want := range []int{5, 1, 3, 3, 4} {
			require.Equal(t, want, <-order)
		}
		time.Sleep(time.Second)
	})
}
