package denycache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestDenialsOfTenants are each tenant's own, and end with a change of the key that they share.
func TestDenialsOfTenants(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const shared = 7
		c, buckets := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
		buckets = append(buckets, bucket.NewTenants(&buckets[0]))
		a, b := of("k\na", 1, 1, buckets), of("k\nb", 2, 1, buckets)
		a.Shared, b.Shared = shared, shared
		full := bucket.State{Level: 500, Wait: 50, Shares: &bucket.Shares{
			Sum: 5 * bucket.Parts, Weights: 1, Finish: 5 * bucket.Parts, Held: 1, Weight: 1,
		}}
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
		require.Nil(t, c.lookup(b))
		time.Sleep(40 * time.Millisecond)
		found := c.lookup(a)
		require.EqualValues(t, 10, found[1].Wait)
		require.EqualValues(t, 460, found[1].Level)
		late := full
		late.Wait = 300 // longer than the charge lacks room
		c.Remember(b, denied(bucket.State{Level: 500}, late))
		time.Sleep(49 * time.Millisecond)
		require.NotNil(t, c.lookup(b))
		time.Sleep(time.Millisecond)
		require.Nil(t, c.lookup(b), "it fits, so it is no denial")

		c.Remember(b, denied(bucket.State{Level: 500}, full))
		c.Forget([]byte("k"), shared, false) // by a refund of either
		require.Nil(t, c.lookup(a))
		require.Nil(t, c.lookup(b))
		time.Sleep(time.Millisecond)
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
		other := of("l\na", 3, 1, buckets)
		other.Shared = shared + 1
		time.Sleep(time.Millisecond)
		c.Remember(other, denied(bucket.State{Level: 500}, full))
		c.Charge(b) // so that a waits longer than it was told
		require.Nil(t, c.lookup(a))
		require.NotNil(t, c.lookup(other), "it shares another key")
		time.Sleep(time.Millisecond)
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
	})
}
