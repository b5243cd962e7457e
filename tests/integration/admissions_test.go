package integration

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit"
)

// admission is tokens of one key that a caller was granted, by Redis or from a lease, between two
// times since the start.
type admission struct {
	from, to time.Duration
	tokens   int
}

// loss is when Redis may lose a bucket, which then starts full, or give tokens back late.
type loss struct {
	from, to time.Duration
	bursts   int           // how often a bucket starts full in all
	tokens   int           // that are given back late
	twice    time.Duration // for how long a bucket is on two servers, each of which regains tokens
}

// assertNoMoreThan asserts guarantee 1 for every span of a run, not only for the whole of it: no more is admitted than
// burst + rate × time. Only a span that meets the loss may hold as much more. It returns how many tokens were
// admitted above rate × time in the fullest span that holds one burst.
func assertNoMoreThan(t *testing.T, limit ginlimit.Limit, all []admission, lost loss) (fullest int) {
	t.Helper()
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.to, b.to) })
	for _, first := range all {
		sum := 0
		for _, last := range all {
			if last.from < first.from {
				continue
			}
			sum += last.tokens
			// The server's clock has milliseconds, so a span may be up to one longer on it.
			span := last.to - first.from + time.Millisecond
			regained := int(int64(span) * int64(limit.Rate) / int64(limit.Period))
			most := limit.Burst
			if first.from <= lost.to && last.to >= lost.from {
				most = max(1, lost.bursts)*limit.Burst + lost.tokens + int(int64(lost.twice)*int64(limit.Rate)/int64(limit.Period))
			}
			if most == limit.Burst {
				fullest = max(fullest, sum-regained)
			}
			if sum > most+regained {
				assert.Failf(t, "too much is admitted", "%d of %d from %s to %s", sum, most+regained, first.from, last.to)
				return fullest
			}
		}
	}
	return fullest
}

// fullestSpan returns how many tokens were admitted above rate × time in the fullest span. It equals
// that of assertNoMoreThan without a loss, and is fast for many admissions.
//
// A tree over the admissions, by when they began, adds them up in the order in which they ended. The
// best of a node is the most that a span holds that begins with one of its admissions, above what
// flowed back since the start.
func fullestSpan(limit ginlimit.Limit, all []admission) (fullest int) {
	rate, period := int64(limit.Rate), int64(limit.Period)
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.from, b.from) })
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(all[a].to, all[b].to) })
	leaves := 1
	for leaves < len(all) {
		leaves *= 2
	}
	sum, best := make([]int64, 2*leaves), make([]int64, 2*leaves)
	up := func(i int) {
		sum[i] = sum[2*i] + sum[2*i+1]
		best[i] = max(best[2*i]+sum[2*i+1], best[2*i+1])
	}
	for i := range best {
		best[i] = math.MinInt64 / 2 // no admission yet
	}
	for _, j := range order {
		tokens := int64(all[j].tokens) * period
		sum[leaves+j] = tokens
		best[leaves+j] = int64(all[j].from)*rate + tokens
		for i := (leaves + j) / 2; i > 0; i /= 2 {
			up(i)
		}
		// The server's clock has milliseconds, so a span may be up to one longer on it.
		above := best[1] - int64(all[j].to+time.Millisecond)*rate
		fullest = max(fullest, int((above+period-1)/period))
	}
	return fullest
}

// TestFullestSpan compares both ways to find the fullest span.
func TestFullestSpan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		limit := ginlimit.Limit{Rate: 1 + random.IntN(1000), Period: time.Second, Burst: 1_000_000}
		var all []admission
		for range random.IntN(100) {
			from := time.Duration(random.Int64N(int64(time.Second)))
			all = append(all, admission{from, from + time.Duration(random.Int64N(int64(50*time.Millisecond))), 1 + random.IntN(9)})
		}
		assert.Equal(t, assertNoMoreThan(t, limit, all, loss{from: -1, to: -1}), fullestSpan(limit, all), "seed %d", seed)
	}
}
