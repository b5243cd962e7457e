package denycache

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

func newBuckets(t testing.TB, kind bucket.Kind, limits ...[2]int64) []bucket.Bucket {
	t.Helper()
	var all []bucket.Bucket
	for _, limit := range limits {
		b, ok := bucket.New(kind, fmt.Sprint(kind, limit[1]), limit[0], limit[0], limit[1])
		require.True(t, ok)
		all = append(all, b)
	}
	return all
}

// of returns a subject whose hash selects its places and its stripe.
func of(key string, hash uint64, n int64, buckets []bucket.Bucket) Subject {
	return Subject{Key: []byte(key), Hash: hash, Buckets: buckets, N: n}
}

// denied returns a denial that was sent and received now.
func denied(states ...bucket.State) Denial {
	return Denial{States: states, Sent: time.Now(), Received: time.Now()}
}

// lookup returns the states that the cache sets for a subject, or nil if it does not deny.
func (c *Cache) lookup(s Subject) []bucket.State {
	states := make([]bucket.State, len(s.Buckets))
	if !c.Lookup(s, states) {
		return nil
	}
	return states
}
