package fifo

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// A call costs as much beside 50,000 waiting callers as beside none.

const maxWaiters = 50_000

// BenchmarkWake wakes the one caller of a key, while each of the others waits for a key of its own.
func BenchmarkWake(b *testing.B) {
	for _, others := range []int{0, maxWaiters} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			var q Queues
			for i := range others + 1 {
				if _, err := join(b.Context(), &q, Name{strconv.Itoa(i), "tokens"}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				q.Wake("0")
			}
		})
	}
}

// BenchmarkJoin joins a queue at its end, and leaves it there.
func BenchmarkJoin(b *testing.B) {
	for _, others := range []int{1, maxWaiters} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			var q Queues
			defer fill(b, &q, others)()
			ended, cancel := context.WithCancel(b.Context())
			cancel()
			for b.Loop() {
				if _, err := join(ended, &q, k); err == nil {
					b.Fatal("it had its turn")
				}
			}
		})
	}
}

// BenchmarkLeave has all callers of a queue join it, and leave it at the same moment.
func BenchmarkLeave(b *testing.B) {
	for _, callers := range []int{100, maxWaiters} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			for b.Loop() {
				var q Queues
				fill(b, &q, callers)()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*callers), "ns/caller")
		})
	}
}

// fill makes n callers wait in a queue until the returned function is called.
func fill(b *testing.B, q *Queues, callers int) (empty func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			if turn, err := join(ctx, q, k); err == nil {
				<-ctx.Done()
				turn.Leave()
			}
		})
	}
	for length(q, k) < callers {
		runtime.Gosched()
	}
	return func() {
		cancel()
		all.Wait()
	}
}
