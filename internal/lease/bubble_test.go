package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const ms = time.Millisecond

// inBubble runs a test with simulated time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// newBucket returns a bucket of n tokens per period in milliseconds.
func newBucket(t testing.TB, kind bucket.Kind, rate, burst, period int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(kind, "", rate, burst, period)
	require.True(t, ok)
	return b
}

func inBubbleRun(t *testing.T, name any, test func(t *testing.T)) {
	t.Helper()
	t.Run(fmt.Sprint(name), func(t *testing.T) { inBubble(t, test) })
}
