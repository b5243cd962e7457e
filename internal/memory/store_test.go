package memory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	bucketsOfShard = MaxBuckets / shards
	roomOfShard    = maxLogs / shards
)

// newBucket returns a bucket of a limit that can be counted.
func newBucket(t testing.TB, kind bucket.Kind, rate int64, period time.Duration) bucket.Bucket {
	b, ok := bucket.New(kind, fmt.Sprint(kind, period), rate, rate, period.Milliseconds())
	require.True(t, ok)
	return b
}

// clients are keys in one shard of a store, so that a test need not fill all shards.
type clients struct {
	*shard
	store *Store
	keys  [][]byte
	tried int
}

func clientsOf(s *Store) *clients { return &clients{shard: s.shard([]byte("client")), store: s} }

func (c *clients) key(i int) []byte {
	for ; len(c.keys) <= i; c.tried++ {
		if key := fmt.Appendf(nil, "client %d", c.tried); c.store.shard(key) == c.shard {
			c.keys = append(c.keys, key)
		}
	}
	return c.keys[i]
}

// do does an Op on one bucket of a client, and returns the state found.
func (c *clients) do(i int, b bucket.Bucket, op bucket.Op) bucket.State {
	states := []bucket.State{{Level: 1, More: 2, Wait: 3, Reset: 4, Mark: 5}} // of another call
	c.store.Do(c.key(i), []bucket.Bucket{b}, op, states)
	return states[0]
}

func take(n int64) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: 1, N: n} }

// take takes a token of a client if there is one.
func (c *clients) take(i int, b bucket.Bucket) (found bucket.State, taken bool) {
	found = c.do(i, b, take(1))
	return found, b.Fits(found, 1, 1) == 1
}

// room returns the room of all logs, and checks the shard's count.
func (c *clients) room(t testing.TB) int {
	total := 0
	for _, e := range c.buckets {
		if e.log != nil {
			total += cap(e.log.entries) + logRoom // a short one takes room too
		}
	}
	require.Equal(t, total, c.logged)
	return total
}

// TestMemoryOfWindowsIsBounded has more log entries, and then more windows, than there is room for.
func TestMemoryOfWindowsIsBounded(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]bucket.Kind{"fixed": bucket.FixedWindow, "sliding": bucket.SlidingWindow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, c := newBucket(t, kind, 1<<20, 24*time.Hour), clientsOf(New(MaxBuckets))
				for i := range roomOfShard * 3 / 2 {
					if i%8 == 0 {
						time.Sleep(time.Millisecond) // so that each has its own entry
					}
					_, taken := c.take(i%8, b)
					require.True(t, taken)
				}
				require.Len(t, c.buckets, 8)
				if kind == bucket.SlidingWindow {
					require.LessOrEqual(t, c.room(t), roomOfShard)
					require.Greater(t, c.room(t), roomOfShard/4)
				} else {
					require.Zero(t, c.room(t))
				}
				for i := range bucketsOfShard * 5 / 4 {
					c.take(8+i, b)
				}
				require.LessOrEqual(t, len(c.buckets), bucketsOfShard)
				require.Greater(t, len(c.buckets), bucketsOfShard/2)
				require.Equal(t, len(c.buckets), c.store.Len())
				c.take(0, b) // no lock is held
				require.LessOrEqual(t, c.room(t), roomOfShard)
			})
		})
	}
}

// TestLongLogsForgetNobodyElse: clients with long logs cost neither blocks nor counters of others.
func TestLongLogsForgetNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, c := newBucket(t, bucket.SlidingWindow, 1<<20, time.Hour), clientsOf(New(MaxBuckets))
		for i := range 1000 {
			c.do(10+i, b, bucket.Op{Verb: bucket.Block, N: time.Minute.Milliseconds()})
			c.take(1010+i, b)
		}
		for i := range 45_000 {
			if i%10 == 0 {
				time.Sleep(time.Millisecond)
			}
			c.take(i%10, b)
		}
		require.LessOrEqual(t, c.room(t), roomOfShard)
		for i := range 1000 {
			blocked := c.do(10+i, b, bucket.Peek(1))
			require.Zero(t, b.Fits(blocked, 1, 1))
			require.EqualValues(t, 1, c.do(1010+i, b, bucket.Peek(1)).Level)
		}
	})
}

// TestCrowdedLogsAdmitNoMore has more entries than there is room for, and some tokens given back.
func TestCrowdedLogsAdmitNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, rate, period = 8, roomOfShard / 4, 10 * time.Second
		b, c, r := newBucket(t, bucket.SlidingWindow, rate, period), clientsOf(New(MaxBuckets)),
			rand.New(rand.NewPCG(3, 3))
		var admitted [n][]time.Time
		most := 0
		for range 15_000 {
			for i := range n {
				found, taken := c.take(i, b)
				switch {
				case !taken:
				case r.IntN(4) == 0:
					c.do(i, b, bucket.Op{Verb: bucket.Return, N: 1, Claims: []bucket.Claim{{Mark: found.Mark}}})
				default:
					admitted[i] = append(admitted[i], time.Now())
				}
			}
			most = max(most, c.room(t))
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, most, roomOfShard)
		require.Greater(t, most, roomOfShard/2)
		for _, all := range admitted {
			require.Greater(t, len(all), rate)
			for i := rate; i < len(all); i++ {
				require.GreaterOrEqual(t, all[i].Sub(all[i-rate]), period)
			}
		}
	})
}

// TestRoomOfLogsIsKnown does everything in any order to a few windows, whose logs grow, shrink,
// merge and end.
func TestRoomOfLogsIsKnown(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := New(shards * 6) // so that windows are forgotten too
				c, r := clientsOf(store), rand.New(rand.NewPCG(seed, 1))
				two := []bucket.Bucket{newBucket(t, bucket.SlidingWindow, 300, time.Second),
					newBucket(t, bucket.SlidingWindow, 900, time.Minute)}
				var marks [8][]bucket.Claim
				longest := 0
				for range 15_000 {
					client, states, op := r.IntN(8), make([]bucket.State, 2), bucket.Op{N: 1 + r.Int64N(3)}
					if r.IntN(3) > 0 {
						client = 0
					}
					switch x := r.IntN(1000); {
					case x < 700:
						op.Verb, op.Charges = bucket.Take, 1+r.Int64N(2)
					case x < 900 && marks[client] != nil:
						op.Verb, op.Claims = bucket.Return, marks[client]
					case x < 980:
						op.Verb = bucket.Give
					case x < 985:
						op.Verb, op.N = bucket.Block, 1+r.Int64N(100)
					case x == 999:
						op.Verb = bucket.Reset
					default: // it looks
					}
					store.Do(c.key(client), two, op, states)
					if op.Verb == bucket.Take {
						marks[client] = []bucket.Claim{{Mark: states[0].Mark}, {Mark: states[1].Mark}}
					}
					longest = max(longest, c.room(t))
					require.LessOrEqual(t, len(c.buckets), 6+len(two))
					if r.IntN(5) == 0 {
						time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
					}
					if r.IntN(5000) == 0 {
						time.Sleep(time.Minute)
					}
				}
				require.Greater(t, longest, 100)
			})
		})
	}
}

// TestOneLogIsBounded takes from one window, in each millisecond, more often than its log has
// entries.
func TestOneLogIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, c := newBucket(t, bucket.SlidingWindow, 3*maxLog, time.Hour), clientsOf(New(MaxBuckets))
		for taken := range int64(3 * maxLog) {
			found, ok := c.take(0, b)
			require.True(t, ok)
			require.Equal(t, taken, found.Level)
			require.LessOrEqual(t, c.room(t), maxLog+logRoom)
			require.Equal(t, taken == 0, c.room(t) == 0, "one entry needs no log")
			time.Sleep(time.Millisecond)
		}
		_, ok := c.take(0, b)
		require.False(t, ok)
		time.Sleep(time.Hour)
		require.Zero(t, c.do(0, b, bucket.Peek(1)).Level, "merged entries leave too")
		require.Empty(t, c.buckets)
		require.Zero(t, c.room(t))
	})
}

// TestForgetsWhatIsFullSoonest has more buckets than there is room for. It keeps those that take
// longest to be full.
func TestForgetsWhatIsFullSoonest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, c := newBucket(t, bucket.Token, 1000, 1000*time.Second), clientsOf(New(shards*256))
		for i := range 32 {
			c.do(i, b, bucket.Op{Verb: bucket.Take, Charges: 1, N: 1000})
			c.do(32+i, b, bucket.Op{Verb: bucket.Block, N: 2_000_000})
		}
		for i := range 1000 {
			c.take(64+i, b)
			require.LessOrEqual(t, len(c.buckets), 256)
		}
		require.Len(t, c.buckets, 256)
		kept := 0
		for i := range 64 {
			if c.do(i, b, bucket.Peek(1)).Level > 0 {
				kept++
			}
		}
		require.Greater(t, kept, 40, "of 64, if any was forgotten as likely, 3 would be left")
		time.Sleep(2 * time.Second) // buckets with one token taken are full, and make room
		for i := range 150 {
			c.take(2000+i, b)
		}
		require.Less(t, len(c.buckets), 256)
	})
}

// TestBucketsOfTheRequestAreNotForgotten has room for fewer buckets than one request has.
func TestBucketsOfTheRequestAreNotForgotten(t *testing.T) {
	t.Parallel()
	for _, kind := range []bucket.Kind{bucket.Token, bucket.FixedWindow, bucket.SlidingWindow} {
		store, states := New(1), make([]bucket.State, 4)
		var four []bucket.Bucket
		for i := range states {
			four = append(four, newBucket(t, kind, 10, time.Duration(1+i)*time.Hour))
		}
		for taken := range int64(3) {
			for range 2 { // twice, as a peek must not change it either
				store.Do([]byte("k"), four, bucket.Peek(1), states)
			}
			for i := range states {
				require.InDelta(t, taken*four[i].Cost, states[i].Level, float64(four[i].Drain)*1000)
			}
			store.Do([]byte("k"), four, bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}, states)
		}
	}
}

// TestReturnToAMergedLog: a token is found though its entry was merged, unless it has expired.
func TestReturnToAMergedLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const period = time.Minute
		b, c := newBucket(t, bucket.SlidingWindow, 10*maxLog, period), clientsOf(New(MaxBuckets))
		var marks []int64
		start := time.Now()
		for range maxLog + 1 {
			found, _ := c.take(0, b)
			marks = append(marks, found.Mark)
			time.Sleep(time.Millisecond)
		}
		back := func(i int) int64 {
			before := c.do(0, b, bucket.Peek(1)).Level
			c.do(0, b, bucket.Op{Verb: bucket.Return, N: 1, Claims: []bucket.Claim{{Mark: marks[i]}}})
			c.room(t)
			return before - c.do(0, b, bucket.Peek(1)).Level
		}
		require.EqualValues(t, 1, back(100))
		require.EqualValues(t, 1, back(101), "both are in one entry")
		require.EqualValues(t, 1, back(maxLog))

		time.Sleep(period + time.Second - time.Since(start))
		require.EqualValues(t, maxLog-1000, c.do(0, b, bucket.Peek(1)).Level, "the first second's tokens are gone")
		require.Zero(t, back(10), "others have taken what is left")
		require.Zero(t, back(1000))
		require.EqualValues(t, 1, back(1001))
	})
}

// TestBoundsAreAsDocumented: the number of buckets, and the number of entries of a sliding window.
func TestBoundsAreAsDocumented(t *testing.T) {
	t.Parallel()
	for document, text := range map[string]string{
		"reference.md": "counts in this process, with up to 262,144 buckets",
		"guide.md":     "keeps 8,192 entries of a client exactly",
	} {
		all, err := os.ReadFile("../../docs/" + document)
		require.NoError(t, err)
		require.Contains(t, string(all), text)
	}
	require.Equal(t, 262_144, MaxBuckets)
	require.Equal(t, 8192, maxLog)
}

// TestAnEmptyWindowIsNotKept unless it is blocked. The rest of windows is held against the scripts, in
// tests/scripts, and against their model, in tests/limits.
func TestAnEmptyWindowIsNotKept(t *testing.T) {
	t.Parallel()
	for _, kind := range []bucket.Kind{bucket.FixedWindow, bucket.SlidingWindow} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, b := clientsOf(New(MaxBuckets)), newBucket(t, kind, 5, time.Second)
				give := bucket.Op{Verb: bucket.Give, N: 5}
				c.take(0, b)
				require.Equal(t, 1, c.store.Len())
				c.do(0, b, give)
				require.Zero(t, c.store.Len(), "all was given back")

				c.take(0, b)
				time.Sleep(time.Second)
				c.do(0, b, bucket.Peek(1))
				require.Zero(t, c.store.Len(), "it has ended")

				c.take(0, b)
				c.do(0, b, bucket.Op{Verb: bucket.Block, N: 100})
				c.do(0, b, give)
				require.Equal(t, 1, c.store.Len(), "it is blocked")
				time.Sleep(100 * time.Millisecond)
				c.do(0, b, bucket.Peek(1))
				require.Zero(t, c.store.Len(), "the block has ended")
			})
		})
	}
}

// TestALevelThatCannotBeCounted under a larger limit is left alone: the smaller limit can still
// count it.
func TestALevelThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, small, large := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 1, time.Second),
			newBucket(t, bucket.Token, 999, time.Second)
		c.do(0, small, bucket.Op{Verb: bucket.Block, N: 1 << 50})
		require.EqualValues(t, int64(bucket.MaxUnits), c.do(0, large, bucket.Peek(1)).Level)
		c.do(0, large, bucket.Op{Verb: bucket.Give, N: 1})
		found := c.do(0, small, bucket.Op{Verb: bucket.Give, N: 1}) // not a Take, which finds a block by its end
		require.Equal(t, small.BlockLevel(1<<50), found.Level)
	})
}

// TestAChargeWithNoRoomForDebt under a limit that cannot count such a level leaves it alone:
// another limit can.
func TestAChargeWithNoRoomForDebt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const day = 86_400_000
		slow, ok := bucket.New(bucket.Token, "d", 1, 1_000_000, day)
		require.True(t, ok)
		fast, ok := bucket.New(bucket.Token, "d", 1_000_003, 10, day)
		require.True(t, ok)
		c := clientsOf(New(MaxBuckets))
		c.do(0, slow, take(1_000_000))
		c.do(0, fast, bucket.Op{Verb: bucket.Charge, N: 1})
		require.EqualValues(t, int64(1_000_000*day), c.do(0, slow, bucket.Peek(1)).Level)
	})
}

// TestMoreThanAShareHolds is taken when the share is full, and counts for longer in proportion.
func TestMoreThanAShareHolds(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]bucket.Kind{"token": bucket.Token, "fixed": bucket.FixedWindow,
		"sliding": bucket.SlidingWindow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, whole := clientsOf(New(MaxBuckets)), newBucket(t, kind, 100, time.Second)
				b := whole.Share(10)
				require.EqualValues(t, 10, b.Burst)
				found := c.do(0, b, take(35))
				require.EqualValues(t, 1, b.Fits(found, 1, 35))
				found = c.do(0, b, bucket.Peek(1))
				require.Zero(t, b.Fits(found, 1, 1))
				wait := b.Status(found, 1).Retry
				want := map[bucket.Kind]int64{bucket.Token: 2600, bucket.FixedWindow: 4000,
					bucket.SlidingWindow: 4000}[kind]
				require.Equal(t, want, wait)
				time.Sleep(time.Duration(wait-1) * time.Millisecond)
				_, taken := c.take(0, b)
				require.False(t, taken)
				time.Sleep(time.Millisecond)
				_, taken = c.take(0, b)
				require.True(t, taken)
			})
		})
	}
}

// TestReturnToTheWindowThatWasCharged, and to no other.
func TestReturnToTheWindowThatWasCharged(t *testing.T) {
	t.Parallel()
	for _, kind := range []bucket.Kind{bucket.FixedWindow, bucket.SlidingWindow} {
		synctest.Test(t, func(t *testing.T) {
			c, b := clientsOf(New(MaxBuckets)), newBucket(t, kind, 10, time.Second)
			c.do(0, b, take(2))
			charged := c.do(0, b, take(3))
			back := bucket.Op{Verb: bucket.Return, N: 2, Claims: []bucket.Claim{{Mark: charged.Mark}}}
			wrong := back
			wrong.Claims = []bucket.Claim{{Mark: charged.Mark + 1}}
			for _, op := range []bucket.Op{back, wrong} {
				c.do(0, b, op)
				require.EqualValues(t, 3, c.do(0, b, bucket.Peek(1)).Level)
			}
			time.Sleep(time.Second)
			c.do(0, b, take(4))
			c.do(0, b, back)
			require.EqualValues(t, 4, c.do(0, b, bucket.Peek(1)).Level)
		})
	}
}

// TestOnlyADenialBans, and nothing that is charged or given back.
func TestOnlyADenialBans(t *testing.T) {
	t.Parallel()
	c, states := clientsOf(New(MaxBuckets)), make([]bucket.State, 2)
	resources := []bucket.Bucket{newBucket(t, bucket.Token, 2, time.Hour), bucket.NewBan(10_000, 50_000)}
	for _, verb := range []bucket.Verb{bucket.Charge, bucket.Give, bucket.Take} {
		c.store.Do(c.key(0), resources, bucket.Op{Verb: verb, Charges: 1, N: 3, Bans: bucket.AllBans}, states)
		require.Equal(t, verb == bucket.Take, states[1].Wait > 0)
	}
}
