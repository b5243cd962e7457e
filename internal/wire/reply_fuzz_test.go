package wire

import (
	"cmp"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// FuzzDecode reads any integers as the reply to a call: it is an error, or each bucket has a state that can be.
func FuzzDecode(f *testing.F) {
	for _, reply := range [][]int64{{}, {5}, {-1}, {bucket.MaxUnits}, {bucket.MaxUnits + 1}, {1, 2, 3}, {6, 9},
		{3, 0, 0, 7000, 1}, {7, 1, 2, 3, 4, 5}, {Whole, 7, 1, 2, 3, 4, 5}} {
		var text []byte
		for _, n := range reply {
			text = binary.BigEndian.AppendUint64(text, uint64(n))
		}
		for _, kinds := range []string{"t", "f", "s", "c", "tt", "tf", "fc", "tb", "bn", "tfscbn"} {
			f.Add(text, kinds)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, kinds string) {
		made := map[rune]bucket.Bucket{
			't': newBucket(bucket.Token), 'f': newBucket(bucket.FixedWindow), 's': newBucket(bucket.SlidingWindow),
			'c': newCalendar(500), 'b': bucket.NewBan(100, 1000), 'n': bucket.NewSlots(3),
		}
		var buckets []bucket.Bucket
		for _, kind := range kinds {
			if b, ok := made[kind]; ok {
				buckets = append(buckets, b)
			}
		}
		if len(buckets) == 0 || len(buckets) > 8 {
			return
		}
		var reply []int64
		for ; len(text) >= 8; text = text[8:] {
			reply = append(reply, int64(binary.BigEndian.Uint64(text)))
		}
		g := merged(1, buckets...)
		if cmp.Or(Decode([]*dispatch.Group{g}, For(g.Layout), reply, false), g.Err) != nil {
			return
		}
		require.Len(t, g.Found, len(buckets))
		for _, s := range g.Found {
			for _, n := range []int64{s.Level, s.More, s.Wait, s.Reset} {
				require.True(t, n >= 0 && n <= bucket.MaxUnits, "%v: %+v", reply, s)
			}
		}
	})
}
