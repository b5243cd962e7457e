package dispatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
		borrowed, cancelBorrowed := context.WithCancelCause(Borrow(one, t.Context()))
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
