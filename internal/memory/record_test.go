package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// charged is a charge of a trace, and what was given back of it.
type charged struct {
	at    time.Time
	level int64 // before
	units int64
	back  int64
}

// giveBackTrace charges a bucket at random, gives back some charges late and in any order, refunds,
// and resets.
type giveBackTrace struct {
	r       *rand.Rand
	c       *clients
	b       bucket.Bucket
	charges []charged
	given   int64 // by refunds by hand
}

// net is the excess over burst + rate × time in any span until now. It leaves out what was given
// back of these charges and what was refunded by hand.
func (g *giveBackTrace) net() (most int64) {
	now, net := time.Now(), int64(0)
	for i := len(g.charges) - 1; i >= 0; i-- {
		one := g.charges[i]
		net += one.units - max(0, one.back)
		most = max(most, net-g.given-g.b.Capacity-g.b.Drain*now.Sub(one.at).Milliseconds())
	}
	return most
}

func (g *giveBackTrace) step(t *testing.T) {
	level := g.c.do(0, g.b, bucket.Peek(1)).Level
	switch x := g.r.IntN(100); {
	case x < 55:
		n := 1 + g.r.Int64N(g.b.Burst)
		if g.r.IntN(3) > 0 {
			n = 1 + n/4
		}
		op := bucket.Op{Verb: bucket.Take, Charges: 1, N: n}
		if found := g.c.do(0, g.b, op); g.b.Fit(found.Level, 1, n) == 1 {
			g.charges = append(g.charges, charged{time.Now(), found.Level, n * g.b.Cost, 0})
		}
	case x < 90 && len(g.charges) > 0:
		one := &g.charges[len(g.charges)-1-g.r.IntN(min(len(g.charges), 12))]
		if one.back != 0 {
			return
		}
		n := 1 + g.r.Int64N(one.units/g.b.Cost)
		claim := g.b.NewClaim(one.level, one.units, time.Since(one.at).Nanoseconds(), 0)
		claim.Made = time.Since(one.at).Milliseconds()
		g.c.do(0, g.b, bucket.Op{Verb: bucket.Return, N: n, Claims: []bucket.Claim{claim}, Records: bucket.WithRecords})
		one.back = level - g.c.do(0, g.b, bucket.Peek(1)).Level
		require.GreaterOrEqual(t, one.back, int64(0))
		require.LessOrEqual(t, one.back, n*g.b.Cost)
		if one.back == 0 {
			one.back = -1 // once
		}
	case x < 96:
		g.c.do(0, g.b, bucket.Op{Verb: bucket.Give, N: 1 + g.r.Int64N(g.b.Burst), Records: bucket.WithRecords})
		g.given += level - g.c.do(0, g.b, bucket.Peek(1)).Level
	case x < 98:
		time.Sleep(time.Millisecond)
		g.c.do(0, g.b, bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords})
		g.charges, g.given = nil, 0 // a new record
		time.Sleep(time.Millisecond)
	}
}

// TestNothingIsGivenBackTwice: whatever is given back, when and in which order, no span of time
// keeps more than burst + rate × time, apart from the difference of clocks.
func TestNothingIsGivenBackTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				rate := []int64{1, 7, 10, 100, 1000, 60_000}[r.IntN(6)]
				burst := []int64{1, 5, rate, 2 * rate, 100}[r.IntN(5)]
				b, ok := bucket.New(bucket.Token, "b", rate, burst, []int64{1000, 60_000, 3_600_000}[r.IntN(3)])
				require.True(t, ok)
				g := &giveBackTrace{r: r, c: clientsOf(New(MaxBuckets)), b: b}
				pause := float64(b.FillTime()) / []float64{2, 20, 200}[r.IntN(3)]
				for range 400 {
					if r.IntN(4) > 0 {
						time.Sleep(time.Duration(r.Float64()*pause) * time.Millisecond)
					}
					g.step(t)
					slack := max(b.Cost/100, 4*b.Drain+b.Drain*b.FillTime()/500)
					require.LessOrEqual(t, g.net(), slack, "%+v", b)
				}
			})
		})
	}
}

// TestRecordsAreBounded: beyond the bound they merge, and nothing is given back twice because of that.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients = 1500
		c, b := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 1000, 1000*time.Second)
		for range 2 * bucket.RecordSpans {
			for i := range clients {
				c.take(i, b)
				c.do(i, b, bucket.Op{Verb: bucket.Give, N: 1, Records: bucket.WithRecords})
				c.take(i, b)
			}
			time.Sleep(2000 * time.Second / bucket.RecordSpans)
			require.LessOrEqual(t, c.recorded, maxRecords/shards)
		}
		room := 0
		for _, e := range c.buckets {
			room += e.record.room()
		}
		require.Equal(t, room, c.recorded)
	})
}

// TestMergedEntriesHaveAllTokensOfBoth, at the later time. An odd entry stays, and expired entries
// stay apart.
func TestMergedEntriesHaveAllTokensOfBoth(t *testing.T) {
	t.Parallel()
	entries := []logEntry{{10, 1}, {20, 2}, {30, 4}, {40, 8}, {50, 16}}
	for n, want := range [][]logEntry{
		1: {{10, 1}},
		2: {{20, 3}},
		3: {{20, 3}, {30, 4}},
		4: {{20, 3}, {40, 12}},
		5: {{20, 3}, {40, 12}, {50, 16}},
	} {
		for _, gone := range []int{0, 1, 3} {
			if n == 0 {
				continue
			}
			l := &log{entries: slices.Concat(make([]logEntry, gone), entries[:n]), expired: gone}
			require.Equal(t, want, l.merge(), "%d, %d gone", n, gone)
			require.Equal(t, want, l.live())
			require.Len(t, l.entries, gone+len(want))
		}
	}
}

// TestALogHasWhatWasAdded, whether it grows, shrinks, or reuses the room of expired entries.
func TestALogHasWhatWasAdded(t *testing.T) {
	t.Parallel()
	for _, room := range []int{2, 16, 100} {
		for gone := range room + 1 {
			t.Run(fmt.Sprintf("%d of %d gone", gone, room), func(t *testing.T) {
				t.Parallel()
				l := &log{entries: make([]logEntry, 0, room)}
				var want []logEntry
				for i := range int64(3 * room) {
					if i == int64(room) {
						l.expired, want = gone, want[gone:]
					}
					want = append(want, logEntry{i, 1 + i%3})
					l.add(want[len(want)-1])
					require.Equal(t, want, l.live())
				}
			})
		}
	}
}

// TestALogShrinks when most of its entries have expired.
func TestALogShrinks(t *testing.T) {
	t.Parallel()
	l := &log{entries: make([]logEntry, 1024), expired: 1020}
	l.add(logEntry{1, 1})
	require.Len(t, l.live(), 5)
	require.Less(t, cap(l.entries), 64)
}

// TestGivingBackToALog takes tokens from the newest entries or from the entry of a time. In a
// merged log, it takes them from the entry into which that entry was merged.
func TestGivingBackToALog(t *testing.T) {
	t.Parallel()
	const last = -1 // instead of a time
	for name, row := range map[string]struct {
		tokens, at int64
		merged     bool
		given      int64
		left       []logEntry // of 3 tokens at 20, 5 at 30 and 7 at 40
	}{
		"some of the newest":          {2, last, false, 2, []logEntry{{20, 3}, {30, 5}, {40, 5}}},
		"all of the newest":           {7, last, false, 7, []logEntry{{20, 3}, {30, 5}}},
		"more than the newest has":    {9, last, false, 9, []logEntry{{20, 3}, {30, 3}}},
		"all":                         {15, last, false, 15, []logEntry{}},
		"more than there are":         {16, last, false, 15, []logEntry{}},
		"some of a time":              {2, 30, false, 2, []logEntry{{20, 3}, {30, 3}, {40, 7}}},
		"all of a time":               {5, 30, false, 5, []logEntry{{20, 3}, {40, 7}}},
		"more than of a time":         {6, 30, false, 5, []logEntry{{20, 3}, {40, 7}}},
		"of the oldest":               {1, 20, false, 1, []logEntry{{20, 2}, {30, 5}, {40, 7}}},
		"of a time that has none":     {1, 25, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one that has left":        {1, 10, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one after the newest":     {1, 41, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one that was merged":      {1, 25, true, 1, []logEntry{{20, 3}, {30, 4}, {40, 7}}},
		"of the time of a merged one": {1, 30, true, 1, []logEntry{{20, 3}, {30, 4}, {40, 7}}},
		"after the newest merged one": {1, 41, true, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &log{entries: []logEntry{{10, 9}, {20, 3}, {30, 5}, {40, 7}}, expired: 1, merged: row.merged}
			given := int64(0)
			if row.at == last {
				given = l.removeLast(row.tokens)
			} else {
				given = l.removeAt(row.tokens, row.at)
			}
			require.Equal(t, row.given, given)
			require.Equal(t, row.left, l.live())
		})
	}
}

// TestTheLongestLogIsMerged of the sample, without its expired entries.
func TestTheLongestLogIsMerged(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		now  int64
		left []logEntry // of a token each at 10, 20 … 60, for 100 ms
	}{
		"nothing has left":     {0, []logEntry{{20, 2}, {40, 2}, {60, 2}}},
		"some have left":       {120, []logEntry{{40, 2}, {60, 2}}},
		"an odd one stays":     {110, []logEntry{{30, 2}, {50, 2}, {60, 1}}},
		"one is not logged":    {150, nil},
		"two are one then":     {140, nil},
		"all have left":        {160, nil},
		"all left long before": {1000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 { // in any order
				s := &shard{buckets: map[id]*entry{}}
				add := func(key string, w *entry) *entry {
					s.buckets[id{key: key}] = w
					s.logged += w.log.room()
					return w
				}
				for i := range sample - 2 {
					add(fmt.Sprint("short ", i), &entry{full: 1 << 40, value: 2,
						log: &log{entries: []logEntry{{1 << 39, 1}, {1 << 39, 1}}}})
				}
				add("without a log", &entry{full: 1 << 40, value: 1})
				long := &log{}
				for at := int64(10); at <= 60; at += 10 {
					long.entries = append(long.entries, logEntry{at, 1})
				}
				w := add("long", &entry{full: 160, value: 6, log: long})
				s.shrinkLogLocked(row.now)
				require.Equal(t, max(0, 6-max(0, row.now/10-10)), w.value)
				room := (sample - 2) * (2 + logRoom)
				if row.left == nil {
					require.Nil(t, w.log)
				} else {
					require.Equal(t, row.left, w.log.live())
					room += len(row.left) + logRoom
				}
				require.Equal(t, room, s.logged)
			}
		})
	}
}

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
