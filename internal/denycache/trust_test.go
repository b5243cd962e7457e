package denycache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// TestTrust has an empty bucket of a token a day, whose level falls by some time within some time.
// A cache trusts Redis' clock only once the two agreed more often than not.
func TestTrust(t *testing.T) {
	type seen struct{ passed, fell time.Duration }
	for name, row := range map[string]struct {
		seen []seen
		want bool
	}{
		"once":                      {nil, false},
		"a clock like this one":     {[]seen{{10 * ms, 10 * ms}}, true},
		"a clock that stands still": {[]seen{{10 * ms, 0}, {100 * ms, 0}, {500 * ms, 0}}, false},
		"a slower clock":            {[]seen{{10 * ms, 8 * ms}, {100 * ms, 90 * ms}}, false},
		"a millisecond slower":      {[]seen{{10 * ms, 9 * ms}}, true},
		"two milliseconds faster":   {[]seen{{10 * ms, 12 * ms}}, true},
		"a faster clock":            {[]seen{{10 * ms, 13 * ms}}, false},
		"a clock that is set":       {[]seen{{10 * ms, time.Hour}}, false},
		"too soon":                  {[]seen{{2 * ms, 2 * ms}}, false},
		// all from the first
		"a few that are too soon": {[]seen{{1 * ms, 1 * ms}, {1 * ms, 1 * ms}, {1 * ms, 1 * ms}}, true},
		"set after it was seen":   {[]seen{{10 * ms, 10 * ms}, {10 * ms, time.Hour}}, false},
		"set after it was seen often": {[]seen{{10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms},
			{10 * ms, time.Hour}}, true},
		"set twice": {[]seen{
			{10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms},
			{10 * ms, 10 * ms},
			{10 * ms, time.Hour}, {10 * ms, time.Hour},
		}, false},
		"set, then seen": {[]seen{{10 * ms, time.Hour}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms}}, false},
		"seen often, set twice, then seen": {[]seen{
			{10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms},
			{10 * ms, 10 * ms},
			{10 * ms, time.Hour}, {10 * ms, time.Hour}, {10 * ms, 10 * ms},
		}, true},
		"too soon, after it was seen": {[]seen{{10 * ms, 10 * ms}, {2 * ms, 0}}, true},
		"seen more often than set": {[]seen{
			{10 * ms, time.Hour}, {10 * ms, time.Hour}, {10 * ms, time.Hour}, {10 * ms, 10 * ms}, {10 * ms, 10 * ms},
			{10 * ms, 10 * ms},
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const day, hours = 86_400_000, 3_600_000
				c, one := New(64, clocktrust.New(false)), newBuckets(t, bucket.Token, [2]int64{10, 10 * day})
				s, level := of("k", 1, 1, one), one[0].BlockLevel(20*hours)
				remember := func() {
					c.Remember(s, denied(bucket.State{Level: level}))
					require.Equal(t, 1, c.Len())
					if states := c.lookup(s); states != nil {
						require.Equal(t, level, states[0].Level, "the newest denial")
					}
				}
				remember()
				for _, seen := range row.seen {
					require.Equal(t, c.clock.Trusted(), c.lookup(s) != nil)
					time.Sleep(seen.passed)
					level -= one[0].Drain * seen.fell.Milliseconds()
					remember()
				}
				require.Equal(t, row.want, c.lookup(s) != nil)
				c.Remember(of("another", 2, 1, one), denied(bucket.State{Level: level}))
				require.Equal(t, row.want, c.lookup(of("another", 2, 1, one)) != nil, "of any key")
			})
		})
	}
}

// TestTrustAllowsForTheWayToRedis: the level was read at an unknown time between request and
// answer.
func TestTrustAllowsForTheWayToRedis(t *testing.T) {
	for fell, want := range map[time.Duration]bool{
		5 * ms: false, 9 * ms: true, 10 * ms: true, 50 * ms: true, 52 * ms: true, 53 * ms: false,
	} {
		inBubbleRun(t, fell.String(), func(t *testing.T) {
			c, one := New(64, clocktrust.New(false)), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
			s, level := of("k", 1, 1, one), one[0].Capacity
			ask := func() {
				r := denied(bucket.State{Level: level})
				time.Sleep(20 * ms)
				r.Received = time.Now()
				c.Remember(s, r)
			}
			ask()
			time.Sleep(10 * ms) // from 10 to 50 ms
			level -= fell.Milliseconds()
			ask()
			require.Equal(t, want, c.lookup(s) != nil)
		})
	}
}
