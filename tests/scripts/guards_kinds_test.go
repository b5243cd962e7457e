package scripts_test

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// guardKind is limits that come together with a ban or slots, or none.
type guardKind struct {
	script int // of the limits alone
	limits []bucket.Bucket
}

// guardKinds are the limits of every script.
func guardKinds(now time.Time) map[string]guardKind {
	of := func(kind bucket.Kind, id string, rate, burst, period int64) bucket.Bucket {
		b, _ := bucket.New(kind, id, rate, burst, period)
		return b
	}
	calendar, _ := bucket.NewCalendar("calendar", 90, time.Hour.Milliseconds(), now.Add(10*time.Hour).UnixMilli())
	tokens := []bucket.Bucket{of(bucket.Token, "a", 3, 5, 100), of(bucket.Token, "b", 1000, 7, 30_000),
		of(bucket.Token, "c", 7, 9, 20)}
	fixed := []bucket.Bucket{of(bucket.FixedWindow, "a", 6, 6, 90), of(bucket.FixedWindow, "d", 9, 9, 400)}
	sliding := []bucket.Bucket{of(bucket.SlidingWindow, "a", 6, 6, 90), of(bucket.SlidingWindow, "e", 9, 9, 300)}
	return map[string]guardKind{
		"no limit":                {wire.BanOrSlots, nil},
		"token bucket":            {int(bucket.Token), tokens[:1]},
		"two token buckets":       {int(bucket.Token), tokens[:2]},
		"three token buckets":     {int(bucket.Token), tokens},
		"fixed window":            {int(bucket.FixedWindow), fixed[:1]},
		"two fixed windows":       {int(bucket.FixedWindow), fixed},
		"sliding window":          {int(bucket.SlidingWindow), sliding[:1]},
		"two sliding windows":     {int(bucket.SlidingWindow), sliding},
		"calendar":                {int(bucket.FixedWindow), []bucket.Bucket{calendar}},
		"token and calendar":      {wire.TokensCalendar, []bucket.Bucket{tokens[0], calendar}},
		"sliding and calendar":    {wire.Mixed, []bucket.Bucket{sliding[0], calendar}},
		"every kind":              {wire.Mixed, []bucket.Bucket{tokens[0], fixed[1], sliding[1], calendar}},
		"calendar between tokens": {wire.TokensCalendar, []bucket.Bucket{tokens[0], calendar, tokens[2]}},
	}
}

func limitKey(b *bucket.Bucket) string { return "{k}:" + b.ID }
