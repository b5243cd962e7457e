package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestTogetherEndsAsOneAfterAnother does: by the first in order that does not go on. Each call is made at most once, all
// have ended, and no other goroutine is begun in time.
func TestTogetherEndsAsOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = time.Millisecond
		const goesOn, isLast, panics, exits = 0, 1, 2, 3
		for seed := range uint64(2000) {
			random := rand.New(rand.NewPCG(seed, 0))
			n := random.IntN(6)
			took, how, calls := make([]time.Duration, n), make([]int, n), make([]atomic.Int64, n)
			longest, all := time.Duration(0), time.Duration(0)
			for i := range n {
				took[i] = time.Duration(random.IntN(4)) * soon * 3 / 4
				how[i] = max(goesOn, random.IntN(12)-8)
				longest, all = max(longest, took[i]), all+took[i]
			}
			want, begun := "all", 0
			for more := true; more && begun < n; begun++ {
				more = how[begun] == goesOn
				switch how[begun] {
				case panics:
					want = fmt.Sprint("panic ", begun)
				case exits:
					want = "exit"
				}
			}
			name := fmt.Sprintf("seed %d: %v, %v", seed, took, how)
			start, running, before := time.Now(), atomic.Int64{}, runtime.NumGoroutine()
			got, ended := "exit", make(chan struct{})
			go func() {
				defer close(ended)
				defer func() {
					if r := recover(); r != nil {
						got = fmt.Sprint(r)
					}
				}()
				dispatch.Together(n, soon, func(i int) bool {
					calls[i].Add(1)
					running.Add(1)
					defer running.Add(-1)
					if all == 0 {
						require.LessOrEqual(t, runtime.NumGoroutine(), before+1, name)
					}
					time.Sleep(took[i])
					switch how[i] {
					case panics:
						panic(fmt.Sprint("panic ", i))
					case exits:
						runtime.Goexit()
					}
					return how[i] == goesOn
				})
				got = "all"
			}()
			<-ended
			require.Equal(t, want, got, name)
			require.Zero(t, running.Load(), name)
			require.LessOrEqual(t, time.Since(start), min(all, soon+longest), name)
			for i := range calls {
				require.LessOrEqual(t, calls[i].Load(), int64(1), name)
				if i < begun {
					require.EqualValues(t, 1, calls[i].Load(), name)
				}
			}
		}
	})
}
