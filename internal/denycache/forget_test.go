package denycache

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/table"
)

// TestForget: denials of calls sent before a change are forgotten, of this key and few others.
func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(256), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		empty := bucket.State{Level: one[0].Capacity}
		k, same, other := of("k", 1, 1, one), of("of its stripe", 1+stripes, 1, one), of("of another stripe", 2, 1, one)
		all := []Subject{same, k, other}
		for _, s := range all {
			c.Remember(s, denied(empty))
			require.NotNil(t, c.lookup(s))
		}
		time.Sleep(10 * ms)
		before := denied(empty)
		time.Sleep(time.Nanosecond)
		c.Forget(k.Key, k.Hash, false)
		require.Nil(t, c.lookup(k))
		require.NotNil(t, c.lookup(same))
		require.NotNil(t, c.lookup(other))
		for _, s := range all { // denials in flight
			c.Remember(s, before)
		}
		require.Nil(t, c.lookup(k))
		require.Equal(t, before.Sent.Add(-10*ms), c.find(same).Sent,
			"not remembered, as it may be the same key")
		require.Equal(t, before.Sent, c.find(other).Sent)

		c.Remember(k, denied(empty))
		require.Nil(t, c.lookup(k), "of the same moment")
		time.Sleep(time.Nanosecond)
		c.Remember(k, denied(empty))
		require.NotNil(t, c.lookup(k), "of the next one")

		// A failed change may still be made, for the life of a denial.
		c.Forget(k.Key, k.Hash, true)
		for range 100 {
			c.Remember(k, denied(empty))
			require.Nil(t, c.lookup(k))
			time.Sleep(life / 100)
		}
		c.Forget(k.Key, k.Hash, false)
		time.Sleep(time.Nanosecond)
		c.Remember(k, denied(empty))
		require.NotNil(t, c.lookup(k))

		// A charge drops the denials of its key only.
		before = denied(empty)
		c.Charge(k)
		require.Nil(t, c.lookup(k))
		time.Sleep(time.Nanosecond)
		c.Remember(k, denied(empty))
		require.NotNil(t, c.lookup(k))
	})
}

// TestAFailedChangeIsNotShortened by a change in between.
func TestAFailedChangeIsNotShortened(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(256), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		k := of("k", 1, 1, one)
		c.Forget(k.Key, k.Hash, true)
		time.Sleep(life / 2)
		c.Forget(k.Key, k.Hash, false)
		time.Sleep(life / 2)
		c.Remember(k, denied(bucket.State{Level: one[0].Capacity}))
		require.Nil(t, c.lookup(k))
		time.Sleep(time.Nanosecond)
		c.Remember(k, denied(bucket.State{Level: one[0].Capacity}))
		require.NotNil(t, c.lookup(k))
	})
}

// TestForgetAgainstRemember changes a key while its denials arrive, as Cache documents. In the end,
// no denial older than the change is left.
func TestForgetAgainstRemember(t *testing.T) {
	t.Parallel()
	const rounds = 2000
	c, one := New(table.Ways), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
	s := of("k", 1, 1, one)
	var denies atomic.Bool // by Redis
	for i := range rounds {
		var all sync.WaitGroup
		var begun atomic.Bool
		denies.Store(true)
		all.Go(func() {
			begun.Store(true)
			for range 1000 {
				sent := time.Now()
				if !denies.Load() {
					break
				}
				c.Remember(s, Denial{States: []bucket.State{{Level: one[0].Capacity}}, Sent: sent, Received: sent})
			}
		})
		for !begun.Load() {
			runtime.Gosched()
		}
		for range rand.IntN(1000) { // some time
			denies.Load()
		}
		denies.Store(false)
		c.Forget(s.Key, s.Hash, false)
		all.Wait()
		require.Nil(t, c.lookup(s), "round %d", i)
	}
}

// TestHoldDeniesForAsLongAsItSays, whatever flows back meanwhile: 10 tokens a second, of which a call
// left some. RetryAfter is the rest of that time, or what the state says if that is longer.
func TestHoldDeniesForAsLongAsItSays(t *testing.T) {
	for name, row := range map[string]struct {
		level, n int64         // after the call, and of the lookup
		age      time.Duration // since the call was sent, of which it took 20 ms
		retry    int64         // in milliseconds; 0 if it is not denied
	}{
		"at once":                      {1000, 1, 20 * ms, 230},
		"when a token has flowed back": {1000, 1, 150 * ms, 100},
		"in its last moment":           {1000, 1, 250*ms - 1, 1},
		"after it":                     {1000, 1, 250 * ms, 0},
		"there is a token":             {900, 1, 20 * ms, 0},
		"there are not two":            {900, 2, 20 * ms, 230},
		"nor are there three":          {900, 3, 20 * ms, 230},
		"a state that says longer":     {1000, 5, 20 * ms, 500},
		"and goes on to say so":        {1000, 5, 120 * ms, 400},
		"but is asked again":           {1000, 5, 250 * ms, 0},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			c, one := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
			r := denied(bucket.State{Level: row.level})
			time.Sleep(20 * ms)
			r.Received, r.AtLeast = time.Now(), 250*ms
			c.Remember(of("k", 1, 7, one), r)
			time.Sleep(time.Until(r.Sent.Add(row.age)))
			states := c.lookup(of("k", 1, row.n, one))
			if row.retry == 0 {
				require.Nil(t, states)
				return
			}
			require.NotNil(t, states)
			require.Equal(t, row.retry, one[0].Status(states[0], row.n).Retry)
		})
	}
}

// TestHoldIsOfTheLimitsThatDeny, not of those with room.
func TestHoldIsOfTheLimitsThatDeny(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, two := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000}, [2]int64{600, 60_000})
		r := denied(bucket.State{Level: 500}, bucket.State{Level: 60_000})
		r.AtLeast = 300 * ms
		c.Remember(of("k", 1, 1, two), r)
		time.Sleep(150 * ms)
		require.Equal(t, []bucket.State{{Level: 350}, {Level: 60_000 - 100 + 1, Wait: 150}}, c.lookup(of("k", 1, 1, two)))
	})
}

// TestHoldOfAWindow ends with it at the latest: the state says itself how long it denies.
func TestHoldOfAWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(64), newBuckets(t, bucket.FixedWindow, [2]int64{10, 1000})
		r := denied(bucket.State{Level: 10, Wait: 700, Reset: 700})
		r.AtLeast = 250 * ms
		c.Remember(of("k", 1, 1, one), r)
		require.Nil(t, c.lookup(of("k", 1, 2, one)), "a window's wait depends on the number of tokens")
		time.Sleep(249 * ms)
		require.Equal(t, []bucket.State{{Level: 10, Wait: 451, Reset: 451}}, c.lookup(of("k", 1, 1, one)))
		time.Sleep(ms)
		require.Nil(t, c.lookup(of("k", 1, 1, one)))
	})
}

// TestASecondDenialDoesNotLengthenAHold, as clients were told when it ends.
func TestASecondDenialDoesNotLengthenAHold(t *testing.T) {
	for _, row := range []struct{ hold, ends time.Duration }{
		{250 * ms, 250 * ms}, {500 * ms, 250 * ms}, {50 * ms, 150 * ms},
	} {
		inBubbleRun(t, row.hold.String(), func(t *testing.T) {
			c, one := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
			k, start := of("k", 1, 1, one), time.Now()
			r := denied(bucket.State{Level: 1000})
			r.AtLeast = 250 * ms
			c.Remember(k, r)
			time.Sleep(100 * ms)
			r = denied(bucket.State{Level: 1000})
			r.AtLeast = row.hold
			c.Remember(k, r)
			time.Sleep(time.Until(start.Add(row.ends)) - 1)
			require.NotNil(t, c.lookup(k))
			time.Sleep(time.Nanosecond)
			require.Nil(t, c.lookup(k))
		})
	}
}

// TestWhatMayBeHeld: only a denial that ends within a second of any earlier denial of the same tokens.
func TestWhatMayBeHeld(t *testing.T) {
	for name, row := range map[string]struct {
		rate, level, n int64 // tokens a second, of a burst of 100, and units of 1/rate ms
		hold           time.Duration
		want           bool
	}{
		"a token comes back soon":             {10, 0, 1, 300 * ms, true},
		"in time":                             {2, 0, 1, 500 * ms, true},
		"too late":                            {2, 0, 1, 501 * ms, false},
		"several tokens, in time":             {10, 0, 7, 300 * ms, true},
		"several tokens, too late":            {10, 0, 8, 300 * ms, false},
		"a block or a debt":                   {10, 1, 1, 300 * ms, false},
		"there is room for the tokens":        {10, -1000, 8, 300 * ms, true},
		"many at a high rate":                 {1000, 0, 100, 300 * ms, true},
		"more than there ever are is no wait": {1000, 0, 101, 300 * ms, true},
	} {
		buckets := newBuckets(t, bucket.Token, [2]int64{row.rate, 1000})
		b, ok := bucket.New(bucket.Token, "s", row.rate, 100, 1000)
		require.True(t, ok)
		buckets[0] = b
		states := []bucket.State{{Level: b.Capacity + row.level}}
		require.Equal(t, row.want, Holds(buckets, states, row.n, row.hold), name)
	}
}

// TestNoHoldAfterADebt, as clients were told a longer time before it ended.
func TestNoHoldAfterADebt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
		c.Remember(of("k", 1, 1, one), denied(bucket.State{Level: 1500}))
		time.Sleep(590 * ms)
		r := denied(bucket.State{Level: 910})
		r.AtLeast = 300 * ms
		c.Remember(of("k", 1, 1, one), r)
		time.Sleep(9 * ms)
		require.NotNil(t, c.lookup(of("k", 1, 1, one)))
		time.Sleep(ms)
		require.Nil(t, c.lookup(of("k", 1, 1, one)))
	})
}
