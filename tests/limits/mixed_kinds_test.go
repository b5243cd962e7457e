package limits_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// mixedLimit is one limit of a call on limits of different algorithms.
type mixedLimit struct {
	kind  bucket.Kind
	limit ginlimit.Limit
	model *calendarModel
}

// bucket returns the limit as its store knows it.
func (l *mixedLimit) bucket(id string) bucket.Bucket {
	rate := int64(l.limit.Rate)
	if (l.limit.Calendar != ginlimit.Calendar{}) {
		start, end := traceCalendars().oracles[l.limit.Calendar].Period(time.Now())
		b, _ := bucket.NewCalendar(id, rate, end.Sub(start).Milliseconds(), end.UnixMilli())
		return b
	}
	b, _ := bucket.New(l.kind, id, rate, testkit.Burst(l.limit), l.limit.Period.Milliseconds())
	return b
}

// mixedSets are limits of different algorithms, which are decided in one call.
func mixedSets(scale time.Duration) (sets [][]*mixedLimit) {
	algorithms := map[bucket.Kind]ginlimit.Algorithm{
		bucket.Token: ginlimit.TokenBucket, bucket.FixedWindow: ginlimit.FixedWindow,
		bucket.SlidingWindow: ginlimit.SlidingWindow,
	}
	of := func(kind bucket.Kind, rate int, period time.Duration) *mixedLimit {
		return &mixedLimit{kind, ginlimit.Limit{Rate: rate, Period: period * scale}, newCalendarModel(algorithms[kind])}
	}
	day := func(rate int) *mixedLimit {
		return &mixedLimit{bucket.FixedWindow, ginlimit.PerCalendar(rate, traceCalendars().day),
			newCalendarModel(ginlimit.FixedWindow)}
	}
	return [][]*mixedLimit{
		{of(bucket.Token, 3, 40), of(bucket.SlidingWindow, 9, 150)},
		{of(bucket.FixedWindow, 4, 50), of(bucket.Token, 11, 190)},
		{of(bucket.SlidingWindow, 4, 30), of(bucket.FixedWindow, 10, 170)},
		{of(bucket.Token, 5, 60), of(bucket.SlidingWindow, 8, 90), of(bucket.FixedWindow, 30, 700), day(600)},
		{day(500), of(bucket.FixedWindow, 9, 110), of(bucket.SlidingWindow, 9, 130)},
		{of(bucket.SlidingWindow, 5, 30), day(400), of(bucket.Token, 20, 900), of(bucket.SlidingWindow, 40, 1700)},
	}
}

// mixedDo has a store do what an Op says.
type mixedDo func(key string, buckets []bucket.Bucket, op bucket.Op) ([]bucket.State, error)

// mixedRedis returns what a store in Redis does.
func mixedRedis(t *testing.T, rdb redis.UniversalClient) mixedDo {
	store := redisstore.New(rdb, redisstore.Config{
		Timeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler), Process: "P1", Scripts: testkit.Scripts(t),
	})
	t.Cleanup(store.Close)
	return func(key string, buckets []bucket.Bucket, op bucket.Op) ([]bucket.State, error) {
		c := dispatch.NewCall()
		c.Reset(op, buckets)
		c.Key = append(c.Key, key...)
		err := store.Do(t.Context(), c)
		return slices.Clone(c.States), err
	}
}

// mixedMemory returns what the local store does.
func mixedMemory() mixedDo {
	store := memory.New(memory.MaxBuckets)
	return func(key string, buckets []bucket.Bucket, op bucket.Op) ([]bucket.State, error) {
		states := make([]bucket.State, len(buckets))
		store.Do([]byte(key), buckets, op, states)
		return states, nil
	}
}

// followMixed makes steps on a store and on the model, which must agree at each: to the
// millisecond, unless time goes on by itself.
func followMixed(t *testing.T, seed uint64, steps int, do mixedDo, scale, slack time.Duration,
	advance func(time.Duration)) {
	r, sets := rand.New(rand.NewPCG(seed, 3)), mixedSets(scale)
	granted, denied := 0, 0
	for step := range steps {
		number := r.IntN(len(sets))
		set, key := sets[number], fmt.Sprintf("client of %d", number)
		if slack == 0 {
			wait := []time.Duration{0, 0, 1, time.Duration(r.IntN(20)), time.Duration(r.IntN(200))}[r.IntN(5)] * time.Millisecond
			advance(wait)
			for _, set := range sets {
				for _, l := range set {
					l.model.Advance(wait)
				}
			}
		}
		var buckets []bucket.Bucket
		for i, l := range set {
			buckets = append(buckets, l.bucket(fmt.Sprint("limit ", i)))
		}
		op := bucket.Op{N: 1 + r.Int64N(4)}
		switch x := r.IntN(100); {
		case x < 45:
			op.Charges = 1
		case x < 60:
			op.Charges, op.N = 1+r.Int64N(6), 1
		case x < 80: // a look
		case x < 88:
			op.Verb = bucket.Give
		case x < 94:
			op.Verb = bucket.Charge
		case x < 98:
			op.Verb, op.N = bucket.Block, 1+r.Int64N(30*int64(scale/time.Millisecond))
		default:
			op.Verb, op.N = bucket.Reset, 1
		}
		what := fmt.Sprintf("seed %d, step %d at %s: %+v of %d", seed, step, time.Now(), op, number)
		states, err := do(key, buckets, op)
		require.NoError(t, err, what)
		if op.Verb != bucket.Take {
			for _, l := range set {
				change := []ginlimit.Limit{l.limit}
				switch op.Verb {
				case bucket.Give:
					l.model.Refund(key, op.N, change)
				case bucket.Charge:
					l.model.charge(key, op.N, change)
				case bucket.Block:
					l.model.Block(key, testkit.Millis(op.N), change)
				case bucket.Reset:
					l.model.Reset(key, change)
				}
			}
			continue
		}
		charges, fits := op.Charges, op.Charges
		for i, l := range set {
			charges = min(charges, int64(l.model.one(key, 0, 1, l.limit).Remaining)/op.N)
			fits = buckets[i].Fit(states[i].Level, fits, op.N)
		}
		require.Equal(t, charges, fits, what)
		granted += int(charges)
		if charges < op.Charges {
			denied++
		}
		for i, l := range set {
			b, s := &buckets[i], states[i]
			look := l.model.one(key, 0, 1, l.limit)
			require.EqualValues(t, look.Remaining, b.Remaining(s.Level), "%s: limit %d, %+v", what, i, s)
			require.InDelta(t, look.ResetAfter, testkit.Millis(b.ResetAfter(s)), float64(slack), "%s: limit %d, %+v", what, i, s)
			if charges > 0 {
				l.model.one(key, charges*op.N, charges*op.N, l.limit)
				s = b.Charged(s, charges, op.N)
			} else {
				wait := l.model.one(key, 0, op.N, l.limit).RetryAfter
				if after := b.RetryAfter(s, op.N); after == bucket.Never {
					require.EqualValues(t, -1, wait, what)
				} else {
					require.InDelta(t, wait, testkit.Millis(after), float64(slack), "%s: limit %d, %+v", what, i, s)
				}
			}
			look = l.model.one(key, 0, 1, l.limit)
			require.EqualValues(t, look.Remaining, b.Remaining(s.Level), "%s: limit %d, %+v", what, i, s)
			require.InDelta(t, look.ResetAfter, testkit.Millis(b.ResetAfter(s)), float64(slack), "%s: limit %d, %+v", what, i, s)
		}
	}
	require.Positive(t, granted)
	require.Positive(t, denied)
}

// TestLimitsOfDifferentAlgorithmsInOneCallEqualTheModel in Redis and in the process: all are charged or none.
func TestLimitsOfDifferentAlgorithmsInOneCallEqualTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				b.Mini.SetTime(time.Now())
				followMixed(t, seed, testkit.Steps(800), mixedRedis(t, b.Redis), time.Millisecond, 0, func(d time.Duration) {
					time.Sleep(d)
					b.Mini.SetTime(time.Now())
				})
			})
			synctest.Test(t, func(t *testing.T) {
				followMixed(t, seed, testkit.Steps(3000), mixedMemory(), time.Millisecond, 0, time.Sleep)
			})
		})
	}
}
