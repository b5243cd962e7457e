package integration

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Three processes with leases ask for keys in waves while something happens: guarantee 1 holds for
// every span of time, but for what a failover is documented to cost.

const (
	waveCallers = 4 // of each process
	wavePace    = 2 * time.Millisecond
	wave        = 400 * time.Millisecond // first callers ask, then the bucket fills up again
	waveLife    = 500 * time.Millisecond
)

// isHigh reports whether callers ask, so long after the start: for 20 ms to 180 ms of each wave.
func isHigh(at time.Duration) bool {
	return at%wave < time.Duration(1+at/wave%5*2)*20*time.Millisecond
}

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
		limiters[i] = testkit.NewLimiter(t, another(t, rdb), ginlimit.WithLease(waveLife), testkit.RemembersDenials(), timeout)
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
