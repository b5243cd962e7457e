package frontier

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// distance is how long a call takes on its way to Redis, and then to the next millisecond: the clock of Redis has no
// finer time, and one in memory would round what it has in each call.
const distance = time.Millisecond

// ours has the real code decide on requests: a limiter and a client in each process, a Redis in memory, and the clock
// of a bubble. The timeout is the default, as what a lease leaves is lost if it would flow back within 2.2 of it.
func ours(t *testing.T, c cell, requests []request, options ...ginlimit.PolicyOption) (found outcome) {
	synctest.Test(t, func(t *testing.T) {
		b := testkit.NewBubble(t)
		var calls atomic.Int64
		policies := make([]*ginlimit.Policy, c.processes)
		for i := range policies {
			rdb := b.Connect(t)
			rdb.AddHook(testkit.EveryScript(func(send func() error) error {
				calls.Add(1)
				time.Sleep(time.Until(time.Now().Add(2*distance - 1).Truncate(distance)))
				return send()
			}))
			limiter := testkit.Must(ginlimit.NewLimiter(rdb))
			t.Cleanup(func() { _ = limiter.Close() })
			policies[i] = testkit.Must(limiter.Policy("api", append(slices.Clone(options),
				ginlimit.PerSecond(limit).WithBurst(limit))...))
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		began := time.Now()
		for i, r := range requests {
			time.Sleep(time.Until(began.Add(r.at)))
			all.Go(func() {
				result, err := policies[r.process].Allow(context.Background(), "client")
				if err != nil || result.Source == ginlimit.FromLocal {
					t.Error(strconv.Itoa(i), result.Source, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if result.Allowed {
					found.admitted = append(found.admitted, time.Since(began))
				}
			})
		}
		all.Wait()
		found.calls = int(calls.Load())
	})
	slices.Sort(found.admitted)
	return found
}
