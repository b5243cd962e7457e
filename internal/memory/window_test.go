package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// modelWindow is a window that stores when each token was taken, oldest first, in milliseconds
// since the test began.
type modelWindow struct {
	bucket.Bucket
	now, ends, block int64
	taken            []int64
}

// end returns when the window ends if a token is taken now.
func (m *modelWindow) end() int64 {
	switch {
	case m.Ends != 0:
		return m.Ends
	case m.Kind == bucket.FixedWindow && len(m.taken) > 0:
		return m.ends
	}
	return m.now + m.Period
}

// mark returns the mark of tokens taken now: when a fixed window ends, or when a calendar period is
// forgotten.
func (m *modelWindow) mark() int64 {
	switch {
	case m.Ends != 0:
		return m.ends + bucket.Grace
	case m.Kind == bucket.FixedWindow:
		return m.ends
	}
	return m.now
}

// leaves returns how many milliseconds until the given number of tokens have left.
func (m *modelWindow) untilFree(tokens int) int64 {
	if m.Kind == bucket.FixedWindow {
		return m.ends - m.now
	}
	return m.taken[tokens-1] + m.Period - m.now
}

func (m *modelWindow) charge(tokens int64) {
	m.ends = m.end()
	for range tokens {
		m.taken = append(m.taken, m.now)
	}
}

func (m *modelWindow) give(tokens, mark int64) {
	for i := len(m.taken) - 1; i >= 0 && tokens > 0; i-- {
		if m.Kind == bucket.FixedWindow || mark == bucket.NoMark || m.taken[i] == mark {
			m.taken = slices.Delete(m.taken, i, i+1)
			tokens--
		}
	}
	if m.Kind == bucket.SlidingWindow && len(m.taken) > 0 {
		m.ends = m.taken[len(m.taken)-1] + m.Period
	}
}

// do does what [Store.Do] does to a window.
func (m *modelWindow) do(op bucket.Op) (s bucket.State) {
	m.taken = slices.DeleteFunc(m.taken, func(at int64) bool {
		return m.Kind == bucket.FixedWindow && m.ends <= m.now || m.Kind == bucket.SlidingWindow && at+m.Period <= m.now
	})
	used := int64(len(m.taken))
	if s.Level = used; used > 0 {
		s.Reset = m.ends - m.now
	}
	if m.block > m.now {
		s.Level, s.Reset = max(used, m.Burst), max(s.Reset, m.block-m.now)
	} else if m.Ends != 0 {
		s.Reset = m.Ends - m.now
	}
	switch op.Verb {
	case bucket.Take:
		if charges := min(op.Charges, max(0, m.Burst-s.Level)/op.N); charges > 0 {
			m.charge(charges * op.N)
			s.Mark = m.mark()
		}
	case bucket.Charge:
		if tokens := min(op.N, 2*m.Burst-used); tokens > 0 {
			m.charge(tokens)
		}
	case bucket.Give:
		m.give(op.N, bucket.NoMark)
	case bucket.Return:
		if mark := op.Claims[0].Mark; mark != bucket.NoMark && (m.Kind == bucket.SlidingWindow || mark == m.mark()) {
			m.give(op.N, mark)
		}
	case bucket.Block:
		m.block = max(m.block, m.now+op.N)
	case bucket.Reset:
		m.taken, m.block = nil, 0
		return s
	}
	s.Soon, s.Wait = max(0, m.block-m.now), max(0, m.block-m.now)
	left := len(m.taken)
	if left > 0 {
		s.Soon = max(s.Soon, m.untilFree(max(1, left-int(m.Burst)+1)))
	}
	if short := left + int(op.N-m.Burst); short > 0 && op.N <= m.Burst {
		s.Wait = max(s.Wait, m.untilFree(short))
	}
	return s
}

// TestWindowsEqualAModel at every step of random calls, and an empty window is not kept.
func TestWindowsEqualAModel(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]bucket.Kind{"fixed": bucket.FixedWindow, "sliding": bucket.SlidingWindow,
		"calendar": bucket.FixedWindow} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c, r, start := clientsOf(New(MaxBuckets)), rand.New(rand.NewPCG(seed, 1)), time.Now()
					b := newBucket(t, kind, 1+r.Int64N(12), time.Duration(2+r.IntN(60))*time.Millisecond)
					m := &modelWindow{Bucket: b}
					if name == "calendar" {
						b, _ = bucket.NewCalendar("day", b.Burst, time.Hour.Milliseconds(),
							start.Add(time.Minute).UnixMilli())
						m.Bucket, m.Ends = b, time.Minute.Milliseconds()
					}
					marks := []int64{bucket.NoMark}
					for step := range 1500 {
						op := bucket.Op{N: 1 + r.Int64N(b.Burst+1),
							Claims: []bucket.Claim{{Mark: marks[r.IntN(len(marks))]}}}
						switch x := r.IntN(100); {
						case x < 50:
							op.Verb, op.Charges, op.N = bucket.Take, r.Int64N(3), 1+r.Int64N(1+b.Burst/2)
						case x < 65:
							op.Verb = bucket.Charge
						case x < 75:
							op.Verb = bucket.Give
						case x < 90:
							op.Verb = bucket.Return
						case x < 93:
							op.Verb, op.N = bucket.Block, 1+r.Int64N(50)
						case x < 94:
							op.Verb = bucket.Reset
						}
						want, got := m.do(op), c.do(0, b, op)
						got.Era = 0
						switch op.Verb {
						case bucket.Reset:
							continue // it finds nothing
						case bucket.Take:
						default:
							got.Soon, got.Wait, got.Mark = want.Soon, want.Wait, want.Mark
						}
						require.Equal(t, want, got, "step %d at %d ms: %+v of %+v", step, m.now, op, b)
						require.Equal(t, len(m.taken) > 0 || m.block > m.now, c.store.Len() > 0, "step %d: %+v", step,
							op)
						if op.Verb == bucket.Take && got.Mark != 0 {
							marks = append(marks[max(0, len(marks)-4):], got.Mark)
						}
						if r.IntN(3) == 0 {
							pause := time.Duration(r.Int64N(2+m.Period/4)) * time.Millisecond
							time.Sleep(pause % (40 * time.Millisecond))
							m.now = time.Since(start).Milliseconds()
						}
					}
				})
			})
		}
	}
}
