package denycache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/table"
)

// TestDeniesForAsLongAsRedisWould has an empty bucket of 10 tokens a second: after 100 milliseconds
// there is one token.
func TestDeniesForAsLongAsRedisWould(t *testing.T) {
	for name, row := range map[string]struct {
		level     int64
		n         int64
		took      time.Duration // from the request to the answer
		last      time.Duration // after the answer: the last moment of a denial
		levelThen int64         // the level set at that moment
	}{
		"at once":                          {1000, 1, 0, 99 * ms, 901},
		"several tokens":                   {1000, 3, 0, 299 * ms, 701},
		"counted from when it was asked":   {1000, 1, 20 * ms, 79 * ms, 921},
		"rounded up to whole milliseconds": {1000, 1, 20*ms - 1, 79*ms + 1, 921},
		"a wait from the answer on":        {1000, 1, 99 * ms, 0, 1000},
		"for a second at most":             {5000, 1, 0, life - 1, 4001},
		"from when it was asked":           {5000, 1, 200 * ms, life - 200*ms - 1, 4201},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			c, one := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
			s := of("k", 1, row.n, one)
			require.Nil(t, c.lookup(s))
			require.Zero(t, c.Len())
			r := denied(bucket.State{Level: row.level})
			time.Sleep(row.took)
			r.Received = time.Now()
			c.Remember(s, r)
			time.Sleep(row.last)
			require.Equal(t, []bucket.State{{Level: row.levelThen}}, c.lookup(s))
			require.Equal(t, 1, c.Len())
			time.Sleep(time.Nanosecond)
			require.Nil(t, c.lookup(s))
			time.Sleep(time.Until(r.Sent.Add(life)))
			require.Zero(t, c.Len())
		})
	}
}

// TestWindowsDenyUntilTheirWaitIsOver, which depends on the number of tokens.
func TestWindowsDenyUntilTheirWaitIsOver(t *testing.T) {
	for _, kind := range []bucket.Kind{bucket.FixedWindow, bucket.SlidingWindow} {
		inBubbleRun(t, fmt.Sprint(kind), func(t *testing.T) {
			c, one := New(64), newBuckets(t, kind, [2]int64{10, 1000})
			c.Remember(of("k", 1, 3, one), denied(bucket.State{Level: 8, More: 30, Wait: 70, Reset: 900, Mark: 5}))
			require.Nil(t, c.lookup(of("k", 1, 4, one)))
			require.Nil(t, c.lookup(of("k", 1, 1, one)))
			time.Sleep(40 * ms)
			require.Equal(t, []bucket.State{{Level: 8, More: 0, Wait: 30, Reset: 860, Mark: 5}},
				c.lookup(of("k", 1, 3, one)))
			time.Sleep(29 * ms)
			require.NotNil(t, c.lookup(of("k", 1, 3, one)))
			time.Sleep(1 * ms)
			require.Nil(t, c.lookup(of("k", 1, 3, one)))
		})
	}
}

// TestWhoIsDenied: only the same key under the same limits, for at least the missing tokens.
func TestWhoIsDenied(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
		states, key := []bucket.State{{Level: 800}}, []byte("k")
		c.Remember(Subject{Key: key, Hash: 1, Buckets: one, N: 3}, denied(states...))
		key[0], states[0].Level = 'x', 0 // the caller reuses its memory
		for name, row := range map[string]struct {
			s    Subject
			want bool
		}{
			"as many tokens":          {of("k", 1, 3, one), true},
			"in other memory":         {of("k", 1, 3, newBuckets(t, bucket.Token, [2]int64{10, 1000})), true},
			"more tokens":             {of("k", 1, 10, one), true},
			"fewer, of which there":   {of("k", 1, 2, one), false},
			"another key":             {of("l", 1, 3, one), false},
			"another hash":            {of("k", 2, 3, one), false},
			"the key that it now has": {of("x", 1, 3, one), false},
			"another limit":           {of("k", 1, 3, newBuckets(t, bucket.Token, [2]int64{11, 1000})), false},
			"more limits": {of("k", 1, 3,
				newBuckets(t, bucket.Token, [2]int64{10, 1000}, [2]int64{10, 9000})), false},
			"another algorithm": {of("k", 1, 3, newBuckets(t, bucket.FixedWindow, [2]int64{10, 1000})), false},
		} {
			require.Equal(t, row.want, c.lookup(row.s) != nil, name)
		}
	})
}

// TestAFullSetForgetsTheOldest has more keys than places.
func TestAFullSetForgetsTheOldest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(table.Ways), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		empty := bucket.State{Level: one[0].Capacity}
		subject := func(i int) Subject { return of(fmt.Sprint("client ", i), uint64(i), 1, one) }
		for i := range 100 {
			c.Remember(subject(i), denied(empty))
			for j := range i + 1 {
				require.Equal(t, j > i-table.Ways, c.lookup(subject(j)) != nil, "client %d after %d", j, i)
			}
			time.Sleep(time.Nanosecond)
		}
		c.Remember(subject(97), denied(empty)) // of a key that is there
		require.Equal(t, table.Ways, c.Len())
		time.Sleep(time.Nanosecond)
		c.Remember(subject(100), denied(empty))
		require.Nil(t, c.lookup(subject(96)))
		require.NotNil(t, c.lookup(subject(97)), "it is newer now")
	})
}

func TestKeysOfOneHashAreRememberedBoth(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, one := New(table.Ways), newBuckets(t, bucket.Token, [2]int64{1, 86_400_000})
		for _, key := range []string{"a", "b"} {
			c.Remember(of(key, 1, 1, one), denied(bucket.State{Level: one[0].Capacity}))
		}
		require.NotNil(t, c.lookup(of("a", 1, 1, one)))
		require.NotNil(t, c.lookup(of("b", 1, 1, one)))
	})
}

// TestDenialsOfGuardsAreRemembered, though these have no period.
func TestDenialsOfGuardsAreRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(64)
		banAndSlots := []bucket.Bucket{bucket.NewBan(100, 1000), bucket.NewSlots(1)}
		c.Remember(of("k", 1, 1, banAndSlots), denied(bucket.State{Level: 100, Wait: 100}, bucket.State{Level: 1}))
		require.NotNil(t, c.lookup(of("k", 1, 1, banAndSlots)))
	})
}

// TestMaxEntriesIsAsDocumented for WithDenyCache.
func TestMaxEntriesIsAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "0 to 4,194,304;")
	require.Equal(t, 4_194_304, MaxEntries)
}

func TestNoEntriesAreNoCache(t *testing.T) {
	t.Parallel()
	for _, none := range []int{0, -1} {
		c := New(none)
		assert.Nil(t, c)
		one := newBuckets(t, bucket.Token, [2]int64{1, 1000})
		c.Remember(of("k", 1, 1, one), denied(bucket.State{Level: 1000}))
		c.Forget([]byte("k"), 1, true)
		c.Charge(of("k", 1, 1, one))
		assert.Nil(t, c.lookup(of("k", 1, 1, one)))
		assert.Zero(t, c.Len())
	}
}

// TestManyAtOnce does everything to few keys at once, for the race detector. Each state is the
// right key's.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := New(8)
	var all sync.WaitGroup
	for g := range 4 {
		r := rand.New(rand.NewPCG(uint64(g), 2))
		all.Go(func() {
			for range 5000 {
				i := r.Int64N(16)
				// Each key has its own limit.
				own := newBuckets(t, bucket.Token, [2]int64{10 + i, 86_400_000})
				s, level := of(fmt.Sprint("client ", i), uint64(i), 1, own), own[0].Capacity-own[0].Cost+1
				switch r.IntN(4) {
				case 0:
					c.Forget(s.Key, s.Hash, r.IntN(1000) == 0)
				case 1:
					c.Charge(s)
				case 2:
					states := []bucket.State{{Level: own[0].Capacity}}
					c.Remember(s, denied(states...))
					s.Key[0] = 'x'
				default:
					if states := c.lookup(s); states != nil {
						assert.GreaterOrEqual(t, states[0].Level, level)
						assert.LessOrEqual(t, states[0].Level, own[0].Capacity)
					}
					assert.LessOrEqual(t, c.Len(), 8)
				}
			}
		})
	}
	all.Wait()
}

func newBuckets(t testing.TB, kind bucket.Kind, limits ...[2]int64) []bucket.Bucket {
	t.Helper()
	var all []bucket.Bucket
	for _, limit := range limits {
		b, ok := bucket.New(kind, fmt.Sprint(kind, limit[1]), limit[0], limit[0], limit[1])
		require.True(t, ok)
		all = append(all, b)
	}
	return all
}

// of returns a subject whose hash selects its places and its stripe.
func of(key string, hash uint64, n int64, buckets []bucket.Bucket) Subject {
	return Subject{Key: []byte(key), Hash: hash, Buckets: buckets, N: n}
}

// denied returns a denial that was sent and received now.
func denied(states ...bucket.State) Denial {
	return Denial{States: states, Sent: time.Now(), Received: time.Now()}
}

// lookup returns the states that the cache sets for a subject, or nil if it does not deny.
func (c *Cache) lookup(s Subject) []bucket.State {
	states := make([]bucket.State, len(s.Buckets))
	if !c.Lookup(s, states) {
		return nil
	}
	return states
}

// TestDenialsOfTenants are each tenant's own, and end with a change of the key that they share.
func TestDenialsOfTenants(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const shared = 7
		c, buckets := New(64), newBuckets(t, bucket.Token, [2]int64{10, 1000})
		buckets = append(buckets, bucket.NewTenants(&buckets[0]))
		a, b := of("k\na", 1, 1, buckets), of("k\nb", 2, 1, buckets)
		a.Shared, b.Shared = shared, shared
		full := bucket.State{Level: 500, Wait: 50, Shares: &bucket.Shares{
			Sum: 5 * bucket.Parts, Weights: 1, Finish: 5 * bucket.Parts, Held: 1, Weight: 1,
		}}
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
		require.Nil(t, c.lookup(b))
		time.Sleep(40 * time.Millisecond)
		found := c.lookup(a)
		require.EqualValues(t, 10, found[1].Wait)
		require.EqualValues(t, 460, found[1].Level)
		late := full
		late.Wait = 300 // longer than the charge lacks room
		c.Remember(b, denied(bucket.State{Level: 500}, late))
		time.Sleep(49 * time.Millisecond)
		require.NotNil(t, c.lookup(b))
		time.Sleep(time.Millisecond)
		require.Nil(t, c.lookup(b), "it fits, so it is no denial")

		c.Remember(b, denied(bucket.State{Level: 500}, full))
		c.Forget([]byte("k"), shared, false) // by a refund of either
		require.Nil(t, c.lookup(a))
		require.Nil(t, c.lookup(b))
		time.Sleep(time.Millisecond)
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
		other := of("l\na", 3, 1, buckets)
		other.Shared = shared + 1
		time.Sleep(time.Millisecond)
		c.Remember(other, denied(bucket.State{Level: 500}, full))
		c.Charge(b) // so that a waits longer than it was told
		require.Nil(t, c.lookup(a))
		require.NotNil(t, c.lookup(other), "it shares another key")
		time.Sleep(time.Millisecond)
		c.Remember(a, denied(bucket.State{Level: 500}, full))
		require.NotNil(t, c.lookup(a))
	})
}

const ms = time.Millisecond

// inBubble runs a test with simulated time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func inBubbleRun(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}
