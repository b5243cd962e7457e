package memory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestAnEmptyWindowIsNotKept unless it is blocked. The rest of windows is held against the scripts, in
// tests/scripts, and against their model, in tests/limits.
func TestAnEmptyWindowIsNotKept(t *testing.T) {
	t.Parallel()
	for _, kind := range []bucket.Kind{bucket.FixedWindow, bucket.SlidingWindow} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, b := clientsOf(New(MaxBuckets)), newBucket(t, kind, 5, time.Second)
				give := bucket.Op{Verb: bucket.Give, N: 5}
				c.take(0, b)
				require.Equal(t, 1, c.store.Len())
				c.do(0, b, give)
				require.Zero(t, c.store.Len(), "all was given back")

				c.take(0, b)
				time.Sleep(time.Second)
				c.do(0, b, bucket.Peek(1))
				require.Zero(t, c.store.Len(), "it has ended")

				c.take(0, b)
				c.do(0, b, bucket.Op{Verb: bucket.Block, N: 100})
				c.do(0, b, give)
				require.Equal(t, 1, c.store.Len(), "it is blocked")
				time.Sleep(100 * time.Millisecond)
				c.do(0, b, bucket.Peek(1))
				require.Zero(t, c.store.Len(), "the block has ended")
			})
		})
	}
}
