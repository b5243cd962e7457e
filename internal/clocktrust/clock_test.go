package clocktrust

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// TestWhatIsSeenOfAClock: Redis' clock moved by whole milliseconds, while a time between two bounds
// passed here. The readings are whole milliseconds, so it may move two more than the longer bound,
// or one less than the shorter.
func TestWhatIsSeenOfAClock(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		moved             int64
		shortest, longest time.Duration
		fast, useful      bool
		trusted           bool // after one such observation
	}{
		"like this one":                       {10, 10 * ms, 10 * ms, false, true, true},
		"a millisecond less":                  {9, 10 * ms, 10 * ms, false, true, true},
		"two milliseconds less":               {8, 10 * ms, 10 * ms, false, true, false},
		"two milliseconds more":               {12, 10 * ms, 10 * ms, false, true, true},
		"three milliseconds more":             {13, 10 * ms, 10 * ms, true, true, false},
		"two more than the longest":           {52, 10 * ms, 50*ms + ms/2, false, true, true},
		"three more than the longest":         {53, 10 * ms, 50*ms + ms/2, true, true, false},
		"stands still":                        {0, 500 * ms, 500 * ms, false, true, false},
		"the shortest time":                   {3, minElapsed, minElapsed, false, true, true},
		"too short a time":                    {3, minElapsed - 1, minElapsed, false, false, false},
		"too far, in however short a time":    {3, 0, 0, true, true, false},
		"not too far, in however short a one": {2, 0, 0, false, false, false},
		"in flight at once, in either order":  {10, -ms, ms, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(false)
			require.False(t, c.Always())
			require.False(t, c.Trusted())
			useful := c.Observe(row.moved, row.shortest, row.longest)
			require.Equal(t, row.fast, c.Jumps() > 0)
			require.Equal(t, row.useful, useful)
			require.Equal(t, row.trusted, c.Trusted())
		})
	}
}

// TestAClockTrustedFromTheStart is trusted until it has jumped twice.
func TestAClockTrustedFromTheStart(t *testing.T) {
	t.Parallel()
	c := New(true)
	require.True(t, c.Always())
	for _, want := range []bool{true, false} {
		require.True(t, c.Trusted())
		c.Observe(time.Hour.Milliseconds(), ms, ms)
		require.Equal(t, want, c.Trusted())
	}
}

// TestAClockThatMovesTellsLess than one that keeps pace: it must move eight times, and again after
// a jump.
func TestAClockThatMovesTellsLess(t *testing.T) {
	t.Parallel()
	c := New(false)
	moves := func(times int) {
		for range times {
			require.False(t, c.Trusted())
			c.Observe(1, 10*ms, 10*ms)
			c.Observe(1, ms, ms)
		}
		for range 100 {
			c.Observe(0, 10*ms, 10*ms)
		}
	}
	moves(8)
	require.True(t, c.Trusted())
	c.Observe(1, 10*ms, 10*ms)
	c.Observe(500, 10*ms, 10*ms)
	require.EqualValues(t, 1, c.Jumps())
	moves(8 + 7) // the jump outweighs the first eight
	require.False(t, c.Trusted())
	moves(1)
	require.True(t, c.Trusted())
}
