package denycache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

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
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
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
				require.Equal(t, row.retry, one[0].RetryAfter(states[0], row.n))
			})
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
