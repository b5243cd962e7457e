package dispatch

import (
	"encoding"
	"fmt"
	"hash/maphash"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

func newBuckets(t testing.TB, kind bucket.Kind, bursts ...int64) []bucket.Bucket {
	t.Helper()
	var all []bucket.Bucket
	for i, burst := range bursts {
		b, ok := bucket.New(kind, fmt.Sprint(kind, i), burst, burst, int64(1+i)*time.Hour.Milliseconds())
		require.True(t, ok)
		all = append(all, b)
	}
	return all
}

var seed = maphash.MakeSeed()

// newCall returns a call as a limiter and a store make it.
func newCall(key string, op bucket.Op, buckets []bucket.Bucket) *Call {
	c := NewCall()
	fill(c, key, op, buckets)
	return c
}

func fill(c *Call, key string, op bucket.Op, buckets []bucket.Bucket) {
	c.Reset(op, buckets)
	c.Key = append(c.Key, key...)
	c.Hash = maphash.Bytes(seed, c.Key)
	for i := range c.Names {
		c.Names[i] = append(append(c.Names[i][:0], "name of "...), key...)
	}
}

func take(charges, n int64) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: charges, N: n} }

// outcome is what a caller makes of the states found.
func outcome(c *Call) string {
	granted := c.Op.Charges
	for i := range c.Buckets {
		granted = c.Buckets[i].Fit(c.States[i].Level, granted, max(1, c.Op.N))
	}
	text := fmt.Sprintf("%s %+v: %d granted", c.Key, c.Op, granted)
	for i := range c.Buckets {
		b, s := &c.Buckets[i], c.States[i]
		if granted > 0 {
			s = b.Charged(s, granted, c.Op.N)
		}
		text += fmt.Sprintf(", %d left, more in %d, full in %d", b.Remaining(s.Level), b.MoreAfter(s), b.ResetAfter(s))
		if granted < c.Op.Charges {
			text += fmt.Sprintf(", retry in %d", b.RetryAfter(s, c.Op.N))
		}
	}
	return text
}

// TestNamesAreWrittenAsTheyAre: by the interfaces by which go-redis writes them and finds their
// slot.
func TestNamesAreWrittenAsTheyAre(t *testing.T) {
	name := Name("ginlimit:{client 1}:second")
	text, err := encoding.BinaryMarshaler(&name).MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, "ginlimit:{client 1}:second", string(text))
	require.Equal(t, "ginlimit:{client 1}:second", fmt.Stringer(&name).String())
}
