package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// TestWhatAProcessGivesBackAtItsEnd takes nothing from another process. Two processes each lease
// half of 100 tokens, of which one flows back per millisecond, and use one. The first process ends
// and gives the others back. 40 ms later others take all tokens left, and the second process uses
// its own: at most 100 are used. By the level that its own charge left, the second process could
// use 49, of which 40 are void.
func TestWhatAProcessGivesBackAtItsEnd(t *testing.T) {
	for givesBack := range 2 {
		inBubbleRun(t, givesBack, func(t *testing.T) {
			b := []bucket.Bucket{newBucket(t, bucket.Token, 1000, 100, 1000)}
			s := &simulation{buckets: b, server: make([]simBucket, 1), reference: make([]simBucket, 1),
				start: time.Now()}
			subject := Subject{[]byte("k"), 1, b}
			var caches []*Cache
			for range 2 {
				c := New(clocktrust.New(true))
				c.add(&subject)
				trip, sent := c.Begin(subject, 100*ms, 1, 1), time.Now()
				trip.ahead = 49
				trip.End(subject, 50, s.decide(1, 50, 1), sent, sent)
				caches = append(caches, c)
			}
			if givesBack == 1 {
				all := caches[0].Drain(0)
				require.EqualValues(t, 49, all[0].Tokens)
				s.takeBack(all[0])
			}
			time.Sleep(40 * ms)
			s.decide(100, 100, 1)
			used := 0
			for range 100 {
				if _, _, ok := caches[1].Take(subject, 1, make([]bucket.State, 1)); ok {
					used++
					s.useLocked(1, "from a lease")
				}
			}
			require.Empty(t, s.violation)
			require.Equal(t, 9, used)
		})
	}
}
