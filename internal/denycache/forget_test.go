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
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// TestForget: what was asked before a change is not remembered, of this key and few others.
func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(256, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		empty := bucket.State{Level: one[0].Capacity}
		k, same, other := of("k", 1, 1, one), of("of its stripe", 1+stripes, 1, one), of("of another stripe", 2, 1, one)
		all := []Subject{same, k, other}
		for _, s := range all {
			c.Remember(s, refused(empty))
			require.NotNil(t, c.lookup(s))
		}
		time.Sleep(10 * ms)
		before := refused(empty)
		time.Sleep(time.Nanosecond)
		c.Forget(k.Key, k.Hash, false)
		require.Nil(t, c.lookup(k))
		require.NotNil(t, c.lookup(same))
		require.NotNil(t, c.lookup(other))
		for _, s := range all { // denials that were on their way
			c.Remember(s, before)
		}
		require.Nil(t, c.lookup(k))
		require.Equal(t, before.Sent.Add(-10*ms), find(c.places(same.Hash), same).Sent, "not remembered, as it may be the same key")
		require.Equal(t, before.Sent, find(c.places(other.Hash), other).Sent)

		c.Remember(k, refused(empty))
		require.Nil(t, c.lookup(k), "of the same moment")
		time.Sleep(time.Nanosecond)
		c.Remember(k, refused(empty))
		require.NotNil(t, c.lookup(k), "of the next one")

		// A change that failed may still be made, for as long as a denial is believed.
		c.Forget(k.Key, k.Hash, true)
		for range 100 {
			c.Remember(k, refused(empty))
			require.Nil(t, c.lookup(k))
			time.Sleep(life / 100)
		}
		c.Forget(k.Key, k.Hash, false)
		time.Sleep(time.Nanosecond)
		c.Remember(k, refused(empty))
		require.NotNil(t, c.lookup(k))

		// A charge drops what is known, and nothing else.
		before = refused(empty)
		c.Drop(k.Key, k.Hash)
		require.Nil(t, c.lookup(k))
		time.Sleep(time.Nanosecond)
		c.Remember(k, refused(empty))
		require.NotNil(t, c.lookup(k))
	})
}

// TestAFailedChangeIsNotShortened by one that is made meanwhile.
func TestAFailedChangeIsNotShortened(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(256, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		k := of("k", 1, 1, one)
		c.Forget(k.Key, k.Hash, true)
		time.Sleep(life / 2)
		c.Forget(k.Key, k.Hash, false)
		time.Sleep(life / 2)
		c.Remember(k, refused(bucket.State{Level: one[0].Capacity}))
		require.Nil(t, c.lookup(k))
		time.Sleep(time.Nanosecond)
		c.Remember(k, refused(bucket.State{Level: one[0].Capacity}))
		require.NotNil(t, c.lookup(k))
	})
}

// TestForgetAgainstRemember has a key changed while denials of it are on their way, as the comment
// of Cache says: once all have returned, none is left that is older than the change.
func TestForgetAgainstRemember(t *testing.T) {
	t.Parallel()
	const rounds = 2000
	c, one := New(ways, clocktrust.New(true)), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
	s := of("k", 1, 1, one)
	var refuses atomic.Bool // by Redis
	for i := range rounds {
		var all sync.WaitGroup
		var begun atomic.Bool
		refuses.Store(true)
		all.Go(func() {
			begun.Store(true)
			for range 1000 {
				sent := time.Now()
				if !refuses.Load() {
					break
				}
				c.Remember(s, Denial{States: []bucket.State{{Level: one[0].Capacity}}, Sent: sent, Received: sent})
			}
		})
		for !begun.Load() {
			runtime.Gosched()
		}
		for range rand.IntN(1000) { // some time
			refuses.Load()
		}
		refuses.Store(false)
		c.Forget(s.Key, s.Hash, false)
		all.Wait()
		require.Nil(t, c.lookup(s), "round %d", i)
	}
}
