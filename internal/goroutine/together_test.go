package goroutine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// TestTogetherEndsAsOneAfterAnother does: by the first in order that does not go on. Each call is made at most once,
// all have ended, and no other goroutine is begun in time. The context of a call ends when an earlier one does not go
// on, and no sooner.
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
			heed := seed%2 == 0 // their contexts
			stopped := make([]atomic.Bool, n)
			start, running, before := time.Now(), atomic.Int64{}, runtime.NumGoroutine()
			got, ended := "exit", make(chan struct{})
			go func() {
				defer close(ended)
				defer func() {
					if r := recover(); r != nil {
						got = fmt.Sprint(r)
					}
				}()
				goroutine.Together(t.Context(), n, soon, func(ctx context.Context, i int) bool {
					calls[i].Add(1)
					running.Add(1)
					defer running.Add(-1)
					if all == 0 {
						require.LessOrEqual(t, runtime.NumGoroutine(), before+1, name)
					}
					timer := time.NewTimer(took[i])
					defer timer.Stop()
					select {
					case <-timer.C:
					case <-cutOf(ctx, heed):
						earlier := false
						for k := range i {
							earlier = earlier || stopped[k].Load()
						}
						assert.True(t, earlier, name)
						return true // it does not count
					}
					stopped[i].Store(how[i] != goesOn)
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
			if heed {
				require.LessOrEqual(t, time.Since(start), soon+slices.Max(append(took[:begun:begun], 0)), name)
			}
			for i := range calls {
				require.LessOrEqual(t, calls[i].Load(), int64(1), name)
				if i < begun {
					require.EqualValues(t, 1, calls[i].Load(), name)
				}
			}
		}
	})
}

// cutOf returns what ends a call, if it heeds its context.
func cutOf(ctx context.Context, heeds bool) <-chan struct{} {
	if heeds {
		return ctx.Done()
	}
	return nil
}
