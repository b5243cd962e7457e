package wire

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestCommandOfOneCall has rows of keys, operation, buckets, marks, a ban and slots.
func TestCommandOfOneCall(t *testing.T) {
	t.Parallel()
	token, fixed, ban, slots := newBucket(bucket.Token), newBucket(bucket.FixedWindow), bucket.NewBan(100, 1000),
		bucket.NewSlots(3)
	floor, fixedFloor := newBucket(bucket.Token), newBucket(bucket.FixedWindow)
	floor.Leave(1)
	fixedFloor.Leave(1)
	for want, row := range map[string]struct {
		op      bucket.Op
		buckets []bucket.Bucket
	}{
		"1 a take 2 3 1 100 1000": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token}},
		"1 a take 2 3 1 100 900": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{floor}},
		"1 a charge 2 3 1 100 1000": {bucket.Op{Verb: bucket.Charge, N: 2},
			[]bucket.Bucket{floor}},
		"1 a charge 2 3 1000 fixed 10": {bucket.Op{Verb: bucket.Charge, N: 2},
			[]bucket.Bucket{fixedFloor}},
		"2 a b return 2 3 1 100 1000 1000 fixed 10 -1 70": {bucket.Op{Verb: bucket.Return, N: 2,
			Claims: []bucket.Claim{{Mark: -1}, {Mark: 70}}}, []bucket.Bucket{token, fixed}},
		"2 a b take 2 3 1 100 1000 ban 100 1000 2 1 0 1": {bucket.Op{Verb: bucket.Take, N: 2,
			Bans: bucket.LimitBans}, []bucket.Bucket{token, ban}},
		"2 a b take 2 3 1 100 1000 slots process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, slots}},
		"3 a b c take 2 3 1 100 1000 both 100 1000 0 1 1 process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, ban, slots}},
		"4 a b a:turns:3 b:turns:3 take 2 3 slots process 300 3 8 2 9, 3 8 2 9, 0": {
			bucket.Op{Verb: bucket.Take, N: 2, Waits: 300}, []bucket.Bucket{slots, slots}},
		"2 a b take 2 3 slots process 0 3 8 2 9, 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{slots, slots}},
		"2 a b take 2 3 both 100 1000 0 0 1 process 0 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{ban, slots}},
	} {
		g := merged(3, row.buckets...)
		g.Op, g.Attempt = row.op, bucket.Attempt{Number: 9, Ended: 8, Held: 2}
		for i := range row.buckets {
			g.Names[i] = dispatch.Name("abc"[i : i+1])
		}
		require.Equal(t, want, text(AppendGroup(nil, g, "process")))
		require.Equal(t, len(row.buckets) == 1 && row.buckets[0].Kind == bucket.Token, IsInteger([]*dispatch.Group{g}))
	}
}

// text returns arguments as Redis gets them.
func text(args []any) string {
	var words []string
	for _, arg := range args {
		words = append(words, fmt.Sprint(arg))
	}
	return strings.Join(words, " ")
}

// TestCalendarPeriodIsSentWithWhatIsLeftOfIt, by the application host's clock.
func TestCalendarPeriodIsSentWithWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newCalendar(700)
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, []any{"before", int64(500), "calendar", int64(10)}, appendBucket([]any{"before"}, &b))
	})
}
