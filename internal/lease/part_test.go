package lease

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTakePart takes what may be used, and no more than is wanted.
func TestTakePart(t *testing.T) {
	for name, row := range map[string]struct {
		most, part, left int64
		age              time.Duration
		change           func(f *fixture)
	}{
		"some":              {most: 3, part: 3, left: 2},
		"all":               {most: 5, part: 5},
		"fewer than wanted": {most: 9, part: 5},
		"none is wanted":    {most: 0, left: 5},
		"to the last use":   {most: 9, part: 5, age: usedFor(100*ms) - 1},
		"after that":        {most: 9, age: usedFor(100 * ms)},
		"after a change":    {most: 9, age: ms, change: func(f *fixture) { f.cache.End(1)(false) }},
		"after an outage":   {most: 9, change: func(f *fixture) { f.cache.Lose() }},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.lend(5)
			time.Sleep(row.age)
			if row.change != nil {
				row.change(f)
			}
			part := f.cache.TakePart(f.s, row.most)
			require.Equal(t, row.part, part.Tokens)
			require.Equal(t, row.left, f.leased())
		})
	}
}

// TestTakePartOfNothing takes nothing of a key without a lease, or that is not known.
func TestTakePartOfNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		require.Zero(t, f.cache.TakePart(f.s, 5))
		require.Zero(t, f.cache.TakePart(subject(t, 2), 5))
	})
}

// TestUsePart: a part may be used as long as its tokens are held. A change or an outage ends that.
func TestUsePart(t *testing.T) {
	for name, row := range map[string]struct {
		passed time.Duration
		change func(f *fixture)
		want   bool
	}{
		"at once":                 {want: true},
		"until the lease's end":   {passed: 100*ms - 1, want: true},
		"after its end":           {passed: 100 * ms},
		"beside the next lease":   {change: func(f *fixture) { f.want(9); f.end(f.begin()) }, want: true},
		"after a change":          {passed: ms, change: func(f *fixture) { f.cache.End(1)(false) }},
		"after an outage":         {change: func(f *fixture) { f.cache.Lose() }},
		"of an evicted key":       {change: func(f *fixture) { f.cache.reclaim(f.entry(), false) }, want: true},
		"when all are to be gone": {change: func(f *fixture) { f.cache.Close(); f.cache.Drain() }, want: true},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.lend(5)
			part, before := f.cache.TakePart(f.s, 3), f.cache.Stats().Admitted
			time.Sleep(row.passed)
			if row.change != nil {
				row.change(f)
			}
			require.Equal(t, row.want, f.cache.Use(part))
			if row.want {
				before++
			}
			require.Equal(t, before, f.cache.Stats().Admitted)
		})
	}
}

// TestPutBack leaves the tokens to the lease. If that is over, it gives them back.
func TestPutBack(t *testing.T) {
	for name, row := range map[string]struct {
		end           func(f *fixture)
		leased, given int64
	}{
		"the lease goes on":     {func(*fixture) {}, 5, 0},
		"another lease goes on": {func(f *fixture) { f.want(9); f.end(f.begin()) }, 9, 3},
		"it has ended":          {func(f *fixture) { time.Sleep(f.life) }, 0, 5},
		"after a change":        {func(f *fixture) { f.cache.End(1)(false); time.Sleep(f.life) }, 0, 5},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.lend(5)
			part := f.cache.TakePart(f.s, 3)
			row.end(f)
			synctest.Wait()
			f.cache.PutBack(part)
			require.Equal(t, row.leased, f.leased())
			require.Equal(t, row.given, f.given())
		})
	}
}

// TestPartsOfManyCallers lose no token, whatever ends the lease meanwhile.
func TestPartsOfManyCallers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(100)
		used := make([]int64, 8)
		var all sync.WaitGroup
		for i := range used {
			all.Go(func() {
				for round := range 50 {
					part := f.cache.TakePart(f.s, 3)
					if part.Tokens == 0 {
						continue
					}
					if round%3 == 0 && f.cache.Use(part) {
						used[i] += part.Tokens
					} else {
						f.cache.PutBack(part)
					}
				}
			})
		}
		f.want(20)
		f.end(f.begin())
		all.Wait()
		f.cache.Close()
		total := f.given()
		for _, n := range used {
			total += n
		}
		for _, u := range f.cache.Drain() {
			total += u.Tokens
		}
		require.Equal(t, f.level-2, total, "but the two callers' own")
	})
}
