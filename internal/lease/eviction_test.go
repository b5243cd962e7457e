package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEviction: a key replaces the entry of its set whose last decision is oldest, never one that
// holds tokens.
func TestEviction(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(func(Unused) {})
		var all []*fixture
		for i := range uint64(ways) {
			f := &fixture{cache: c, s: subject(t, 1+i*sets), life: 100 * ms}
			time.Sleep(ms)
			require.NotNil(t, c.add(&f.s))
			all = append(all, f)
		}
		require.Same(t, all[1].entry(), c.add(&all[1].s), "it is there")
		all[0].lend(1)
		for _, f := range all[1:] {
			time.Sleep(ms)
			f.want(0)
			f.end(f.begin())
		}
		other := &fixture{cache: c, s: subject(t, 1+ways*sets), life: 100 * ms}
		time.Sleep(90 * ms)
		require.NotNil(t, c.add(&other.s))
		require.NotNil(t, all[0].entry(), "it holds tokens, though they are not usable")
		require.Nil(t, all[1].entry(), "the oldest")
		for _, f := range append(all[2:], other) {
			f.lend(5)
		}
		all[0].lend(1)
		require.Nil(t, c.add(&all[1].s), "all hold tokens")
		require.True(t, all[0].take(1))
		require.NotNil(t, c.add(&all[1].s))
		require.Nil(t, all[0].entry())
		time.Sleep(time.Minute) // the others have given back theirs
		require.NotNil(t, c.add(&all[0].s))
	})
}

// TestAnEvictedEntryLosesNoTokens: a call that is in flight while its key is evicted has its tokens
// given back after their time.
func TestAnEvictedEntryLosesNoTokens(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(9)
		trip := f.begin()
		for i := range uint64(ways) {
			s := subject(t, 1+(1+i)*sets)
			time.Sleep(ms)
			require.NotNil(t, f.cache.add(&s))
		}
		require.Nil(t, f.entry())
		f.end(trip)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 9, f.given())
	})
}

// TestMaxKeys: however many keys there are, no more are watched.
func TestMaxKeys(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, s := New(nil), subject(t, 0)
		for i := range uint64(3 * MaxKeys) {
			s.Hash = i * 0x9E3779B97F4A7C15
			c.add(&s)
		}
		n := 0
		for i := range c.table.Load() {
			if c.table.Load()[i].Load() != nil {
				n++
			}
		}
		require.Greater(t, n, MaxKeys/2)
		require.LessOrEqual(t, n, MaxKeys)
	})
}
