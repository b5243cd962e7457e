package scripts_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestBucketsThatAreNotPlain are decided on together too: one whose block has ended, and more than are told of at once.
func TestBucketsThatAreNotPlain(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerSecond(7)) // drain 7, cost 1000, capacity 7000
	set := func(key string) { require.NoError(t, s.rdb.Set(t.Context(), key, "6 502", 501*time.Millisecond).Err()) }
	set("k")
	reply := testkit.Must(s.together(t, "take", 1, 10, "k"))
	require.Equal(t, []int64{3501}, reply)
	reply = testkit.Must(s.call(t, "take", 1, 0, []string{"k"}))
	require.Equal(t, []int64{6501}, reply, "three more fit")

	set("5")
	s.args = slices.Repeat(s.args, 6)
	reply = testkit.Must(s.call(t, "give", 1, 0, []string{"1", "2", "3", "4", "5", "6"}))
	require.Equal(t, []int64{0, 0, 0, 0, 3501, 0}, reply)
}

// TestBucketsChargedTogetherAreKeptAsThoseChargedAlone, with the same values, for as long, and as
// much is told of them: but where a lone sliding window has made all charges, it does not say when
// one more fits.
func TestBucketsChargedTogetherAreKeptAsThoseChargedAlone(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		s, r := newScriptKeys(t, a, ginlimit.PerSecond(7)), rand.New(rand.NewPCG(2, 2))
		limit := s.args
		for step := range 200 {
			s.advance(time.Duration(r.IntN(300)) * time.Millisecond)
			n, charges := 1+r.IntN(2), r.IntN(3)
			if charges == 0 {
				n = 1 + r.IntN(6) // a look at when more tokens than the oldest have left
			}
			s.args = append(limit[:3:3], limit...)
			two := testkit.Must(s.call(t, "take", n, charges, []string{"one", "other"}))
			s.args = limit
			alone := testkit.Must(s.call(t, "take", n, charges, []string{"alone"}))
			if a == ginlimit.SlidingWindow && charges > 0 && alone[2] == 0 {
				alone[2] = two[2]
			}
			require.Equal(t, alone, two[:len(alone)], "%s, step %d", a, step)
			want := s.state(t, "alone")
			require.Equal(t, want, s.state(t, "one"), "%s, step %d", a, step)
			require.Equal(t, want, s.state(t, "other"), "%s, step %d", a, step)
		}
	}
}

// TestABlockLastsToItsLastMillisecond, and no longer.
func TestABlockLastsToItsLastMillisecond(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		for _, verb := range []string{"take", "each"} {
			s := newScriptKeys(t, a, ginlimit.PerSecond(7))
			full := int64(7)
			if a == ginlimit.TokenBucket {
				full = 6001 // units, of 7000: a token does not fit
			}
			testkit.Must(s.call(t, "block", 5, 0, []string{"k"}))
			s.advance(4 * time.Millisecond)
			for _, charges := range []int{0, 1} {
				require.GreaterOrEqual(t, testkit.Must(s.call(t, "take", 1, charges, []string{"k"}))[0], full, "%s", a)
				_, err := s.call(t, "charge", 1, 0, []string{"k"}) // which the block outlasts
				require.NoError(t, err)
			}
			testkit.Must(s.call(t, "give", 2, 0, []string{"k"}))
			s.advance(time.Millisecond)
			require.Less(t, testkit.Must(s.call(t, verb, 1, 1, []string{"k"}))[0], full, "%s", a)
		}
	}
}
