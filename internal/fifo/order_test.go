package fifo

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQueuesEqualAModel, which is a sorted slice, whoever comes and leaves when.
func TestQueuesEqualAModel(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q Queues
		var model []*Turn // the first, and then the others in order
		at := func() time.Time { return start.Add(time.Duration(r.IntN(40)) * time.Second) }
		for range 500 {
			switch since := at(); r.IntN(3) {
			case 0, 1:
				turn := q.Join(k, Caller{Since: since, Wants: int64(1 + r.IntN(5))})
				require.Equal(t, len(model) == 0, turn.AtOnce, seed)
				place := len(model)
				for place > 1 && since.Before(model[place-1].since) {
					place--
				}
				model = slices.Insert(model, place, turn)
			case 2:
				for range r.IntN(4) {
					if len(model) > 0 {
						i := r.IntN(len(model))
						model[i].Leave()
						model = slices.Delete(model, i, i+1)
						require.True(t, i > 0 || len(model) == 0 || woken(model[0])[0], seed)
					}
				}
			}
			var want Line
			since := at()
			for i, turn := range model {
				if i == 0 {
					want.First = turn.wants
				}
				if i == 0 || !since.Before(turn.since) {
					want.Callers++
					want.Wants += turn.wants
				}
			}
			require.Equal(t, want, q.Before(k, since), seed)
			require.Equal(t, len(model) == 0, q.Empty(), seed)
		}
	}
}

// TestATurnIsFoundInFewSteps of very many, in whatever order they came.
func TestATurnIsFoundInFewSteps(t *testing.T) {
	t.Parallel()
	const turns = 1 << 14
	for name, since := range map[string]func(i int) int{
		"in order": func(i int) int { return i }, "backwards": func(i int) int { return -i },
		"at once": func(int) int { return 0 },
	} {
		var o order
		start := time.Now()
		for i := range turns {
			o.add(&Turn{since: start.Add(time.Duration(since(i))), node: node{number: uint64(i)}})
		}
		var depth func(*Turn) int
		depth = func(t *Turn) int {
			if t == nil {
				return 0
			}
			return 1 + max(depth(t.before), depth(t.after))
		}
		require.Less(t, depth(o.root), 6*14, name)
	}
}
