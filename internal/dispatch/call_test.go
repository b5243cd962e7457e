package dispatch

import (
	"context"
	"encoding"
	"fmt"
	"hash/maphash"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
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
	c.Set(op, buckets, bucket.NewLayout(buckets))
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
		granted = c.Buckets[i].Fits(c.States[i], granted, max(1, c.Op.N))
	}
	text := fmt.Sprintf("%s %+v: %d granted", c.Key, c.Op, granted)
	for i := range c.Buckets {
		b, s := &c.Buckets[i], c.States[i]
		if granted > 0 {
			s = b.Charged(s, granted, c.Op.N)
		}
		left := b.Status(s, c.Op.N)
		text += fmt.Sprintf(", %d left, more in %d, full in %d", left.Remaining, left.More, left.Reset)
		if granted < c.Op.Charges {
			text += fmt.Sprintf(", retry in %d", left.Retry)
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

// TestCallsLeaveAloneWhileBatchesAreSmall: only the first one does while several calls share a batch.
func TestCallsLeaveAloneWhileBatchesAreSmall(t *testing.T) {
	t.Parallel()
	const near = 100 * time.Microsecond
	for name, row := range map[string]struct {
		server Server
		calls  int // of each batch before
		want   int // how many leave alone
		took   time.Duration
	}{
		"lone callers far away":      {Server{Inline: true}, 1, maxHighLatencyInFlight, 5 * time.Millisecond},
		"lone callers":               {Server{Inline: true}, 1, maxAlone, near},
		"not inline":                 {Server{}, 1, MaxInFlight, near},
		"many callers":               {Server{Inline: true}, 8, 1, near},
		"few connections":            {Server{Inline: true, Conns: 2}, 1, 2, near},
		"one connection":             {Server{Inline: true, Conns: 1}, 1, 1, near},
		"one of many":                {Server{Inline: true, OneOfMany: true}, 1, maxAlone, near},
		"one of many, many callers":  {Server{Inline: true, OneOfMany: true}, 8, 1, near},
		"few connections, many call": {Server{Inline: true, Conns: 2}, 8, 1, near},
	} {
		s := newSlots(row.server, new(sync.WaitGroup))
		for range 50 {
			s.answered(row.took, row.calls)
		}
		alone := 0
		for s.freeForOne() && alone < 100 {
			s.take()
			alone++
		}
		require.Equal(t, row.want, alone, name)
		s.inFlight, s.overdue = s.inFlight[:1], s.most-1
		require.False(t, s.freeForOne(), name)
		s.overdue, s.healthy = 0, false
		require.False(t, s.freeForOne(), name)
	}
}

// TestManyCallersAreNoticed: a few batches of several calls are enough, and so are a few lone calls.
func TestManyCallersAreNoticed(t *testing.T) {
	t.Parallel()
	s := newSlots(Server{}, new(sync.WaitGroup))
	for range 50 {
		s.answered(100*time.Microsecond, 1)
	}
	s.take()
	s.answered(100*time.Microsecond, 16)
	require.False(t, s.freeForOne())
	for range 30 {
		s.answered(100*time.Microsecond, 1)
	}
	require.True(t, s.freeForOne())
}

// TestLargeBatchesSayNothingOfTheLatency, as they take the server longer.
func TestLargeBatchesSayNothingOfTheLatency(t *testing.T) {
	t.Parallel()
	for calls, want := range map[int]int{maxMeasured: maxHighLatencyInFlight, maxMeasured + 1: MaxInFlight} {
		s := newSlots(Server{}, new(sync.WaitGroup))
		for range 50 {
			s.answered(time.Millisecond, calls)
		}
		require.Equal(t, want, s.limit(), calls)
	}
}

// TestDeadlinesAreShared: calls of about the same time have one context, which ends once the span has
// passed, whoever uses it.
func TestDeadlinesAreShared(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := sharedDeadline{span: 50 * time.Millisecond}
		first, same := d.use(), d.use()
		require.Same(t, first, same)
		time.Sleep(5 * time.Millisecond)
		second := d.use()
		require.NotSame(t, first, second)
		end, ok := second.Deadline()
		require.True(t, ok)
		require.Equal(t, 55*time.Millisecond, time.Until(end))
		first.release()
		same.release()
		time.Sleep(50*time.Millisecond - time.Nanosecond)
		synctest.Wait()
		require.NoError(t, first.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, first.Err())
		require.NoError(t, second.Err())
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, second.Err())
		<-second.Done()
		second.release()
	})
}

// TestUnusedDeadlinesEnd: nobody waits for ever for the end of a context that all have released, and no
// timer is left.
func TestUnusedDeadlinesEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := sharedDeadline{span: 50 * time.Millisecond}
		var all []*deadline
		for range 10 { // as a lone caller of a server that is 5 ms away
			all = append(all, d.use())
			time.Sleep(5 * time.Millisecond)
			all[len(all)-1].release()
		}
		start := time.Now()
		for _, one := range all {
			<-one.Done()
		}
		require.Equal(t, 5*time.Millisecond, time.Since(start), "by the timer of the first")
		require.Equal(t, context.DeadlineExceeded, all[0].Err())
		require.Equal(t, context.Canceled, all[9].Err())
		require.False(t, d.set)

		again := d.use()
		require.NoError(t, again.Err())
		time.Sleep(55 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, again.Err(), "the timer is set again")
		again.release()

		last := d.use()
		last.release()
		d.end()
		require.Equal(t, context.Canceled, last.Err())
		require.False(t, d.set)

		late := d.use() // by a batch that Close has not waited for
		time.Sleep(55 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, late.Err())
		late.release()
	})
}

// TestOneTimerForAllDeadlines: while a caller calls, a timer goes off once in a span, not for each call.
func TestOneTimerForAllDeadlines(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := sharedDeadline{span: 50 * time.Millisecond}
		const calls = 1000
		start, ended := time.Now(), make(chan time.Duration, calls)
		for range calls {
			one := d.use()
			one.AfterFunc(func() { ended <- time.Since(start) })
			time.Sleep(5 * time.Millisecond)
			one.release()
		}
		moments := map[time.Duration]bool{}
		for range calls {
			moments[<-ended] = true
		}
		require.LessOrEqual(t, len(moments), calls*5/50)
	})
}

// TestDerivedContextsEndWithADeadline, also if that has ended before they are derived.
func TestDerivedContextsEndWithADeadline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := sharedDeadline{span: 50 * time.Millisecond}
		one := d.use()
		defer one.release()
		stopped, stop := context.WithCancel(one)
		stop()
		require.Empty(t, one.after, "nothing is kept for it")
		derived, cancel := context.WithCancel(one)
		defer cancel()
		borrowed, cancelBorrowed := context.WithCancelCause(goroutine.Borrow(one, t.Context(), new(goroutine.Stuck)))
		defer cancelBorrowed(nil)
		<-derived.Done()
		<-borrowed.Done()
		require.Equal(t, context.Canceled, stopped.Err())
		require.Equal(t, context.DeadlineExceeded, derived.Err())
		require.Equal(t, context.DeadlineExceeded, context.Cause(borrowed))
		late, cancelLate := context.WithCancel(one)
		defer cancelLate()
		<-late.Done()
		require.Equal(t, context.DeadlineExceeded, late.Err())
		require.False(t, one.AfterFunc(func() {})())
	})
}
