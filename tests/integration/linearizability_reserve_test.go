package integration

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Histories of reservations are linearizable too: Reserve is AllowN, and Settle replaces what was
// reserved by what was taken, once. Less is given back, more is charged, into debt up to another
// burst. A Settle without an answer does so at any moment from its beginning on, or never.

// settled returns what a bucket may be after two goroutines have settled a reservation,
// each with a number of its own. The one that came first counts, and only that one may have failed.
func (b bucket) settled(in operation, out outcome) (next []any) {
	after := func(actual int) bucket {
		if more := actual - in.n; more > 0 {
			return bucket{b.taken + min(more, 2*slowLimit.Burst-b.taken), b.late}
		}
		return bucket{max(0, b.taken+actual-in.n), b.late}
	}
	switch out.unsettled {
	case [2]bool{true, true}:
		return nil
	case [2]bool{true, false}:
		return []any{b, after(in.actual[0])}
	case [2]bool{false, true}:
		return []any{b, after(in.actual[1])}
	}
	return []any{after(in.actual[0]), after(in.actual[1])}
}

// settle has two goroutines settle a reservation at once: with less, as much or more, or not at all.
func (h *history) settle(t *testing.T, caller int, in operation, r *ginlimit.Reservation,
	random *rand.Rand, start time.Time) {
	in.verb, in.actual = settle, [2]int{random.IntN(2 * in.n), random.IntN(12)}
	var out outcome
	var both sync.WaitGroup
	called := time.Since(start).Nanoseconds()
	for i, actual := range in.actual {
		both.Go(func() {
			err := r.Settle(context.Background(), actual)
			if out.unsettled[i] = err != nil; err != nil {
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			}
		})
	}
	both.Wait()
	returned := time.Since(start).Nanoseconds()
	if out.lost = out.unsettled[0] || out.unsettled[1]; out.lost {
		returned = time.Hour.Nanoseconds() // it may happen later
	}
	h.add(porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
}

// Three processes with leases ask for keys in waves while something happens: guarantee 1 holds for
// every span of time, but for what a failover is documented to cost.

const (
	waveCallers = 4 // of each process
	wavePace    = 2 * time.Millisecond
	wave        = 400 * time.Millisecond // first callers ask, then the bucket fills up again
	waveLife    = 500 * time.Millisecond
)

// isHigh reports whether callers ask, so long after the start: for 20 ms to 180 ms of each wave.
func isHigh(at time.Duration) bool { return at%wave < time.Duration(1+at/wave%5*2)*20*time.Millisecond }

// crest is what the callers of all processes were told.
type crest struct {
	limits map[string][]ginlimit.Limit // of the keys that are asked for

	mu       sync.Mutex
	admitted map[string][]admission
	leased   int
	failed   []seen
}

// ride has callers of three processes ask for keys in waves, before, while and after something
// happens: that is told when they began.
func ride(t *testing.T, rdb redis.UniversalClient, limits map[string][]ginlimit.Limit, timeout ginlimit.LimiterOption,
	happens func(start time.Time, limiters []*testkit.Limiter)) *crest {
	t.Helper()
	c := crest{limits: limits, admitted: map[string][]admission{}}
	var all sync.WaitGroup
	limiters := make([]*testkit.Limiter, 3)
	for i := range limiters {
		limiters[i] = testkit.NewLimiter(t, another(t, rdb), ginlimit.WithLease(waveLife), testkit.RemembersDenials(),
			timeout)
		require.True(t, testkit.BecomesTrue(t.Context().Done(), inRedis(limiters[i])))
	}
	start, end := time.Now(), make(chan struct{})
	for _, limiter := range limiters {
		for range waveCallers {
			all.Go(func() { c.call(limiter, start, end) })
		}
	}
	pause(2*wave + wave/4)
	happens(start, limiters)
	pause(3 * wave)
	assert.True(t, testkit.BecomesTrue(t.Context().Done(), c.hasLeases)) // on a busy machine it may take longer
	close(end)
	all.Wait()
	return &c
}

// hasLeases reports whether any decision was made from a lease.
func (c *crest) hasLeases() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leased > 0
}

func (c *crest) call(l *testkit.Limiter, start time.Time, end <-chan struct{}) {
	ticker := time.NewTicker(wavePace)
	defer ticker.Stop()
	keys := slices.Collect(maps.Keys(c.limits))
	for {
		if at := time.Since(start); isHigh(at) {
			key, n := keys[rand.IntN(len(keys))], 1+rand.IntN(8)/7
			r, err := l.AllowN(context.Background(), key, n, c.limits[key]...)
			d := seen{key: hotKey, at: at, took: time.Since(start) - at, r: r, err: err}
			c.mu.Lock()
			if r.Granted > 0 {
				c.admitted[key] = append(c.admitted[key], admission{d.at, d.at + d.took, r.Granted})
			}
			if r.Source == ginlimit.FromLease {
				c.leased++
			}
			if err != nil {
				c.failed = append(c.failed, d)
			}
			c.mu.Unlock()
		}
		select {
		case <-ticker.C:
		case <-end:
			return
		}
	}
}

// judge asserts guarantee 1.
func (c *crest) judge(t *testing.T, lost loss) {
	t.Helper()
	for key, admitted := range c.admitted {
		limit := c.limits[key][0]
		fullest := assertNoMoreThan(t, limit, admitted, lost)
		say(t, "%s: %d admissions, %d of a burst of %d in the fullest span", key, len(admitted), fullest, limit.Burst)
	}
	for _, failed := range c.failed {
		require.ErrorIs(t, failed.err, ginlimit.ErrUnavailable)
	}
	say(t, "%d decisions from leases, %d failed", c.leased, len(c.failed))
}

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
