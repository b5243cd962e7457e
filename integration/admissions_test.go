package integration

import (
	"cmp"
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
