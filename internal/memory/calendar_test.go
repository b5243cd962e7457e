package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestAClockThatIsSetBack to before a period's end finds the tokens taken in it. The bubble's clock
// cannot be set, so the period ends later instead.
func TestAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ over, back time.Duration }{
		"not at all, with a call that began in the period": {3 * time.Second, 0},
		"by seconds":           {time.Second, 2 * time.Second},
		"for long, by seconds": {50 * time.Minute, 50*time.Minute + time.Second},
		"by an hour":           {59 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const quota, period = 10, 24 * time.Hour
				c, ends := clientsOf(New(MaxBuckets)), time.Now().Add(time.Minute)
				today := func() bucket.Bucket {
					b, ok := bucket.NewCalendar("day:1999-12-31", quota, period.Milliseconds(), ends.UnixMilli())
					require.True(t, ok)
					return b
				}
				admitted := 0
				for range 3 {
					_, taken := c.take(0, today())
					require.True(t, taken)
					admitted++
				}
				for range 5 { // again and again
					time.Sleep(time.Until(ends) + row.over)
					ends = ends.Add(row.back)
					left := max(1, time.Until(ends).Milliseconds())
					found, taken := c.take(0, today())
					require.EqualValues(t, admitted, found.Level)
					require.Equal(t, left, found.Reset)
					require.Equal(t, left, found.Soon)
					require.True(t, taken)
					admitted++
				}
				for range 5 {
					if found, taken := c.take(0, today()); taken {
						admitted++
					} else {
						require.Equal(t, max(1, time.Until(ends).Milliseconds()), found.Wait)
					}
				}
				require.Equal(t, quota, admitted)
			})
		})
	}
}

// TestAPeriodIsForgotten an hour after its end.
func TestAPeriodIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, ends := New(MaxBuckets), time.Now().Add(time.Minute)
		c := clientsOf(s)
		b, ok := bucket.NewCalendar("day", 10, (24 * time.Hour).Milliseconds(), ends.UnixMilli())
		require.True(t, ok)
		charged := c.do(0, b, take(4))
		time.Sleep(time.Until(ends) + time.Hour - time.Millisecond)
		require.EqualValues(t, 4, c.do(0, b, bucket.Peek(1)).Level)
		c.do(0, b, bucket.Op{Verb: bucket.Return, N: 1, Claims: []bucket.Claim{{Mark: charged.Mark}}})
		require.EqualValues(t, 3, c.do(0, b, bucket.Peek(1)).Level)
		require.Equal(t, 1, s.Len())
		time.Sleep(time.Millisecond)
		require.Zero(t, c.do(0, b, bucket.Peek(1)).Level)
		require.Zero(t, s.Len())
	})
}
