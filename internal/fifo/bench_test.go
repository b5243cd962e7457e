package fifo

import (
	"strconv"
	"testing"
)

// BenchmarkTurn wakes a caller that joins a queue, and leaves it: it costs as much beside 50,000 others as beside
// none, of its queue or of others.
func BenchmarkTurn(b *testing.B) {
	for name, of := range map[string]func(int) Name{
		"a queue": func(int) Name { return k }, "queues": func(i int) Name { return Name{strconv.Itoa(i), "tokens"} },
	} {
		for _, others := range []int{0, 50_000} {
			b.Run(name+"/"+strconv.Itoa(others), func(b *testing.B) {
				var q Queues
				for i := range others {
					q.join(of(i))
				}
				for b.Loop() {
					turn := q.join(k)
					q.Wake("k")
					turn.Leave()
				}
			})
		}
	}
}
