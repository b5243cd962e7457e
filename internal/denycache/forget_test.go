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
		require.Equal(t, before.Sent.Add(-10*ms), find(c.places(same.Hash), same).Sent,
			"not remembered, as it may be the same key")
		require.Equal(t, before.Sent, find(c.places(other.Hash), other).Sent)

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
	c, one := New(ways), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
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
