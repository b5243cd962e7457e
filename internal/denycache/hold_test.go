package denycache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
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
				c, one := New(64, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{10, 1000})
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
		c, two := New(64, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{10, 1000}, [2]int64{60, 60_000})
		r := denied(bucket.State{Level: 500}, bucket.State{Level: 60_000})
		r.AtLeast = 1200 * ms
		c.Remember(of("k", 1, 1, two), r)
		time.Sleep(ms)
		require.Equal(t, []bucket.State{{Level: 499}, {Level: 60_000 - 1000 + 1199}}, c.lookup(of("k", 1, 1, two)))
		time.Sleep(life - ms)
		require.Nil(t, c.lookup(of("k", 1, 1, two)), "a denial is not used for longer than any")
	})
}

// TestHoldOfAWindow ends with it at the latest: the state says itself how long it denies.
func TestHoldOfAWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(64, clocktrust.New(true)), newBuckets(t, bucket.FixedWindow, [2]int64{10, 1000})
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

// TestHoldNeedsATrustedClock, as any denial does. Forget and Drop end it.
func TestHoldNeedsATrustedClock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		one := newBuckets(t, bucket.Token, [2]int64{10, 1000})
		k := of("k", 1, 1, one)
		for _, trust := range []bool{false, true} {
			c := New(64, clocktrust.New(trust))
			r := denied(bucket.State{Level: 1000})
			r.AtLeast = 250 * ms
			c.Remember(k, r)
			require.Equal(t, trust, c.lookup(k) != nil)
			require.Equal(t, trust, c.Denies(one))
			c.Drop(k.Key, k.Hash)
			require.Nil(t, c.lookup(k))
		}
	})
}

// TestTrustGoesByWhatWasFound, if the call took something first: the level that it left is higher,
// as if the clock had stood still.
func TestTrustGoesByWhatWasFound(t *testing.T) {
	for _, found := range []bool{false, true} {
		name := map[bool]string{false: "left alone", true: "found"}[found]
		inBubbleRun(t, name, func(t *testing.T) {
			c, one := New(64, clocktrust.New(false)), newBuckets(t, bucket.Token, [2]int64{10, 10_000})
			k := of("k", 1, 1, one)
			c.Remember(k, denied(bucket.State{Level: 10_000}))
			time.Sleep(2000 * ms)
			r := denied(bucket.State{Level: 10_000})
			if found {
				r.Found = []bucket.State{{Level: 8000}} // and two tokens were taken
			}
			c.Remember(k, r)
			require.Equal(t, found, c.clock.Trusted())
			if found {
				require.Equal(t, []bucket.State{{Level: 10_000}}, c.lookup(k))
				require.Nil(t, find(c.places(1), k).Found, "it is not kept")
			}
		})
	}
}

// TestASecondDenialDoesNotLengthenAHold, as clients were told when it ends.
func TestASecondDenialDoesNotLengthenAHold(t *testing.T) {
	for _, row := range []struct{ hold, ends time.Duration }{
		{250 * ms, 250 * ms}, {500 * ms, 250 * ms}, {50 * ms, 150 * ms},
	} {
		inBubbleRun(t, row.hold.String(), func(t *testing.T) {
			c, one := New(64, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{10, 1000})
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
