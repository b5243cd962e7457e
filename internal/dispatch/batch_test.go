package dispatch

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// TestCallsOfAGroupAreAnsweredInOrder sends calls of all kinds on few keys in one batch. Each gets
// the answer that it would get if the calls were decided one after another.
func TestCallsOfAGroupAreAnsweredInOrder(t *testing.T) {
	for name, row := range map[string]struct {
		kind   bucket.Kind
		bursts []int64
	}{
		"a token bucket":   {bucket.Token, []int64{40}},
		"token buckets":    {bucket.Token, []int64{40, 60}},
		"a fixed window":   {bucket.FixedWindow, []int64{40}},
		"fixed windows":    {bucket.FixedWindow, []int64{40, 60}},
		"a sliding window": {bucket.SlidingWindow, []int64{40}},
		"sliding windows":  {bucket.SlidingWindow, []int64{60, 40}},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t)
			model, r := memory.New(1024), rand.New(rand.NewPCG(4, 4))
			buckets := newBuckets(t, row.kind, row.bursts...)
			same := newBuckets(t, row.kind, row.bursts...) // in other memory
			for range 20 {
				release := occupy(t, d, s)
				s.groups = nil
				var calls []*Call
				var want []string
				for range 120 {
					op := take(1, 1)
					switch r.IntN(12) {
					case 0:
						op = take(1+r.Int64N(3), 1)
					case 1:
						op = take(1, 2)
					case 2:
						op = bucket.Peek(1)
					case 3:
						op = bucket.Op{Verb: bucket.Give, N: 1 + r.Int64N(5)}
					}
					key, of := string(rune('a'+r.IntN(3))), buckets
					if r.IntN(2) == 0 {
						of = same
					}
					alone := newCall(key, op, of)
					model.Do(alone.Key, alone.Buckets, op, alone.States)
					want = append(want, outcome(alone))
					c := newCall(key, op, of)
					calls = append(calls, c)
					go func() { assert.NoError(t, d.Do(t.Context(), c)) }()
					synctest.Wait()
				}
				release()
				synctest.Wait()
				for i, c := range calls {
					require.Equal(t, want[i], outcome(c), "call %d", i)
					require.False(t, c.Sent.IsZero())
					require.False(t, c.Abandoned())
				}
				require.Less(t, len(s.groups), 90, "of 122 calls")
				seen := map[string]bool{}
				for _, m := range s.groups {
					require.Equal(t, !seen[m.key], m.first)
					seen[m.key] = true
				}
				time.Sleep(time.Duration(r.IntN(600_000)) * time.Millisecond)
			}
		})
	}
}

// TestWhatDoesNotMerge sends two calls in one batch: one to take a token of k, and another one.
func TestWhatDoesNotMerge(t *testing.T) {
	one, two := newBuckets(t, bucket.Token, 10), newBuckets(t, bucket.Token, 10, 20)
	further := func(key string, from int) func(*Call) {
		return func(c *Call) { c.AddKey(newCall(key, take(1, 1), one), from) }
	}
	for name, row := range map[string]struct {
		key     string
		op      bucket.Op
		buckets []bucket.Bucket
		change  func(c *Call) // of the second
		merges  bool
	}{
		"equal":                  {"k", take(1, 1), one, nil, true},
		"equal in other memory":  {"k", take(2, 1), newBuckets(t, bucket.Token, 10), nil, true},
		"another key":            {"l", take(1, 1), one, nil, false},
		"a key of the same hash": {"l", take(1, 1), one, func(c *Call) { c.Hash = maphash.String(seed, "k") }, false},
		"other limits":           {"k", take(1, 1), newBuckets(t, bucket.Token, 11), nil, false},
		"more limits":            {"k", take(1, 1), two, nil, false},
		"another algorithm":      {"k", take(1, 1), newBuckets(t, bucket.FixedWindow, 10), nil, false},
		"another cost":           {"k", take(1, 2), one, nil, false},
		"a look":                 {"k", bucket.Peek(1), one, nil, false},
		"a further key":          {"k", take(1, 1), one, further("other", 1), false},
		"another further key":    {"two", take(1, 1), two, further("another", 1), false},
		"an equal further key":   {"two", take(1, 1), two, further("other", 1), true},
		"of another bucket":      {"two", take(1, 1), two, further("other", 0), false},
		"a further key of the same hash": {"two", take(1, 1), two, func(c *Call) {
			further("another", 1)(c)
			c.Others[0].Hash = maphash.String(seed, "other")
		}, false},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t)
			release := occupy(t, d, s)
			s.groups = nil
			calls := []*Call{newCall("k", take(1, 1), one), newCall(row.key, row.op, row.buckets)}
			if row.key == "two" {
				calls[0] = newCall("two", take(1, 1), two)
				further("other", 1)(calls[0])
			}
			if row.change != nil {
				row.change(calls[1])
			}
			for _, c := range calls {
				go func() { assert.NoError(t, d.Do(t.Context(), c)) }()
				synctest.Wait()
			}
			release()
			synctest.Wait()
			require.EqualValues(t, 2+1, d.Stats().Batches-1, "both in one batch")
			want := d.slots.few + 2
			if row.merges {
				want--
			}
			require.Len(t, s.groups, want)
		})
	}
}

// TestChargesOfAGroupStayCountable: a group has no more charges than can be counted exactly.
func TestChargesOfAGroupStayCountable(t *testing.T) {
	t.Parallel()
	b, one := newBatch(), newBuckets(t, bucket.Token, 10)
	for range 3 {
		b.calls = append(b.calls, newCall("k", take(bucket.MaxUnits/2, 1), one))
	}
	b.coalesce()
	require.Len(t, b.Groups, 2)
	require.EqualValues(t, int64(bucket.MaxUnits/2*2), b.Groups[0].Charges)
	require.EqualValues(t, int64(bucket.MaxUnits/2), b.Groups[1].Charges)
}

// TestAttemptsOfAGroup: the newest attempt has the report of slots, all attempts have their number
// sent, and a call that peeks has none.
func TestAttemptsOfAGroup(t *testing.T) {
	t.Parallel()
	one := newBuckets(t, bucket.Token, 10)
	for name, row := range map[string]struct {
		attempts []bucket.Attempt
		newest   bucket.Attempt
		numbers  string
	}{
		"one that looks": {[]bucket.Attempt{{Ended: 3, Held: 2}}, bucket.Attempt{Ended: 3, Held: 2}, ""},
		"some": {[]bucket.Attempt{{Number: 9, Ended: 3, Held: 2}, {}, {Number: 123, Ended: 8, Held: 1}, {Number: 1}},
			bucket.Attempt{Number: 123, Ended: 8, Held: 1}, "9,123,1,"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBatch()
			for _, attempt := range row.attempts {
				c := newCall("k", take(1, 1), one)
				c.Attempt = attempt
				b.calls = append(b.calls, c)
			}
			b.coalesce()
			require.Len(t, b.Groups, 1)
			newest, numbers := b.Groups[0].Attempts(0)
			require.Equal(t, row.newest, newest)
			require.Equal(t, row.numbers, numbers)
		})
	}
}

// TestErrorsOfAGroupReachItsCallersOnly: the transport fails one key of a batch.
func TestErrorsOfAGroupReachItsCallersOnly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		refused := errors.New("refused")
		d, s := newServer(t)
		release := occupy(t, d, s)
		one := newBuckets(t, bucket.Token, 10)
		errs := make([]error, 20)
		for i := range errs {
			go func() { errs[i] = d.Do(t.Context(), newCall(fmt.Sprint("client ", i%2), take(1, 1), one)) }()
			synctest.Wait()
		}
		refusing := &refusingKey{server: s, key: "client 1", err: refused}
		d.server.Transport = refusing
		release()
		synctest.Wait()
		for i, err := range errs {
			if i%2 == 0 {
				require.NoError(t, err)
			} else {
				require.Equal(t, refused, err)
			}
		}
		require.Equal(t, closed, stateOf(d))
		require.Zero(t, failuresOf(d), "the server has answered")
	})
}

// refusingKey is a server that fails all calls on a key.
type refusingKey struct {
	*server
	key string
	err error
}

func (r *refusingKey) Send(ctx context.Context, b *Batch) error {
	err := r.server.Send(ctx, b)
	for _, m := range b.Groups {
		if string(m.Key) == r.key {
			m.Err = r.err
		}
	}
	return err
}

// TestCallsOfOneMomentAreSentTogether: a caller that is scheduled after the one that starts a batch
// is still in the batch. The scheduler may sometimes order them otherwise, so not every round must
// show it.
func TestCallsOfOneMomentAreSentTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		d, s := newServer(t)
		one, together := newBuckets(t, bucket.Token, 1000), 0
		for range 100 {
			before, _ := s.count()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
			}
			all.Wait()
			if sends, _ := s.count(); sends == before+1 {
				together++
			}
		}
		require.Greater(t, together, 50)
	})
}
