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
				leave, _, err := q.Join(ctx, nil, k, math.MaxInt)
				if err != nil {
					require.Equal(t, 1, i%3)
					return
				}
				got = append(got, i)
				time.Sleep(time.Hour)
				leave()
			})
			synctest.Wait()
		}
		require.Equal(t, 10, q.Len(k))
		all.Wait()
		require.Equal(t, []int{0, 2, 3, 5, 6, 8, 9}, got)
		require.Zero(t, q.Len(k))
		require.True(t, q.Empty())
	})
}

// TestWake wakes the callers whose turn it is in the queues of a key, or in one queue, once however
// often it is called.
func TestWake(t *testing.T) {
	var q Queues
	q.Wake("a") // nobody
	names := []Name{{"a", "1"}, {"a", "2"}, {"a 1", "1"}, {"b", "1"}}
	var wakes []<-chan struct{}
	for _, name := range names {
		leave, wake, err := q.Join(t.Context(), nil, name, math.MaxInt)
		require.NoError(t, err)
		defer leave()
		wakes = append(wakes, wake)
	}
	woken := func() (all []bool) {
		for _, wake := range wakes {
			select {
			case <-wake:
				all = append(all, true)
			default:
				all = append(all, false)
			}
		}
		return all
	}
	for range 3 {
		q.Wake("a")
	}
	require.Equal(t, []bool{true, true, false, false}, woken())
	require.Equal(t, []bool{false, false, false, false}, woken(), "once")
	q.WakeOne(names[1])
	q.WakeOne(names[1])
	q.WakeOne(Name{"a", "3"}) // nobody
	require.Equal(t, []bool{false, true, false, false}, woken())
	require.Equal(t, []bool{false, false, false, false}, woken(), "once")
}

// TestNext is what the caller with its turn expects, until the queue is empty.
func TestNext(t *testing.T) {
	var q Queues
	now := time.Now()
	require.True(t, q.Empty())
	q.Expect(k, now)
	require.Zero(t, q.Next(k))
	leave, _, err := q.Join(t.Context(), nil, k, math.MaxInt)
	require.NoError(t, err)
	require.Zero(t, q.Next(k))
	q.Expect(k, now)
	require.Equal(t, now, q.Next(k))
	require.Zero(t, q.Next(Name{Key: "other"}))
	require.False(t, q.Empty())
	require.Equal(t, 1, q.Len(k))
	leave()
	require.Zero(t, q.Next(k))
	require.Zero(t, q.Len(k))
}

// TestNamesDoNotMeet: each has its own queue, also names of one key, in whatever order callers
// leave.
func TestNamesDoNotMeet(t *testing.T) {
	names := []Name{{"k", "one"}, {"k", "other"}, {"k", "third"}, {"k one", ""}}
	for first := range names {
		var q Queues
		var leaves []func()
		for i, name := range names {
			require.Zero(t, q.Len(name))
			leave, _, err := q.Join(t.Context(), nil, name, 1)
			require.NoError(t, err)
			q.Expect(name, time.Unix(int64(i), 0))
			leaves = append(leaves, leave)
		}
		for i := range names {
			i = (first + i) % len(names)
			require.Equal(t, 1, q.Len(names[i]))
			require.Equal(t, time.Unix(int64(i), 0), q.Next(names[i]))
			require.False(t, q.Empty())
			leaves[i]()
			require.Zero(t, q.Len(names[i]))
		}
		require.True(t, q.Empty())
	}
}

// TestFull: a queue holds at most its maximum, including the caller whose turn it is.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		first, _, err := q.Join(t.Context(), nil, k, 2)
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() {
			second, _, err := q.Join(t.Context(), nil, k, 2)
			require.NoError(t, err)
			second()
		})
		synctest.Wait()
		_, _, err = q.Join(t.Context(), nil, k, 2)
		require.Equal(t, ErrFull, err)
		require.Equal(t, 2, q.Len(k))
		first()
		all.Wait()
		require.True(t, q.Empty())
	})
}

// TestStop ends the wait of the queued callers, without an error.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues
		stop := make(chan struct{})
		first, _, err := q.Join(t.Context(), stop, k, math.MaxInt)
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				leave, _, err := q.Join(t.Context(), stop, k, math.MaxInt)
				require.NoError(t, err)
				require.Nil(t, leave)
			})
		}
		synctest.Wait()
		close(stop)
		all.Wait()
		first()
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
					leave, _, err := q.Join(ctx, nil, k, math.MaxInt)
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
					leave()
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
				leave, _, err := q.JoinAt(t.Context(), nil, Name{Key: "k"}, math.MaxInt, at, int64(since))
				assert.NoError(t, err)
				order <- since
				time.Sleep(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		for _, since := range []int{5, 3, 4, 1, 3} {
			join(since)
		}
		callers, want := q.Before(Name{Key: "k"}, start.Add(3*time.Second))
		require.Equal(t, []int{4, 5 + 1 + 3 + 3}, []int{callers, int(want)}, "the first, and earlier or equal arrivals")
		for _, want := range []int{5, 1, 3, 3, 4} {
			require.Equal(t, want, <-order)
		}
		time.Sleep(time.Second)
	})
}
