package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestScriptOfBuckets depends on the kinds of limits, and on whether a ban or slots come with them.
func TestScriptOfBuckets(t *testing.T) {
	t.Parallel()
	token, fixed, sliding := newBucket(bucket.Token), newBucket(bucket.FixedWindow), newBucket(bucket.SlidingWindow)
	calendar, ban, slots := newCalendar(500), bucket.NewBan(100, 1000), bucket.NewSlots(3)
	for name, row := range map[string]struct {
		want    int
		buckets []bucket.Bucket
	}{
		"a token bucket":        {Tokens, []bucket.Bucket{token}},
		"two token buckets":     {Tokens, []bucket.Bucket{token, token}},
		"a fixed window":        {Fixed, []bucket.Bucket{fixed}},
		"a period":              {Fixed, []bucket.Bucket{calendar}},
		"a period and a window": {Fixed, []bucket.Bucket{calendar, fixed}},
		"a sliding window":      {Sliding, []bucket.Bucket{sliding}},
		"a bucket and a period": {TokensCalendar, []bucket.Bucket{token, calendar}},
		"a period between":      {TokensCalendar, []bucket.Bucket{token, calendar, token}},
		"a bucket and a window": {Mixed, []bucket.Bucket{token, fixed}},
		"both windows":          {Mixed, []bucket.Bucket{fixed, sliding}},
		"a log and a period":    {Mixed, []bucket.Bucket{sliding, calendar}},
		"all":                   {Mixed, []bucket.Bucket{token, calendar, fixed, sliding}},
		"a bucket and slots":    {WithBanOrSlots + Tokens, []bucket.Bucket{token, slots}},
		"a log and a ban":       {WithBanOrSlots + Sliding, []bucket.Bucket{sliding, ban}},
		"all, a ban and slots": {WithBanOrSlots + Mixed,
			[]bucket.Bucket{token, calendar, fixed, sliding, ban, slots}},
		"slots":                   {BanOrSlots, []bucket.Bucket{slots}},
		"a ban and slots":         {BanOrSlots, []bucket.Bucket{ban, slots}},
		"a period, tokens, a ban": {WithBanOrSlots + TokensCalendar, []bucket.Bucket{calendar, token, ban}},
	} {
		require.Equal(t, row.want, For(row.buckets), name)
		require.Equal(t, len(row.buckets) == 1 && row.want < Single, TakesEach(row.buckets), name)
	}
}
