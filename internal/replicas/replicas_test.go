package replicas

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// TestOneLimiterCounts for all of a process, another one when it ends, and nobody when there is none.
func TestOneLimiterCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took [4]atomic.Int64
		var err atomic.Pointer[error]
		var dropped atomic.Int64
		dropped.Store(-1)
		var members [4]*Member
		var backgrounds [4]goroutine.Background
		freed := map[int]int64{}
		for i := range members {
			members[i] = Join("TestOneLimiterCounts", Config{
				Background: &backgrounds[i], Dropped: func() bool { return dropped.Load() == int64(i) },
				Held: func([]byte) int64 { return int64(i) },
				Free: func(ended int64, _ bool) { freed[i] = ended },
				Take: func(a bucket.Attempt) (int64, error) {
					require.Equal(t, took[i].Add(1), a.Number)
					if fault := err.Load(); fault != nil {
						return 0, *fault
					}
					return 6, nil
				},
			})
		}
		counts := func(want ...int64) {
			t.Helper()
			time.Sleep(renewal / 4) // between two counts
			synctest.Wait()
			var before [4]int64
			for i := range took {
				before[i] = took[i].Load()
			}
			time.Sleep(10 * renewal)
			synctest.Wait()
			for i := range took {
				require.InDelta(t, want[i], took[i].Load()-before[i], 1, i)
			}
		}
		counts(0, 0, 0, 0)
		for i := range 3 {
			members[i].Start()
			synctest.Wait()
			require.EqualValues(t, 7, members[3].Count())
		}
		counts(10, 0, 0, 0)
		backgrounds[0].Close(0)
		members[0].Leave()
		require.Positive(t, freed[0])
		counts(0, 10, 0, 0)
		dropped.Store(1)
		counts(0, 0, 10, 0)
		err.Store(&ErrEnded)
		time.Sleep(renewal)
		counts(0, 0, 0, 0)
		err.Store(nil)
		members[3].Start()
		counts(0, 0, 0, 10)
		members[3].Leave()
		counts(0, 0, 0, 0)
		require.EqualValues(t, 1+2, members[3].HeldByOthers(nil), "two are left")
		members[1].Leave()
		members[2].Leave()
	})
}
