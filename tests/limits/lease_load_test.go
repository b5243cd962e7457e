package limits_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases under loads of requests at random times, in simulated time. integration/ has them on real servers.

// leaseLoad is a load on one key by several processes, a call to Redis taking no time.
type leaseLoad struct {
	limit     ginlimit.Limit
	of        float64 // the limit
	processes int
	length    time.Duration // after a second to warm up
}

// run returns what each process was granted, how many requests there were, and how many calls to Redis.
func (l *leaseLoad) run(t *testing.T, b *testkit.LeaseBench) (granted []int, asked, calls int64) {
	r := rand.New(rand.NewPCG(29, uint64(l.processes)))
	var all []*testkit.Limiter
	for range l.processes {
		all = append(all, b.Limiter(t, ginlimit.WithLease(200*time.Millisecond),
			ginlimit.WithTimeout(ginlimit.DefaultTimeout)))
	}
	gap := float64(time.Second) / (l.of * float64(l.limit.Rate))
	start, before := time.Now(), int64(-1)
	granted = make([]int, l.processes)
	for time.Since(start) < time.Second+l.length {
		b.Advance(time.Duration(r.ExpFloat64() * gap))
		i := r.IntN(l.processes)
		result := testkit.Must(all[i].Allow(t.Context(), "k", l.limit))
		switch {
		case time.Since(start) < time.Second:
			continue
		case before < 0:
			before = b.Hook.Calls.Load()
		}
		asked++
		granted[i] += result.Granted
	}
	return granted, asked, b.Hook.Calls.Load() - before
}

// TestEqualDemandHasEqualShares, within a tenth, of a limit that has too little for all.
func TestEqualDemandHasEqualShares(t *testing.T) {
	for _, processes := range []int{2, 4} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				length, apart := 2*time.Minute, 0.3 // a shorter run leaves more to chance
				if testkit.Full() {
					length, apart = 10*time.Minute, 0.1
				}
				load := leaseLoad{ginlimit.PerSecond(20), 4, processes, length}
				granted, _, _ := load.run(t, b)
				sum := 0
				for _, n := range granted {
					sum += n
				}
				require.InEpsilon(t, load.length.Seconds()*20, sum, 0.02)
				for _, n := range granted {
					require.InEpsilon(t, float64(sum)/float64(processes), n, apart, "%v", granted)
				}
			})
		})
	}
}
