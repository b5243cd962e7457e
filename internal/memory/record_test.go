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
		if found := g.c.do(0, g.b, op); g.b.Fits(found, 1, n) == 1 {
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

// TestARecordLastsAsLongAsItsBucketDrains: what was given back may be of any call that still holds tokens.
func TestARecordLastsAsLongAsItsBucketDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, b := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 100, 100*time.Second)
		c.do(0, b, take(20))
		c.do(0, b, take(60))
		claim := b.NewClaim(20*b.Cost, 60*b.Cost, (20 * time.Second).Nanoseconds(), 0)
		claim.Made = 20_000
		time.Sleep(time.Second)
		c.do(0, b, bucket.Op{Verb: bucket.Give, N: 12, Records: bucket.WithRecords})
		c.do(0, b, take(20))
		time.Sleep(19 * time.Second)
		c.do(0, b, bucket.Op{Verb: bucket.Return, N: 60, Claims: []bucket.Claim{claim}, Records: bucket.WithRecords})
		require.InDelta(t, 20*b.Cost, c.do(0, b, bucket.Peek(1)).Level, float64(b.Cost/10))
	})
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

// TestALogEqualsAPlainList whatever is added, expires, is merged and given back, at the end or of a time. In a merged
// log, what was taken at a time is in the entry into which that entry was merged.
func TestALogEqualsAPlainList(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r, now := rand.New(rand.NewPCG(seed, 3)), int64(0)
		l, list := &log{entries: make([]logEntry, 0, 2)}, []logEntry{}
		remove := func(i int, tokens int64) int64 {
			some := min(tokens, list[i].tokens)
			if list[i].tokens -= some; list[i].tokens == 0 {
				list = slices.Delete(list, i, i+1)
			}
			return some
		}
		for range 300 {
			tokens, given, want := 1+r.Int64N(9), int64(0), int64(0)
			switch x := r.IntN(100); {
			case x < 60:
				now += 1 + r.Int64N(3)
				l.add(logEntry{now, tokens})
				list = append(list, logEntry{now, tokens})
			case x < 62:
				gone := r.IntN(len(list) + 1)
				l.expired, list = l.expired+gone, list[gone:]
			case x < 63:
				l.merge()
				for i := 1; i < len(list); i++ {
					list[i].tokens += list[i-1].tokens
					list = slices.Delete(list, i-1, i)
				}
			case x < 80:
				given = l.removeLast(tokens)
				for want < tokens && len(list) > 0 {
					want += remove(len(list)-1, tokens-want)
				}
			default:
				at := now + 1 - r.Int64N(50)
				given = l.removeAt(tokens, at)
				i := slices.IndexFunc(list, func(e logEntry) bool { return e.at == at || e.at > at && l.merged })
				if i >= 0 {
					want = remove(i, tokens)
				}
			}
			require.Equal(t, want, given, "seed %d", seed)
			require.Equal(t, list, l.live(), "seed %d", seed)
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
					require.Equal(t, left, found.More)
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
