package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// waits waits for n tokens in the background.
func waits(ctx context.Context, e *engine.Engine, n int64, ask engine.Ask, answer *engine.Answer) <-chan error {
	return goes(func() error { return waitN(ctx, e, n, &ask, answer) })
}

func TestWaitEndsAtOnceIfTheTokensComeAfterTheDeadline(t *testing.T) {
	for name, row := range map[string]struct {
		deadline time.Duration
		after    time.Duration
		err      bool
	}{
		"before":     {6*time.Second - 1, 0, true},
		"just after": {6*time.Second + 1, 6 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
				one := ask("k", setOf(perMinute(10)))
				take(t, e, 10, one)
				ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
				defer cancel()
				start := time.Now()
				err := waitN(ctx, e, 1, &one, new(engine.Answer))
				require.Equal(t, row.after, time.Since(start))
				require.Equal(t, row.err, err != nil)
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.ErrorContains(t, err, "the tokens come after the deadline")
				}
			})
		})
	}
}

// TestWaitBehindAnotherEndsAtOnceIfItsTokensComeAfterTheDeadline, when those before have taken theirs.
func TestWaitBehindAnotherEndsAtOnceIfItsTokensComeAfterTheDeadline(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(perMinute(10)))
		take(t, e, 10, one)
		first := waits(t.Context(), e, 5, one, new(engine.Answer))
		start := time.Now()
		wait := func(deadline time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			return waitN(ctx, e, 1, &one, new(engine.Answer))
		}
		err := wait(36*time.Second - 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the tokens come after the deadline")
		require.Zero(t, time.Since(start))
		require.NoError(t, wait(36*time.Second+1))
		require.Equal(t, 36*time.Second, time.Since(start))
		require.NoError(t, <-first)
	})
}

// TestCallersWhoWaitForOtherTokensHaveAQueueOfTheirOwn.
func TestCallersWhoWaitForOtherTokensHaveAQueueOfTheirOwn(t *testing.T) {
	floor, banned := setOf(perMinute(10)), setOf(perMinute(10), bucket.NewBan(1000, 1000))
	floor.Leave(2)
	faster, _ := bucket.New(bucket.Token, "m", 20, 10, 60_000)
	larger, _ := bucket.New(bucket.Token, "m", 10, 20, 60_000)
	for name, row := range map[string]struct {
		change func(*engine.Ask)
		after  time.Duration
	}{
		"the same":            {func(*engine.Ask) {}, 66 * time.Second},
		"equal limits":        {func(a *engine.Ask) { a.Set = setOf(perMinute(10)) }, 66 * time.Second},
		"another failure":     {func(a *engine.Ask) { a.Failure = engine.FailOpen }, 6 * time.Second},
		"a floor":             {func(a *engine.Ask) { a.Set = floor }, 18 * time.Second},
		"a ban":               {func(a *engine.Ask) { a.Set = banned }, 6 * time.Second},
		"another limit":       {func(a *engine.Ask) { a.Set = setOf(perMinute(10), perHour(100)) }, 6 * time.Second},
		"another bucket":      {func(a *engine.Ask) { a.Set = setOf(limit("n", 10, 60_000)) }, 0},
		"a larger bucket":     {func(a *engine.Ask) { a.Set = setOf(larger) }, 0},
		"another rate":        {func(a *engine.Ask) { a.Set = setOf(faster) }, 33 * time.Second},
		"a prefix":            {func(a *engine.Ask) { a.Prefix = "p|" }, 0},
		"another client":      {func(a *engine.Ask) { a.Client = "other" }, 0},
		"another description": {func(a *engine.Ask) { a.Report = rules.ReportNone }, 66 * time.Second},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := local(t)
			one := ask("k", setOf(perMinute(10)))
			take(t, e, 10, one)
			first := waits(t.Context(), e, 10, one, new(engine.Answer))
			second := one
			row.change(&second)
			start := time.Now()
			require.NoError(t, waitN(t.Context(), e, 1, &second, new(engine.Answer)))
			require.Equal(t, row.after, time.Since(start))
			require.NoError(t, <-first)
		})
	}
}

// TestWaitGoesOnInTheNextCalendarPeriod when that begins, of the Ask's set too.
func TestWaitGoesOnInTheNextCalendarPeriod(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		time.Sleep(24*time.Hour - time.Minute)
		set := daily(5)
		one := ask("k", set)
		take(t, e, 5, one)
		start := time.Now()
		require.NoError(t, waitN(t.Context(), e, 3, &one, new(engine.Answer)))
		require.Equal(t, time.Minute, time.Since(start))
		require.Same(t, set.Now(), one.Set)
		require.EqualValues(t, 2, left(t, e, one))
	})
}

// TestCallersOfSeveralPeriodsKeepTheirOrder, though others have taken what the first waits for.
func TestCallersOfSeveralPeriodsKeepTheirOrder(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		time.Sleep(24*time.Hour - time.Minute)
		set := daily(5)
		require.True(t, take(t, e, 1, ask("k", set.WithPeriods(time.Now().Add(time.Hour)))).Allowed, "of both days")
		ctx, cancel := context.WithCancel(t.Context())
		first := waits(ctx, e, 5, ask("k", set), new(engine.Answer))
		time.Sleep(time.Minute + time.Second)
		second := waits(t.Context(), e, 1, ask("k", set.Now()), new(engine.Answer))
		time.Sleep(time.Minute)
		require.Empty(t, second)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.NoError(t, <-second)
	})
}

// TestAChangeAfterATryWakesWhoIsNotInTheLineYet, for tokens and for a slot.
func TestAChangeAfterATryWakesWhoIsNotInTheLineYet(t *testing.T) {
	q := engine.Queue{Length: 1, Wait: time.Hour}
	for name, row := range map[string]struct {
		lacks []bucket.Bucket
		queue engine.Queue
	}{
		"wait":            {[]bucket.Bucket{perHour(1)}, engine.Queue{Length: engine.Endless}},
		"queue":           {[]bucket.Bucket{perHour(1)}, q},
		"queue for slots": {[]bucket.Bucket{bucket.NewSlots(1)}, q},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, one := b.redis(t), ask("k", setOf(row.lacks...))
			held := take(t, e, 1, one)
			b.Late.Store(int64(20 * ms))
			start := time.Now()
			waits := goes(func() error {
				return takeInLine(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1), row.queue)
			})
			b.Late.Store(0)
			time.Sleep(10 * ms) // it is denied by now, and does not know
			release(e, one, held)
			require.NoError(t, e.Refund(t.Context(), 1, &one))
			require.Less(t, time.Since(start), 20*ms)
			require.NoError(t, <-waits)
			require.Equal(t, 20*ms, time.Since(start))
		})
	}
}

// TestACallerWhoWaitsAloneAsksTwice: whether there are tokens, and when there are.
func TestACallerWhoWaitsAloneAsksTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, b.client(t), engine.Config{}, 0)
		one := ask("k", setOf(perMinute(10)))
		take(t, e, 10, one)
		b.Sent.Store(0)
		require.NoError(t, waitN(t.Context(), e, 1, &one, new(engine.Answer)))
		require.EqualValues(t, 2, b.Sent.Load())
	})
}

// TestNobodyOvertakesWhoWaits, not even for all tokens that there ever are.
func TestNobodyOvertakesWhoWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := ask("k", setOf(perHour(10)))
		take(t, e, 10, one)
		start := time.Now()
		first := waits(t.Context(), e, 10, one, new(engine.Answer))
		time.Sleep(time.Second)
		require.NoError(t, other.Refund(t.Context(), 10, &one))
		time.Sleep(time.Second)
		second := waits(t.Context(), e, 10, one, new(engine.Answer))
		require.Empty(t, second)
		require.NoError(t, <-first)
		require.Equal(t, 10*time.Second, time.Since(start))
		require.NoError(t, <-second)
	})
}

// TestCallersOfTheSameMomentAskAgainWhenItIsTheirTurn, as what they were told is old.
func TestCallersOfTheSameMomentAskAgainWhenItIsTheirTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := ask("k", setOf(perHour(10)))
		take(t, e, 10, one)
		b.Delay.Store(int64(10 * ms))
		ctx, cancel := context.WithCancel(t.Context())
		first := waits(ctx, e, 1, one, new(engine.Answer))
		time.Sleep(5 * ms) // the first is not told yet
		second := waits(t.Context(), e, 1, one, new(engine.Answer))
		time.Sleep(time.Second)
		b.Delay.Store(0)
		require.NoError(t, other.Refund(t.Context(), 1, &one))
		time.Sleep(time.Second)
		start := time.Now()
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.NoError(t, <-second)
		require.Zero(t, time.Since(start))
	})
}

// TestWaitEndsWithItsContextAndWithTheEngine, in the queue and at its head.
func TestWaitEndsWithItsContextAndWithTheEngine(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(perHour(10)))
		take(t, e, 10, one)
		ctx, cancel := context.WithCancel(t.Context())
		var answers [4]engine.Answer
		head := waits(t.Context(), e, 1, one, &answers[0])
		canceled := waits(ctx, e, 1, one, &answers[1])
		behind := waits(t.Context(), e, 1, one, &answers[2])
		time.Sleep(time.Minute)
		cancel()
		require.ErrorIs(t, <-canceled, context.Canceled)
		require.Equal(t, time.Minute, answers[1].Waited)
		time.Sleep(time.Minute)
		start := time.Now()
		e.Close()
		for _, err := range []error{<-head, <-behind} {
			require.ErrorIs(t, err, engine.ErrUnavailable)
			require.True(t, errors.Is(err, engine.ErrClosed))
		}
		require.Equal(t, 2*time.Minute, answers[0].Waited)
		require.Zero(t, time.Since(start))
	})
}

// TestWaitGoesOnThroughAnOutage in which nobody else may decide, and tries five times a second.
func TestWaitGoesOnThroughAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one := ask("k", setOf(perMinute(10)))
		take(t, e, 1, one)
		b.Cut.Store(true)
		start := time.Now()
		var answer engine.Answer
		done := waits(t.Context(), e, 1, one, &answer)
		time.Sleep(100 * ms)
		b.Cut.Store(false)
		require.NoError(t, <-done)
		require.Equal(t, 200*ms, time.Since(start))
		require.Equal(t, 200*ms, answer.Waited)
		require.True(t, answer.Allowed)

		b.outage(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, waitN(ctx, e, 1, &one, &answer), context.DeadlineExceeded)
	})
}

// TestWaitEndsWithAnErrorThatNoWaitingEnds, and with the decision of whoever decides in an outage.
func TestWaitEndsWithAnErrorThatNoWaitingEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		testkit.Must(b.Mini.Lpush("test:{foreign}:m", "x"))
		foreign := ask("foreign", setOf(perMinute(10)))
		start := time.Now()
		require.ErrorIs(t, waitN(t.Context(), e, 1, &foreign, new(engine.Answer)), engine.ErrUnavailable)
		require.Zero(t, time.Since(start))

		b.outage(t, e)
		start = time.Now()
		one := failing("k", setOf(perMinute(10)), engine.FailLocal)
		var answer engine.Answer
		require.NoError(t, waitN(t.Context(), e, 10, &one, &answer))
		require.Equal(t, engine.FromLocal, answer.Source)
		require.NoError(t, waitN(t.Context(), e, 1, &one, &answer))
		require.Equal(t, 6*time.Second, time.Since(start))
	})
}

// TestWaitForMoreThanABucketEverHoldsEndsAtOnce, also behind others.
func TestWaitForMoreThanABucketEverHoldsEndsAtOnce(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(perMinute(10)))
		take(t, e, 10, one)
		first := waits(t.Context(), e, 10, one, new(engine.Answer))
		synctest.Wait()
		var answer engine.Answer
		start := time.Now()
		require.NoError(t, waitN(t.Context(), e, 11, &one, &answer))
		require.Zero(t, time.Since(start))
		require.Equal(t, rules.Never, answer.RetryAfter)
		require.NoError(t, <-first)
	})
}

// TestWaitSeesWhatAnotherProcessGivesBack within ten seconds.
func TestWaitSeesWhatAnotherProcessGivesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := ask("k", setOf(perHour(10)))
		take(t, e, 10, one)
		start := time.Now()
		done := waits(t.Context(), e, 1, one, new(engine.Answer))
		time.Sleep(time.Second)
		require.NoError(t, other.Refund(t.Context(), 5, &one))
		require.NoError(t, <-done)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}
