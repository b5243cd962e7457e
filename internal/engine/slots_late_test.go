package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/inflight"
)

// lateTake has two callers take a slot of each Ask. The call of the first is lost, so that this process decides
// after the timeout. Redis grants the second before that, and answers after it, but in time.
func lateTake(t *testing.T, b *bench, e *engine.Engine, asks []engine.Ask) (answers [2][]engine.Answer) {
	var done [2]<-chan error
	for i, delays := range [...]struct{ delay, late time.Duration }{{time.Second, 0}, {0, 4 * timeout / 5}} {
		b.Delay.Store(int64(delays.delay))
		b.Late.Store(int64(delays.late))
		answers[i] = make([]engine.Answer, len(asks))
		done[i] = goes(func() error { return takeN(t.Context(), e, 1, append([]engine.Ask{}, asks...), answers[i]) })
		time.Sleep(4 * timeout / 5)
	}
	b.Late.Store(0)
	require.NoError(t, <-done[0])
	require.NoError(t, <-done[1])
	return answers
}

// TestALateDecisionGoesByWhatOthersHeldLast, for as long as Redis itself would go by it. Then this process has its
// share, as it has while Redis is away.
func TestALateDecisionGoesByWhatOthersHeldLast(t *testing.T) {
	for name, row := range map[string]struct {
		own, others int // of 5 slots, of which a share has 2
		age         time.Duration
		away        bool
		granted     bool
	}{
		"others have the rest":            {1, 4, 0, false, false},
		"others have the rest for long":   {1, 4, inflight.Life - time.Second, false, false},
		"others had the rest":             {1, 4, inflight.Life, false, true},
		"others have the rest, away":      {1, 4, 0, true, true},
		"others have all":                 {0, 5, 0, false, false},
		"others had all":                  {0, 5, inflight.Life, false, true},
		"some are free":                   {3, 1, 0, false, true},
		"some are free for long":          {3, 1, 2 * inflight.Renewal, false, false},
		"some are free, away":             {3, 1, 0, true, false},
		"this process alone has some":     {4, 0, 0, false, true},
		"this process has all":            {5, 0, 0, false, false},
		"it has released one of its own":  {-5, 0, 0, false, true},
		"it has released one, others ask": {-4, 1, 0, false, false},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, other := b.replica(t), b.replica(t)
			one := failing("k", setOf(perHour(1000), bucket.NewSlots(5)), engine.FailLocal)
			for range row.others {
				other := take(t, other, 1, one)
				require.True(t, other.HasSlot())
			}
			var held engine.Answer
			for range max(row.own, -row.own, 1) {
				held = take(t, e, 1, one)
				require.Equal(t, row.own != 0, held.HasSlot())
			}
			if row.own < 0 {
				charge := held.Charge(&one)
				e.Release(&charge)
			}
			time.Sleep(row.age)
			if row.away {
				b.outage(t, e)
			}
			b.Delay.Store(int64(time.Second))
			last := take(t, e, 1, one)
			require.Equal(t, engine.FromLocal, last.Source)
			require.Equal(t, row.granted, last.HasSlot())
			b.Cut.Store(false)
		})
	}
}

// TestAPeekAtAKeyOfWhichNothingIsKnown while Redis is late: this process has its share, as a take then finds.
func TestAPeekAtAKeyOfWhichNothingIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, b.client(t), engine.Config{Replicas: 5}, 64)
		one := failing("new", setOf(perHour(1000), bucket.NewSlots(50)), engine.FailLocal)
		b.Delay.Store(int64(time.Second))
		for _, want := range []int64{10, 9} {
			answers := make([]engine.Answer, 1)
			require.NoError(t, e.Peek(t.Context(), &one, &answers[0]))
			require.Equal(t, engine.FromLocal, answers[0].Source)
			require.Equal(t, want, answers[0].Statuses[1].Remaining)
			taken := take(t, e, 1, one)
			require.True(t, taken.HasSlot())
		}
	})
}

// TestLateDecisionsShareWhatIsFree: of 9 slots, others have 1 and this process 2, and two processes share the rest.
func TestLateDecisionsShareWhatIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.replica(t), b.replica(t)
		one := failing("k", setOf(perHour(1000), bucket.NewSlots(9)), engine.FailLocal)
		take(t, other, 1, one)
		take(t, e, 1, one)
		take(t, e, 1, one)
		b.Delay.Store(int64(time.Second))
		var done []<-chan error
		answers := make([]engine.Answer, 6)
		for i := range answers {
			done = append(done, goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, answers[i:i+1]) }))
		}
		for _, err := range done {
			require.NoError(t, <-err)
		}
		require.Equal(t, 5, e.Stats().Slots)
	})
}

// TestAProcessHoldsNoMoreSlotsThanThereAre, though Redis grants one that this process took itself meanwhile: the
// second caller is denied, and nothing is taken for it.
func TestAProcessHoldsNoMoreSlotsThanThereAre(t *testing.T) {
	t.Parallel()
	free, busy := failing("free", setOf(perHour(1000), bucket.NewSlots(5)), engine.FailLocal), acquiring("k", 1)
	busy.Failure = engine.FailLocal
	for name, asks := range map[string][]engine.Ask{
		"one policy": {busy}, "before another": {busy, free}, "after another": {free, busy},
	} {
		for store, start := range map[string]func(*bench, testing.TB) *engine.Engine{
			"together": (*bench).redis, "in turn": (*bench).turns,
		} {
			inBubbleRun(t, fmt.Sprint(name, ", ", store), func(t *testing.T, b *bench) {
				e := start(b, t)
				take(t, e, 1, ask("warm", setOf(perHour(10), bucket.NewSlots(5))))
				answers := lateTake(t, b, e, asks)
				require.Equal(t, 1+len(asks), e.Stats().Slots, "with that of the first call")
				for i := range asks {
					first, second := &answers[0][i], &answers[1][i]
					require.Equal(t, engine.FromLocal, first.Source)
					require.True(t, first.Allowed)
					require.False(t, second.HasSlot())
					if asks[i].Client == "k" {
						require.False(t, second.Allowed)
						require.Equal(t, 1, second.Resource)
						require.Equal(t, time.Second, second.RetryAfter)
						require.Zero(t, second.Statuses[1].Remaining)
					}
				}
				time.Sleep(2 * timeout)
				for i := range asks {
					require.EqualValues(t, 1000, left(t, e, asks[i]), "nothing was taken in Redis")
				}
			})
		}
	}
}
